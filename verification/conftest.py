"""Fixtures like those of the tests on a server."""

from tests.conftest import busy_machine, logs, postgres, postgres_url, pytest_collection_finish, read_certificates_once
from tests.server.conftest import one_session_one_file, payload_store, serve, server, strictly_replayed, verification

__all__ = [
    "busy_machine",
    "logs",
    "one_session_one_file",
    "payload_store",
    "postgres",
    "postgres_url",
    "pytest_collection_finish",
    "read_certificates_once",
    "serve",
    "server",
    "strictly_replayed",
    "verification",
]
