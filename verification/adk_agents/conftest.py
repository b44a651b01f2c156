"""google-adk, and Waystation with google-adk's agents, each in a process of its own."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.paths import ROOT
from verification.differential.conftest import PYTHON, Oracle
from verification.differential.conftest import oracle as oracle
from waystation.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def adapted(server: EmbeddedServer) -> Iterator[Oracle]:
    """Waystation with google-adk's agents, which answers until the session ends."""
    assert PYTHON.exists(), f"{PYTHON} is missing; run `make test-full`, or `make .venv-adk/.stamp` once."
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", ""), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [PYTHON, "-m", "verification.adk_agents.adapted_scenarios", server.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    ) as process:
        yield Oracle(process)
        assert process.stdin is not None
        process.stdin.close()
