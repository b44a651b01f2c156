"""Unreadable files and invocations are refused in one line with cause and remedy, on a server."""

import asyncio
import base64
import contextlib
import dataclasses
import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import temporalio.converter
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue

from tests.programs import command
from tests.server.conftest import Serve
from tests.server.workflows.test_codec import Veil
from tests.steps import start_raw
from waystation.agents import Agent
from waystation.apps.registry import Registry
from waystation.client.agent_client import AgentClient
from waystation.core.errors import ForeignHistory
from waystation.embedded import EmbeddedServer
from waystation.replay import Recording
from waystation.testing import ScriptedModel, calls, says
from waystation.worker import create_worker


async def test_an_input_that_is_not_json_is_a_readable_history(serve: Serve) -> None:
    """The history of an invocation that failed because of its input is valid."""
    async with serve(Agent(name="quiet", model=ScriptedModel()), verify=False) as env:
        payload = Payload(metadata={"encoding": b"binary/plain"}, data=b"\x00")
        begun = await start_raw(env.client, f"raw-{env.client.task_queue}", RawValue(payload))
        with contextlib.suppress(Exception):
            await begun.result()
        ran = await command("--address", env.server.address, "report", begun.id, "--json")
        assert (ran.code, ran.records[0]["status"]) == (0, "failed")


@contextlib.contextmanager
def codec_server() -> Iterator[str]:
    """Serve the codec `Veil` like Temporal's codec servers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            opened = [self._opened(each) for each in given["payloads"]]
            body = json.dumps({"payloads": opened}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _opened(self, given: dict[str, Any]) -> dict[str, Any]:
            if base64.b64decode(given["metadata"]["encoding"]) != b"binary/veiled":
                return given
            payload = Payload.FromString(base64.b64decode(given["data"])[::-1])
            metadata = {name: base64.b64encode(held).decode() for name, held in payload.metadata.items()}
            return {"metadata": metadata, "data": base64.b64encode(payload.data).decode()}

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


async def test_an_encoded_history_is_refused_and_the_remedies_work(server: EmbeddedServer, tmp_path: Path) -> None:
    """An encoded history is refused, and is readable after a codec server or with the converter."""
    converter = dataclasses.replace(temporalio.converter.default(), payload_codec=Veil())
    temporal = await Client.connect(server.address, data_converter=converter)

    def look(where: str) -> str:
        return where

    model = ScriptedModel(calls(("look", {"where": "here"})), says("hush"))
    registry = Registry.of(Agent(name="quiet", model=model, tools=[look]))
    async with create_worker(temporal, registry, task_queue="veiled-file", max_cached_workflows=0):
        begun = await AgentClient(temporal, task_queue="veiled-file").start("quiet", "whisper", id="veiled-file")
        await begun.result()
    ran = await command("--address", server.address, "report", "veiled-file", "--json")
    assert (ran.code, "'veiled-file' has payloads encoded as 'binary/veiled'" in ran.err) == (6, True), ran

    async def saved(name: str, *more: str) -> Path:
        program = Path(sys.executable).with_name("temporal")
        show = ("workflow", "show", "--workflow-id", "veiled-file", "-o", "json", "--address", server.address)
        process = await asyncio.create_subprocess_exec(program, *show, *more, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0
        (tmp_path / name).write_bytes(out)
        return tmp_path / name

    veiled = await saved("veiled.json")
    ran = await command("report", str(veiled), "--json")
    assert (ran.code, "binary/veiled" in ran.err) == (2, True), ran
    with codec_server() as url:
        opened = await saved("opened.json", "--codec-endpoint", url)
    ran = await command("report", str(opened), "--json")
    assert (ran.code, ran.records[0]["message"]) == (0, "whisper")
    assert (await Recording.read(veiled, converter=converter)).log.state.input == (
        await Recording.read(opened)
    ).log.state.input

    class OfAnotherKey(Veil):
        async def decode(self, payloads: Any) -> list[Payload]:
            raise RuntimeError("the tag does not fit")

    other = dataclasses.replace(temporalio.converter.default(), payload_codec=OfAnotherKey())
    with pytest.raises(ForeignHistory, match=r"payloads of '.*veiled\.json' \(RuntimeError: the tag does not fit\)"):
        await Recording.read(veiled, converter=other)
