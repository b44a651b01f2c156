"""Fixtures like those of the other tests with worker processes, with a choice of stores."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server.processes.conftest import client, new_place
from tests.server.processes.workers import Place
from waystation.embedded import EmbeddedServer

__all__ = ["client"]

on_all_stores = pytest.mark.parametrize("stores", ["local", "shared"], indirect=True)
on_shared_stores = pytest.mark.parametrize("stores", ["shared"], indirect=True)


@pytest.fixture
def stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    """Return the options of workers. If stores are shared, all but the shortest payloads are in the object store."""
    if getattr(request, "param", "local") == "local":
        return ()
    s3, postgres = request.getfixturevalue("s3"), request.getfixturevalue("postgres")
    monkeypatch.setenv("WAYSTATION_STORE", f"{s3}/payloads")
    monkeypatch.setenv("WAYSTATION_CREDENTIAL_KEY", base64.urlsafe_b64encode(bytes(32)).decode())
    stores = ("--artifacts", f"{s3}/artifacts", "--memory", postgres, "--credentials", postgres)
    return (*stores, "--offload-over", "100", "--strict")


@pytest.fixture
def place(server: EmbeddedServer, tmp_path: Path, stores: Sequence[str]) -> Place:
    """Return the place of this test's workers."""
    return replace(new_place(server, tmp_path), options=stores)
