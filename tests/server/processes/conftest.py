"""A place for the worker processes of a test, and a client to it."""

import itertools
import os
from pathlib import Path

import pytest

from tests.server.processes.ledger import Ledger
from tests.server.processes.workers import Place
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer

_queues = itertools.count()


def new_place(server: EmbeddedServer, folder: Path) -> Place:
    """Return a place on `server` with its own task queue."""
    return Place(address=server.address, task_queue=f"processes-{os.getpid()}-{next(_queues)}", ledger=Ledger(folder))


@pytest.fixture
def place(server: EmbeddedServer, tmp_path: Path) -> Place:
    """Return the place of this test's workers."""
    return new_place(server, tmp_path)


@pytest.fixture
async def client(place: Place) -> AgentClient:
    """Return a client for this test's workers."""
    return await place.client()
