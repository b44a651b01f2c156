"""Health and metrics are served by a thread, so that they also tell when the event loop is blocked."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from waystation.core import InvalidConfiguration, JsonObject, Settings, Stores
from waystation.worker.metrics import Measurement
from waystation.worker.service_setup import find_store_problem
from waystation.worker.status_server import CHECK, StatusServer, format_gauges


def ask(url: str) -> tuple[int, JsonObject]:
    """Return status and content. This blocks, as a client in another process would not."""
    try:
        with closing(urlopen(url)) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        with closing(error):
            return error.code, json.load(error)


@pytest.fixture
def status() -> Iterator[StatusServer]:
    """A server of a process that counts as blocked after 50 ms."""
    with StatusServer(("127.0.0.1", 0), blocked_after_s=0.05) as server:
        yield server


async def test_a_blocked_event_loop_is_reported_while_it_is_blocked(status: StatusServer) -> None:
    """This test blocks the loop itself, until the answer changes; then it lets the loop run, and all is well again."""
    status.watch({})
    while (answer := ask(f"{status.url}/healthz"))[0] == 200:
        pass
    assert answer[0] == 503
    assert answer[1]["event_loop"].startswith("blocked for")
    assert ask(f"{status.url}/readyz")[0] == 503
    while (await asyncio.to_thread(ask, f"{status.url}/healthz"))[0] != 200:
        pass


async def test_a_process_is_ready_only_while_it_serves_and_all_checks_pass(status: StatusServer) -> None:
    """Each problem is named. Being healthy does not depend on it, because a restart would not help."""
    assert await asyncio.to_thread(ask, f"{status.url}/healthz") == (200, {"ok": True, "event_loop": "ok"})
    status.watch({"stores": lambda: "no space left"})
    code, answer = await asyncio.to_thread(ask, f"{status.url}/readyz")
    assert (code, answer["stage"], answer["stores"]) == (503, "starting", "no space left")
    assert (await asyncio.to_thread(ask, f"{status.url}/healthz"))[0] == 200


def test_a_taken_port_is_reported_with_a_remedy(status: StatusServer) -> None:
    """The worker does not start without the metrics that were asked for."""
    with pytest.raises(InvalidConfiguration, match=r"cannot listen there: Address already in use\. Choose another"):
        StatusServer(("127.0.0.1", int(status.url.rpartition(":")[2])))


def test_values_of_labels_are_escaped() -> None:
    """Otherwise, the name of an agent could break the format."""
    text = format_gauges([Measurement(CHECK, 1, {"check": 'a"b\\c\nd'}), Measurement(CHECK, 0, {})])
    assert text.splitlines()[2:] == [r'waystation_check_ok{check="a\"b\\c\nd"} 1', "waystation_check_ok 0"]


def test_a_store_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    """A file is written where the store already exists, because permissions tell nothing about a full disk."""
    folder = tmp_path / "payloads"
    settings = Settings(stores=Stores(payloads=str(folder), artifacts=str(tmp_path / "artifacts")))
    assert find_store_problem(settings) is None
    assert not folder.exists()
    folder.mkdir()
    assert find_store_problem(settings) is None
    assert list(folder.iterdir()) == []
    folder.rmdir()
    folder.touch()
    assert f"{folder} is a file" in (find_store_problem(settings) or "")
