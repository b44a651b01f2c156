"""A thread serves health and metrics, so they also report a blocked event loop."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.store_servers import S3_KEYS
from waystation.core.budget import Quotas
from waystation.core.contract import Settings, Stores
from waystation.core.errors import InvalidConfiguration
from waystation.core.payload import JsonObject
from waystation.storage import USER_KEYS_VARIABLE, ObjectFiles, probe_all, store_probes
from waystation.worker import status_server
from waystation.worker.metrics import Measurement
from waystation.worker.service_setup import create_store_checks, find_store_problem
from waystation.worker.status_server import CHECK, StatusServer, format_gauges


def ask(url: str) -> tuple[int, JsonObject]:
    """Return status and content. The request blocks the thread, unlike that of a client in another process."""
    try:
        with closing(urlopen(url)) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        with closing(error):
            return error.code, json.load(error)


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Return the URL of a server that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def status() -> Iterator[StatusServer]:
    """Run a status server of a process that counts as blocked after 50 ms."""
    with StatusServer(("127.0.0.1", 0), blocked_after_s=0.05) as server:
        yield server


async def test_a_blocked_event_loop_is_reported_while_it_is_blocked(status: StatusServer) -> None:
    """The status is unhealthy while the loop is blocked, and healthy again afterward."""
    status.watch({})
    while (answer := ask(f"{status.url}/healthz"))[0] == 200:
        pass
    assert answer[0] == 503
    assert answer[1]["event_loop"].startswith("blocked for")
    assert ask(f"{status.url}/readyz")[0] == 503
    while (await asyncio.to_thread(ask, f"{status.url}/healthz"))[0] != 200:
        pass


async def test_a_process_is_ready_only_while_it_serves_and_all_checks_pass(status: StatusServer) -> None:
    """Each problem is named. Health does not depend on the checks, because a restart would not help."""
    assert await asyncio.to_thread(ask, f"{status.url}/healthz") == (200, {"ok": True, "event_loop": "ok"})
    status.watch({"stores": lambda: "no space left"})
    code, answer = await asyncio.to_thread(ask, f"{status.url}/readyz")
    assert (code, answer["stage"], answer["stores"]) == (503, "starting", "no space left")
    assert (await asyncio.to_thread(ask, f"{status.url}/healthz"))[0] == 200


async def test_a_check_that_hangs_delays_only_the_first_answer(
    status: StatusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hanging check counts as failed and is not started again, and metrics are still served."""
    monkeypatch.setattr(status_server, "CHECK_LIMIT_S", 0.2)
    monkeypatch.setattr(status_server, "RECHECK_S", 0.0)
    release, runs = threading.Event(), list[int]()

    def hang() -> None:
        runs.append(1)
        release.wait()

    status.watch({"stores": hang, "other": lambda: None})
    code, answer = await asyncio.to_thread(ask, f"{status.url}/readyz")
    assert (code, answer["stores"], answer["other"]) == (503, status_server.OVERDUE, "ok")
    for _ in range(3):
        assert (await asyncio.to_thread(ask, f"{status.url}/readyz"))[0] == 503
    assert runs == [1]
    text = await asyncio.to_thread(status.export)
    assert 'waystation_check_ok{check="stores"} 0' in text
    release.set()
    while (await asyncio.to_thread(ask, f"{status.url}/readyz"))[1]["stores"] != "ok":
        pass


async def test_a_check_that_raises_counts_as_failed(status: StatusServer) -> None:
    """A check that raises counts as failed, so a fault in a check does not look like success."""
    status.watch({"stores": lambda: str(1 / 0)})
    assert (await asyncio.to_thread(ask, f"{status.url}/readyz"))[1]["stores"] == "the check failed: division by zero"


def test_an_object_store_that_hangs_is_reported_within_its_limit(silent_server: str, tmp_path: Path) -> None:
    """The store is named within the limit, although its client would retry for minutes."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {**S3_KEYS, "AWS_ENDPOINT_URL": silent_server, "AWS_ALLOW_HTTP": "true"}.items():
            patched.setenv(name, value)
        patched.setattr(store_probes, "LIMIT_S", 0.2)
        settings = Settings(stores=Stores(payloads="s3://bucket/prefix", artifacts=str(tmp_path / "artifacts")))
        assert find_store_problem(settings) == "The store at s3://bucket/prefix failed: no answer within 0.2 s"
        problem = probe_all(write=(ObjectFiles(tmp_path / "payloads"),), read=(ObjectFiles("s3://bucket/prefix"),))
        assert problem == "The store at s3://bucket/prefix failed: no answer within 0.2 s"


@pytest.mark.slow
def test_each_postgresql_store_has_a_check(silent_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that accepts connections and never answers fails within the limit of its URL."""
    port = silent_server.rpartition(":")[2]
    url = f"postgresql://127.0.0.1:{port}/stores?connect_timeout=2"
    monkeypatch.setenv(USER_KEYS_VARIABLE, url)
    settings = Settings(stores=Stores(memory=url, credentials=url), quotas=Quotas(store=url))
    checks = create_store_checks(settings)
    assert set(checks) == {"stores", "memory_store", "credential_store", "quota_store", "user_key_store"}
    assert "timeout" in (checks["memory_store"]() or "")


def test_a_postgresql_standby_is_not_ready(postgres: str) -> None:
    """A server that accepts no changes responds but cannot be used as a store."""
    settings = Settings(
        stores=Stores(memory=postgres, credentials=f"{postgres}?options=-cdefault_transaction_read_only%3Don")
    )
    checks = create_store_checks(settings)
    assert checks["memory_store"]() is None
    assert "the server accepts no changes" in (checks["credential_store"]() or "")


def test_a_taken_port_is_reported_with_a_remedy(status: StatusServer) -> None:
    """The worker does not start without the metrics that were requested."""
    with pytest.raises(InvalidConfiguration, match=r"cannot listen there: Address already in use\. Choose another"):
        StatusServer(("127.0.0.1", int(status.url.rpartition(":")[2])))


def test_values_of_labels_are_escaped() -> None:
    """Values of labels are escaped, because the name of an agent could break the format."""
    text = format_gauges([Measurement(CHECK, 1, {"check": 'a"b\\c\nd'}), Measurement(CHECK, 0, {})])
    assert text.splitlines()[2:] == [r'waystation_check_ok{check="a\"b\\c\nd"} 1', "waystation_check_ok 0"]


def test_a_store_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """The check writes a file where the store is, because permissions do not show a full disk."""
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
