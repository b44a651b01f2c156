"""How soon a call that was answered over the JSON API of one web process closes in all interfaces of another."""

import asyncio
import json
import os
import random
import re
import sys
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2 as httpx

from benchmarks.comparison import Plan
from benchmarks.engine import AGENT, worker
from benchmarks.side import APPROVE
from benchmarks.table import Row, p95
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer, bind_to_this_process

QUEUE = "closing"
ANSWERS = 50
INTERFACES = ("a2a", "ag-ui", "mcp")
TOKEN = uuid.uuid4().hex
POLL_S = 1.0
"""How often the MCP client reads its task."""
SPREAD_S = 2.0
"""Answers are sent at any moment of this time, because the inbox looks for answers of other processes now and then."""
PACE_S = 3.0
"""The time from one answer to the next. A web process accepts 120 requests a minute from one person."""
MCP_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}


@dataclass(frozen=True)
class OpenCall:
    """A call that waits, with its IDs in all interfaces."""

    agent: str
    thread: str
    task: str
    invocation: str
    call: str


Watch = Callable[[httpx.AsyncClient, OpenCall, asyncio.Event], Awaitable[None]]
"""Show a call, set the event, and return when the call is no longer shown as waiting."""


async def measure(plan: Plan) -> list[Row]:
    """Measure the time from sending an answer until the last of the open clients shows that the call is closed."""
    times: dict[str, list[float]] = {name: [] for name in WATCHES}
    async with EmbeddedServer() as server:
        client = AgentClient(await connect(address=server.address), task_queue=QUEUE)
        async with worker(client), web_client(server.address) as answering, web_client(server.address) as watching:
            for _ in range(5 if plan.quick else ANSWERS):
                pause = asyncio.create_task(asyncio.sleep(PACE_S))
                call = await open_call(answering, AGENT, APPROVE.text())
                wait_s = random.uniform(0, SPREAD_S)
                for name, seconds in (await time_closing(answering, watching, call, wait_s=wait_s)).items():
                    times[name].append(seconds)
                await pause
    slowest = [max(samples) for samples in zip(*times.values(), strict=True)]
    note = ", ".join(f"{name} {p95(samples):.2f}" for name, samples in times.items())
    return [
        Row(
            name=f"{len(slowest)} answers over the JSON API: 95th percentile until all interfaces have closed the call",
            samples=slowest,
            statistic=p95,
            unit="s",
            goal=2,
            note=f"{note}; in another web process; the MCP client polls every {POLL_S:g} s",
        )
    ]


async def time_closing(
    answering: httpx.AsyncClient, watching: httpx.AsyncClient, call: OpenCall, *, wait_s: float = 0
) -> dict[str, float]:
    """Answer a call `wait_s` after all interfaces show it. Return the time until each has closed it, in seconds."""
    ends: dict[str, float] = {}

    async def run(name: str, shown: asyncio.Event) -> None:
        await WATCHES[name](watching, call, shown)
        ends[name] = time.perf_counter()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for name in WATCHES:
            shown = asyncio.Event()
            tasks.create_task(run(name, shown))
            await shown.wait()
        await asyncio.sleep(wait_s)
        started, path = time.perf_counter(), f"/api/v1/calls/{quote(call.call, safe='')}/answers"
        (await answering.post(path, json={"action": "approve"})).raise_for_status()
    return {name: ends[name] - started for name in WATCHES}


async def open_call(http: httpx.AsyncClient, agent: str, text: str) -> OpenCall:
    """Start an agent over A2A, and return its call."""
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    async with aclosing(post_a2a(http, agent, "SendMessage", {"message": message})) as results:
        task = (await anext(results))["task"]
    details = task["metadata"]["waystation"]
    [call] = task["status"]["message"]["metadata"]["waystation"]["calls"]
    return OpenCall(agent, task["contextId"], task["id"], details["invocationId"], call["call"])


async def watch_inbox(http: httpx.AsyncClient, call: OpenCall, shown: asyncio.Event) -> None:
    """Follow all pending calls, as the inbox does."""
    async with http.stream("GET", "/api/v1/calls/events") as response, aclosing(read_events(response)) as events:
        async for event in events:
            if call.call in [each["id"] for each in event["calls"]]:
                shown.set()
            if call.call in event["gone"]:
                return


async def watch_ag_ui(http: httpx.AsyncClient, call: OpenCall, shown: asyncio.Event) -> None:
    """Keep a run of AG-UI open that shows the interrupt."""
    props = {"waystation": {"seen": [call.call]}}
    body = {"threadId": call.thread, "runId": uuid.uuid4().hex, "messages": [], "forwardedProps": props}
    async with (
        http.stream("POST", f"/agui/{call.agent}", json=body) as response,
        aclosing(read_events(response)) as events,
    ):
        async for event in events:
            if event["type"] == "MESSAGES_SNAPSHOT":
                shown.set()
            if event["type"] == "TOOL_CALL_RESULT" and event["toolCallId"] == call.call:
                return


async def watch_a2a(http: httpx.AsyncClient, call: OpenCall, shown: asyncio.Event) -> None:
    """Subscribe to the task of A2A."""
    async with aclosing(post_a2a(http, call.agent, "SubscribeToTask", {"id": call.task})) as results:
        async for result in results:
            state = (result.get("task") or result.get("statusUpdate") or {}).get("status", {}).get("state")
            if state == "TASK_STATE_INPUT_REQUIRED":
                shown.set()
            elif state:
                return


async def watch_mcp(http: httpx.AsyncClient, call: OpenCall, shown: asyncio.Event) -> None:
    """Read the task of MCP again and again."""
    params = {"taskId": call.invocation, "_meta": MCP_META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tasks/get",
        "Mcp-Name": call.invocation,
    }
    while True:
        response = await http.post("/mcp", json=body, headers=headers)
        if response.json()["result"]["status"] != "input_required":
            return
        shown.set()
        await asyncio.sleep(POLL_S)


WATCHES: Mapping[str, Watch] = {
    "inbox": watch_inbox,
    "AG-UI": watch_ag_ui,
    "A2A": watch_a2a,
    "MCP": watch_mcp,
}


async def post_a2a(
    http: httpx.AsyncClient, agent: str, method: str, params: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any]]:
    """Call a method of A2A, and yield its result, or those of a stream."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with http.stream("POST", f"/a2a/{agent}", json=body, headers={"A2A-Version": "1.0"}) as response:
        if not response.headers["content-type"].startswith("text/event-stream"):
            await response.aread()
            yield response.json()["result"]
            return
        async with aclosing(read_events(response)) as events:
            async for event in events:
                yield event["result"]


async def read_events(response: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    """Yield the data of server-sent events."""
    async for line in response.raise_for_status().aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@asynccontextmanager
async def web_client(address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run the web application with all interfaces in a process, and connect a program to it."""
    command = [sys.executable, "-m", "waystation.cli", "--address", address, "--task-queue", QUEUE, "web"]
    options = ["--port", "0", *(part for name in INTERFACES for part in ("--interface", name))]
    process = await asyncio.create_subprocess_exec(
        *bind_to_this_process([*command, *options]),
        env={**os.environ, "WAYSTATION_WEB_TOKEN": TOKEN},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None
        while not (match := re.search(rb"Serving at (\S+);", line := await process.stdout.readline())):
            assert line, "The web application ended."
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=match[1].decode(), headers=headers, timeout=60) as http:
            yield http
    finally:
        process.kill()
        await process.communicate()
