"""google-adk in a process of its own, and Waystation with one worker for all scenarios."""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.paths import ROOT
from verification.differential.scenario import Json
from verification.differential.subject import Pause, Subject
from waystation.activities.model_choice import Models
from waystation.apps.registry import Registry
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.worker import create_worker
from waystation.worker.service_setup import create_temporary_services

PYTHON = ROOT / ".venv-adk" / "bin" / "python"


class Oracle:
    """Sends questions to google-adk's process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, question: Json | str) -> Json:
        """Return the answer to a question; see `oracle`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        reply: Json = json.loads(self._process.stdout.readline() or '{"failed": "google-adk\'s process has ended."}')
        assert "failed" not in reply, reply["failed"]
        answer: Json = reply["answer"]
        return answer


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    """google-adk, which answers until the session ends."""
    assert PYTHON.exists(), f"{PYTHON} is missing; run `make test-full`, or `make .venv-adk/.stamp` once."
    # No variable of the environment may change ADK's behavior, such as one that selects Vertex.
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "")}
    with subprocess.Popen(
        [PYTHON, "-m", "verification.differential.oracle"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    ) as process:
        yield Oracle(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="session")
async def subject(server: EmbeddedServer) -> AsyncIterator[Subject]:
    """Waystation, with a worker that serves every scenario."""
    queue = f"differential-{os.getpid()}"
    temporal = await connect(address=server.address)
    registry = Registry()
    services = create_temporary_services()
    assert services.artifacts is not None
    pause = Pause()
    worker = create_worker(
        temporal, registry, models=Models(), task_queue=queue, services=services, interceptors=[pause]
    )
    async with worker:
        yield Subject(AgentClient(temporal, task_queue=queue), registry, services.artifacts, pause)
