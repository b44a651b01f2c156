"""Database files of the embedded server."""

from pathlib import Path

import pytest
from temporalio.client import Client

from waystation import embedded
from waystation.client import SEARCH_ATTRIBUTE_TYPES, check_search_attributes
from waystation.embedded import (
    EmbeddedServer,
)


async def test_a_file_of_another_server_gets_the_search_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of `temporal server start-dev`, for example, has none; searches work when the block is entered."""
    db_filename = tmp_path / "temporal.db"
    with monkeypatch.context() as patched:
        patched.setattr(embedded, "SEARCH_ATTRIBUTES", {})
        async with EmbeddedServer(db_filename=db_filename) as server:
            assert await check_search_attributes(await Client.connect(server.address)) == {}
    async with EmbeddedServer(db_filename=db_filename) as server:
        client = await Client.connect(server.address)
        assert await check_search_attributes(client) == dict.fromkeys(SEARCH_ATTRIBUTE_TYPES, True)
        for name in SEARCH_ATTRIBUTE_TYPES:
            assert (await client.count_workflows(f"{name} = 'x'")).count == 0
