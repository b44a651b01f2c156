"""The requests of a person through each interface: start an agent, read, answer a call, and cancel.

The drivers keep nothing and know no person. The client that they are given has the token.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx2 as httpx

from waystation.interfaces.a2a_server.task_views import TaskRef

A2A_VERSION = {"A2A-Version": "1.0"}
MCP_HEADERS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}


@dataclass(frozen=True)
class Reply:
    """The reply to a request."""

    status: int
    text: str
    accepted: bool

    def without(self, *ids: str) -> "Reply":
        """Return the reply without IDs, so that it can be compared with one about other IDs."""
        text = self.text
        for id in sorted(ids, key=len, reverse=True):
            for form in (id, quote(id, safe="")):
                text = text.replace(form, "ID")
        return replace(self, text=text)


@dataclass(frozen=True)
class Shown:
    """A call that waits, as a person has seen it."""

    agent: str
    place: str
    """The ID with which the interface reads and cancels: of an invocation, a task or a thread."""
    invocation: str
    call: str = ""
    digest: str = ""
    question: int = 1

    @property
    def unknown(self) -> "Shown":
        """A call that looks like this one, and does not exist."""
        return replace(self, place=f"{self.place}9", invocation=f"{self.invocation}9", call=f"{self.invocation}9/fc-1")


@dataclass(frozen=True)
class Interface:
    """The requests of one interface."""

    start: Callable[[httpx.AsyncClient, str], Awaitable[tuple[Reply, str, str]]]
    """Start an agent. Return the reply, the place and the ID of the invocation, which are empty if it is refused."""
    read: Callable[[httpx.AsyncClient, Shown], Awaitable[Reply]]
    answer: Callable[[httpx.AsyncClient, Shown, Mapping[str, Any]], Awaitable[Reply]]
    cancel: Callable[[httpx.AsyncClient, Shown], Awaitable[Reply]] | None
    name: str
    """The name in the audit."""
    has_digests: bool = True
    """Whether an answer repeats the digest of the call as it was shown."""
    is_personal: bool = False
    """Whether a place belongs to its person, so that for others, also for approvers, it does not exist."""


async def show(http: httpx.AsyncClient, agent: str, place: str, invocation: str) -> Shown:
    """Wait until the only call of an invocation waits, and read it."""
    path = f"/api/v1/invocations/{quote(invocation, safe='')}"
    [id] = (await http.get(path, params={"wait_s": 30}, timeout=40)).json()["pending"]
    call = (await http.get(call_path(id))).json()
    return Shown(agent, place, invocation, id, call["digest"], call["question"])


def call_path(id: str) -> str:
    """Return the path of a call in the JSON API."""
    return f"/api/v1/calls/{quote(id, safe='')}"


# The JSON API


async def post_json(http: httpx.AsyncClient, path: str, body: Any) -> Reply:
    """Post JSON to the JSON API."""
    response = await http.post(path, json=body)
    return Reply(response.status_code, response.text, response.is_success)


async def start_json(http: httpx.AsyncClient, agent: str) -> tuple[Reply, str, str]:
    """Start an agent over the JSON API."""
    reply = await post_json(http, "/api/v1/invocations", {"agent": agent, "message": "Pay."})
    id = json.loads(reply.text)["invocation_id"] if reply.accepted else ""
    return reply, id, id


async def read_json(http: httpx.AsyncClient, shown: Shown) -> Reply:
    """Read an invocation over the JSON API."""
    response = await http.get(f"/api/v1/invocations/{quote(shown.place, safe='')}")
    return Reply(response.status_code, response.text, response.is_success)


async def answer_json(http: httpx.AsyncClient, shown: Shown, answer: Mapping[str, Any]) -> Reply:
    """Answer a call over the JSON API."""
    return await post_json(http, f"{call_path(shown.call)}/answers", {"digest": shown.digest, **answer})


async def cancel_json(http: httpx.AsyncClient, shown: Shown) -> Reply:
    """Cancel an invocation over the JSON API."""
    return await post_json(http, f"/api/v1/invocations/{quote(shown.place, safe='')}/stop", {})


# AG-UI


async def follow_run(http: httpx.AsyncClient, agent: str, thread: str, **fields: Any) -> AsyncIterator[dict[str, Any]]:
    """Run an agent over AG-UI, and yield the events."""
    body = {"threadId": thread, "runId": "run", "messages": [], **fields}
    async with http.stream("POST", f"/agui/{agent}", json=body, timeout=60) as response:
        if not response.is_success:
            yield {"type": "REFUSED", "status": response.status_code, "text": (await response.aread()).decode()}
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def find_waits(event: Mapping[str, Any]) -> list[str]:
    """Return the IDs of the calls that an event of AG-UI shows as waiting, for this person or for others."""
    if event["type"] == "MESSAGES_SNAPSHOT":
        awaited = [each for each in event["messages"] if each.get("activityType") == "waystation:awaited"]
        return [each["content"]["toolCallId"] for each in awaited]
    return [each["id"] for each in (event.get("outcome") or {}).get("interrupts", ())]


async def run_ag_ui(http: httpx.AsyncClient, shown: Shown, **fields: Any) -> Reply:
    """Run an agent over AG-UI until it ends or waits, which a call for others does not end. Return the events."""
    events = []
    async for event in follow_run(http, shown.agent, shown.place, **fields):
        events.append(event)
        if event["type"] == "REFUSED":
            return Reply(event["status"], event["text"], accepted=False)
        if find_waits(event):
            break
    # The refusal of an answer comes as an interrupt, and the answer that counts already as an event.
    interrupts = (events[-1].get("outcome") or {}).get("interrupts", ())
    is_refused = events[-1]["type"] == "RUN_ERROR" or any("problem" in each["metadata"] for each in interrupts)
    is_late = any(event.get("name") == "waystation:answered" for event in events)
    return Reply(200, json.dumps(events), not (is_refused or is_late))


async def start_ag_ui(http: httpx.AsyncClient, agent: str) -> tuple[Reply, str, str]:
    """Start an agent over AG-UI."""
    thread = f"agui-{uuid4().hex}"
    reply = await run_ag_ui(http, Shown(agent, thread, ""), messages=[{"id": "m", "role": "user", "content": "Pay."}])
    waits = find_waits(json.loads(reply.text)[-1]) if reply.accepted else [""]
    return reply, thread, waits[0].rpartition("/")[0]


async def answer_ag_ui(http: httpx.AsyncClient, shown: Shown, answer: Mapping[str, Any]) -> Reply:
    """Resume a run over AG-UI with an answer."""
    payload = {"approved": answer["action"] != "reject", **({"editedArgs": answer["args"]} if "args" in answer else {})}
    entry = {"interruptId": shown.call, "status": "resolved", "payload": payload}
    return await run_ag_ui(
        http, shown, resume=[{**entry, "metadata": {"digest": shown.digest, "question": shown.question}}]
    )


async def cancel_ag_ui(http: httpx.AsyncClient, shown: Shown) -> Reply:
    """Cancel what runs in a thread of AG-UI."""
    return await run_ag_ui(http, shown, forwardedProps={"waystation": {"cancel": True}})


# MCP


async def call_tool(http: httpx.AsyncClient, name: str, arguments: Mapping[str, Any]) -> tuple[Reply, Any]:
    """Call a tool over MCP, and return the reply and the structured content."""
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    response = await http.post("/mcp", json=request, headers=MCP_HEADERS, timeout=60)
    if not response.is_success:
        return Reply(response.status_code, response.text, accepted=False), None
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    found = json.loads(data[-1] if data else response.text)
    result = found.get("result", {"isError": True})
    return Reply(200, json.dumps(found), not result.get("isError")), result.get("structuredContent")


async def start_mcp(http: httpx.AsyncClient, agent: str) -> tuple[Reply, str, str]:
    """Start an agent over MCP."""
    reply, found = await call_tool(http, "agent_start", {"agent": agent, "message": "Pay."})
    id = found["invocation_id"] if found else ""
    return reply, id, id


async def read_mcp(http: httpx.AsyncClient, shown: Shown) -> Reply:
    """Read an invocation over MCP."""
    return (await call_tool(http, "agent_get", {"invocation_id": shown.place}))[0]


async def answer_mcp(http: httpx.AsyncClient, shown: Shown, answer: Mapping[str, Any]) -> Reply:
    """Answer a call over MCP."""
    return (await call_tool(http, "agent_answer", {"call_id": shown.call, "digest": shown.digest, **answer}))[0]


async def cancel_mcp(http: httpx.AsyncClient, shown: Shown) -> Reply:
    """Cancel an invocation over MCP."""
    return (await call_tool(http, "agent_cancel", {"invocation_id": shown.place}))[0]


# A2A


async def call_a2a(http: httpx.AsyncClient, agent: str, method: str, **params: Any) -> tuple[Reply, Any]:
    """Call a method over A2A, and return the reply and the result."""
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    response = await http.post(f"/a2a/{agent}", json=request, headers=A2A_VERSION, timeout=60)
    result = response.json().get("result") if response.is_success else None
    return Reply(response.status_code, response.text, result is not None), result


def make_message(part: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a message of A2A with one part."""
    return {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [part], **fields}


async def start_a2a(http: httpx.AsyncClient, agent: str) -> tuple[Reply, str, str]:
    """Start an agent over A2A."""
    reply, result = await call_a2a(http, agent, "SendMessage", message=make_message({"text": "Pay."}))
    ref = TaskRef.parse(result["task"]["id"]) if result else None
    id = ref.invocation_id if ref else ""
    return reply, id, id


def name_task(shown: Shown) -> str:
    """Return the ID of a task."""
    ref = TaskRef.of(shown.place)
    assert ref is not None
    return ref.task_id


async def read_a2a(http: httpx.AsyncClient, shown: Shown) -> Reply:
    """Read a task over A2A."""
    id = name_task(shown)
    return (await call_a2a(http, shown.agent, "GetTask", id=id))[0].without(id)


async def answer_a2a(http: httpx.AsyncClient, shown: Shown, answer: Mapping[str, Any]) -> Reply:
    """Answer a call over A2A, with a data part."""
    id, data = name_task(shown), {"call": shown.call, "digest": shown.digest, **answer}
    message = make_message({"data": data}, taskId=id)
    return (await call_a2a(http, shown.agent, "SendMessage", message=message))[0].without(id)


async def cancel_a2a(http: httpx.AsyncClient, shown: Shown) -> Reply:
    """Cancel a task over A2A."""
    id = name_task(shown)
    return (await call_a2a(http, shown.agent, "CancelTask", id=id))[0].without(id)


# ADK's routes


async def start_adk(http: httpx.AsyncClient, agent: str) -> tuple[Reply, str, str]:
    """Create a session over ADK's routes, and run an agent in it."""
    created = await post_json(http, f"/apps/{agent}/users/user/sessions", {})
    if not created.accepted:
        return created, "", ""
    session: str = json.loads(created.text)["id"]
    reply = await run_adk(http, agent, session, {"text": "Pay."})
    return reply, session, json.loads(reply.text)[0]["invocationId"]


async def run_adk(http: httpx.AsyncClient, agent: str, session: str, part: Mapping[str, Any]) -> Reply:
    """Send a message over ADK's routes."""
    message = {"role": "user", "parts": [part]}
    return await post_json(
        http, "/run", {"appName": agent, "userId": "user", "sessionId": session, "newMessage": message}
    )


async def read_adk(http: httpx.AsyncClient, shown: Shown) -> Reply:
    """Read a session over ADK's routes."""
    response = await http.get(f"/apps/{shown.agent}/users/user/sessions/{shown.place}")
    return Reply(response.status_code, response.text, response.is_success)


async def answer_adk(http: httpx.AsyncClient, shown: Shown, answer: Mapping[str, Any]) -> Reply:
    """Confirm a call over ADK's routes. The third event of the invocation asks for it."""
    response = {"confirmed": answer["action"] != "reject"}
    name = {"id": f"{shown.call}-confirmation~3", "name": "adk_request_confirmation"}
    return await run_adk(http, shown.agent, shown.place, {"functionResponse": {**name, "response": response}})


INTERFACES: Mapping[str, Interface] = {
    "JSON API": Interface(start_json, read_json, answer_json, cancel_json, "api"),
    "AG-UI": Interface(start_ag_ui, run_ag_ui, answer_ag_ui, cancel_ag_ui, "ag-ui", is_personal=True),
    "MCP": Interface(start_mcp, read_mcp, answer_mcp, cancel_mcp, "mcp"),
    "A2A": Interface(start_a2a, read_a2a, answer_a2a, cancel_a2a, "a2a"),
    "ADK": Interface(start_adk, read_adk, answer_adk, None, "adk", has_digests=False, is_personal=True),
}
