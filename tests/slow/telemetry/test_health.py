"""Health and metrics of a worker process, as an orchestrator and Prometheus see them."""

import asyncio
import json
import re
import shutil
import signal
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.server.conftest import empty_server
from tests.server.processes.conftest import new_place
from tests.server.processes.workers import AGENTS, Process, WorkerProcess, plan, until
from tests.unit.test_monitoring_files import OF_SDK
from waystation.core.payload import JsonObject
from waystation.embedded import EmbeddedServer

BLOCKING = ("--agents", str(AGENTS.parent / "blocking_agents"))
METRICS = ("--metrics", "0")


async def fetch(worker: WorkerProcess, path: str) -> tuple[int, str]:
    """Return the status and the content of a path of a worker."""
    return await fetch_url((await worker.logged("metrics.ready"))["url"] + path)


async def fetch_url(url: str) -> tuple[int, str]:
    """Return the status and the content of a page."""

    def ask() -> tuple[int, str]:
        try:
            with closing(urlopen(url)) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            with closing(error):
                return error.code, error.read().decode()

    return await asyncio.to_thread(ask)


async def scrape(worker: WorkerProcess, *, until_line: str) -> str:
    """Return the metrics of a worker once they contain a line."""

    async def look() -> str | None:
        text = (await fetch(worker, "/metrics"))[1]
        return text if until_line in text.splitlines() else None

    return await until(look, until_line) or ""


async def wait_for(worker: WorkerProcess, path: str, code: int, **expected: str) -> JsonObject:
    """Wait until a path has this status, and its checks begin with the expected words."""

    async def look() -> JsonObject | None:
        status, text = await fetch(worker, path)
        answer: JsonObject = json.loads(text)
        is_expected = all(str(answer.get(name)).startswith(value) for name, value in expected.items())
        return answer if status == code and is_expected else None

    answer = await until(look, f"{path} {code} {expected}")
    assert answer is not None
    return answer


async def test_a_worker_is_not_ready_without_its_server_or_its_store(tmp_path: Path) -> None:
    """The worker stays healthy, because a restart would not help, and is ready again with the server and the store."""
    db, store = tmp_path / "server.db", tmp_path / "store"
    store.mkdir()
    async with EmbeddedServer(db_filename=db) as server:
        place = replace(new_place(server, tmp_path), options=(*METRICS, "--store", str(store)))
        port = int(server.address.rpartition(":")[2])
        async with place.worker() as worker:
            await wait_for(worker, "/readyz", 200, stage="serving", server="ok", stores="ok")
            shutil.rmtree(store)
            store.touch()
            answer = await wait_for(worker, "/readyz", 503, stores="Large payloads cannot be stored")
            assert answer["server"] == "ok"
            store.unlink()
            await wait_for(worker, "/readyz", 200)
            await server.__aexit__(None, None, None)
            answer = await wait_for(worker, "/readyz", 503, event_loop="ok", stores="ok")
            assert answer["server"] != "ok"
            assert await fetch(worker, "/healthz") == (200, '{"ok": true, "event_loop": "ok"}\n')
            assert (await fetch(worker, "/metrics"))[1].count('waystation_check_ok{check="server"} 0') == 1
            assert (await fetch(worker, "/metrics/namespace"))[0] == 503
            async with EmbeddedServer(db_filename=db, port=port):
                await wait_for(worker, "/readyz", 200, server="ok")


async def test_a_blocked_worker_is_not_healthy_until_it_is_interrupted(server: EmbeddedServer, tmp_path: Path) -> None:
    """The response arrives while a tool sleeps in the event loop."""
    place = replace(new_place(server, tmp_path), options=METRICS)
    client = await place.client()
    async with place.worker(*BLOCKING, "--event-loop-limit", "10") as worker:
        await wait_for(worker, "/healthz", 200)
        await client.start("blocking", plan([("doze", {})]))
        await wait_for(worker, "/healthz", 503, event_loop="blocked for")
        await wait_for(worker, "/readyz", 503, event_loop="blocked for", server="not known")
        assert (await fetch(worker, "/metrics"))[0] == 200
        assert await worker.exit_code() == 11


async def test_a_draining_worker_is_not_ready_and_still_counts(tmp_path: Path) -> None:
    """The worker has received SIGTERM, and waits for its tool. The counts of the namespace include the pending call."""
    async with empty_server() as server:
        place = replace(new_place(server, tmp_path), options=METRICS)
        client = await place.client()
        async with place.worker() as worker:
            invocation = await client.start("planned", plan([("remember", {"word": "a"})], [("hold", {"gate": "end"})]))
            await until(lambda: place.ledger.lines("began"), "a tool that runs")
            code, text = await fetch(worker, "/metrics/namespace")
            assert (code, 'waystation_open_invocations{status="running"} 1' in text.splitlines()) == (200, True)
            worker.send(signal.SIGTERM)
            await wait_for(worker, "/readyz", 503, stage="draining", server="ok")
            counted = 'waystation_tool_call_duration_seconds_count{agent="planned",tool="remember"} 1'
            text = await scrape(worker, until_line=counted)
            assert 'temporal_worker_task_slots_used{namespace="default"' in text
            assert {name for name in OF_SDK if f"\n{name}{{" not in text} == set()
            assert not any(id in text for id in (invocation.id, "user_id", "run_id"))
            place.ledger.open("end")
            assert await worker.exit_code() == 0


async def test_the_web_application_counts_the_namespace(server: EmbeddedServer) -> None:
    """The web application has the same paths as a worker."""
    command = (sys.executable, "-m", "waystation.cli", "--address", server.address, "web", "--port", "0", *METRICS)
    async with Process(*command) as web:

        def find_url() -> str:
            found = re.search(r"checks are at (\S+)\.", " ".join(web.other))
            return found[1] if found else ""

        url = await until(find_url, "the address of the metrics")
        assert json.loads((await fetch_url(f"{url}/readyz"))[1])["server"] == "ok"
        assert 'waystation_check_ok{check="server"} 1\n' in (await fetch_url(f"{url}/metrics"))[1]
        assert "temporal_request_total" in (await fetch_url(f"{url}/metrics"))[1]
        code, text = await fetch_url(f"{url}/metrics/namespace")
        assert (code, 'waystation_open_invocations{status="held"}' in text) == (200, True)
