"""Tools that send messages to a remote A2A agent and wait for its tasks. Requires the optional extra `a2a`.

Nothing that the remote agent sends is trusted: neither its card nor its replies.
"""

import asyncio
import base64
import hashlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from temporalio import activity

from waystation.core.errors import WaystationError
from waystation.core.payload import JsonObject
from waystation.tools import ToolContext, authorize
from waystation.tools.authorization import PENDING
from waystation.tools.outcome import CallHeld, OutcomeUnknown

try:
    import httpx
    from a2a.client import A2ACardResolver, Client, ClientCallContext, ClientConfig, ClientFactory
    from a2a.client.card_resolver import parse_agent_card
    from a2a.client.errors import A2AClientError
    from a2a.helpers import get_data_parts, get_text_parts
    from a2a.types import (
        AgentCard as AgentCard,
    )
    from a2a.types import (
        CancelTaskRequest,
        GetTaskRequest,
        Message,
        Part,
        Role,
        SendMessageRequest,
        Task,
        TaskState,
    )
    from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH as AGENT_CARD_WELL_KNOWN_PATH
    from a2a.utils.errors import A2AError, InternalError, InvalidAgentResponseError
except ModuleNotFoundError as error:
    raise ImportError("RemoteA2aAgent needs the package `a2a-sdk`; install `waystation[a2a]`.") from error

MAX_REPLY_BYTES = 16_000_000
"""Maximum size of a card or a reply, with all of its files."""
MAX_VALUES = 100_000
"""Maximum number of quotes, commas and brackets in a reply, because parsing many values would block the worker."""
_MARKS = (b'"', b",", b"[", b"{")
MAX_PARTS, MAX_TEXT_CHARS, MAX_FILE_BYTES, MAX_ID_CHARS, MAX_ERROR_CHARS = 100, 200_000, 8_000_000, 200, 500
"""Limits for a reply: the number of its parts, their text, each file, IDs, and reasons for errors."""
MAX_BAD_REPLIES = 5
"""How many replies in a row may be refusals or not acceptable before the wait for a task ends."""
SEND_AGAIN_AFTER_S = (1.0, 2.0, 4.0, 8.0, None)
"""Pauses before a message is sent again to an agent that cannot be reached."""
POLL_LIMIT_S = 30.0
CANCEL_LIMIT_S = 1.5
"""How long a canceled call may take to cancel its remote task. It is shorter than what a canceled tool may take."""
RUNNING = ("unspecified", "submitted", "working")
_STATES = {number: name.removeprefix("TASK_STATE_").lower() for name, number in TaskState.items()}
_ADDRESS = re.compile(r"https://[^/].*|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/.*)?")
"""As in ADK, messages and credentials are encrypted unless they stay on this machine."""
T = TypeVar("T")

Trouble: TypeAlias = Literal["unreachable", "lost", "garbled", "refused"]
"""Why a request has no result: it was not sent, its reply is lost, its reply is not acceptable, or the agent
refused it. Only `unreachable` and `refused` mean that it has no effect."""


class RemoteAgentFailed(WaystationError):
    """A remote agent cannot be reached, refused a request, or sent a reply that is not acceptable.

    Check the address of its card, its credential and its log.
    """

    def __init__(self, problem: str, trouble: Trouble = "garbled") -> None:
        self.trouble = trouble
        super().__init__(problem)


@dataclass
class Connection:
    """A connection for one call. The client is there as soon as the card was read."""

    http: httpx.AsyncClient
    context: ToolContext
    client: Client | None = None


class RemoteAgent:
    """A remote agent. Its public methods are tools."""

    def __init__(
        self,
        name: str,
        agent_card: Any,
        *,
        timeout_s: float,
        task_limit_s: float,
        poll_interval_s: float,
        repeatable: bool,
        auth: tuple[Any, Any, str | None] = (None, None, None),
    ) -> None:
        """Store the settings, and read the card unless it is a URL.

        Raises:
            ValueError: The card cannot be read, or has an address that is not allowed.
        """
        self.name, self._timeout_s, self._task_limit_s, self._auth = name, timeout_s, task_limit_s, auth
        self._poll_interval_s, self._repeatable = poll_interval_s, repeatable
        self.card: AgentCard | None = None
        self._url = agent_card.strip() if isinstance(agent_card, str) and "://" in agent_card else ""
        if not self._url:
            self.card = agent_card if isinstance(agent_card, AgentCard) else _read_card(agent_card)
        place = auth[0].get("in") if isinstance(auth[0], dict) else getattr(auth[0], "in_", None)
        if place in ("query", "cookie"):
            text = f"The credential of the agent {name!r} would be sent in a {place}, which A2A clients cannot do"
            raise ValueError(f"{text}; use a scheme that sends it in a header.")
        for url in [interface.url for interface in self.card.supported_interfaces] if self.card else [self._url]:
            if not _ADDRESS.fullmatch(url):
                text = f"The address {url!r} of the agent {name!r} is not allowed"
                raise ValueError(f"{text}; use https, or http on this machine.")

    async def send_message(self, message: str, tool_context: ToolContext, task_id: str = "") -> JsonObject | str:
        """Send a message to the remote agent."""
        sent = Message(
            # Operators look for this key if the outcome is unknown. All attempts send the same one.
            message_id=tool_context.idempotency_key,
            context_id=find_context_id(tool_context, self.name),
            task_id=task_id,
            role=Role.ROLE_USER,
            parts=[Part(text=message)],
        )
        async with self._open(tool_context) as connection:
            if connection is None:
                return PENDING

            async def request(client: Client, call: ClientCallContext) -> Any:
                [reply] = [reply async for reply in client.send_message(SendMessageRequest(message=sent), context=call)]
                return reply

            for pause in SEND_AGAIN_AFTER_S:
                try:
                    reply = await self._request(connection, request, self._timeout_s)
                    if reply.HasField("message"):
                        return {"state": "completed", **await _read_parts(reply.message.parts, tool_context)}
                    task = await _read_task(self._check(reply.task, task_id), tool_context)
                    return {**task, "until": round(time.time() + self._task_limit_s)}
                except RemoteAgentFailed as error:
                    was_sent = connection.client is not None and error.trouble in ("lost", "garbled")
                    if was_sent and not self._repeatable:
                        raise OutcomeUnknown(str(error)) from None
                    if error.trouble != "unreachable" or pause is None:
                        raise
                    await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def wait_for_task(self, task_id: str, tool_context: ToolContext, until: float = 0) -> JsonObject | str:
        """Wait until a task of the remote agent ends, or needs something."""
        until = until or time.time() + self._task_limit_s  # an operator who answers for a lost call may leave it out
        async with self._open(tool_context) as connection:
            if connection is None:
                return PENDING
            try:
                return await self._wait(connection, task_id, until)
            except asyncio.CancelledError:
                if not _is_interrupted():
                    await self._cancel(connection, task_id, CANCEL_LIMIT_S)
                raise

    async def cancel_task(self, task_id: str, tool_context: ToolContext) -> JsonObject | str:
        """Cancel a task of the remote agent."""
        async with self._open(tool_context) as connection:
            if connection is None:
                return PENDING
            await self._cancel(connection, task_id, POLL_LIMIT_S)
        return {"state": "canceled", "task_id": task_id}

    async def _wait(self, connection: Connection, task_id: str, until: float) -> JsonObject:
        context, pause, bad = connection.context, min(1.0, self._poll_interval_s), 0
        request = GetTaskRequest(id=task_id, history_length=1)
        while True:
            try:
                task = await self._request(
                    connection, lambda client, call: client.get_task(request, context=call), POLL_LIMIT_S
                )
                state, bad = _STATES.get(self._check(task, task_id).status.state, "working"), 0
            except RemoteAgentFailed as error:
                bad, state = (bad + 1 if error.trouble in ("garbled", "refused") else 0), "working"
                if bad == MAX_BAD_REPLIES:
                    return {"state": "lost", "task_id": task_id, "error": str(error)}
            else:
                context.heartbeat({"task_id": task_id, "state": state})
                if state == "auth_required" and not context.is_held:
                    text = f"The remote agent {self.name!r} waits for an authorization on its side."
                    raise CallHeld("remote_waits", text)
                # Once the authorization is there, a call that is not held waits for the rest.
                if state not in (*RUNNING, "auth_required") or (context.is_held and state != "auth_required"):
                    return {**await _read_task(task, context), "until": until}
            if time.time() > until:
                await self._cancel(connection, task_id, POLL_LIMIT_S)
                text = f"The task of the remote agent {self.name!r} took too long and was canceled."
                return {"state": "lost", "task_id": task_id, "error": text}
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, self._poll_interval_s)

    async def _cancel(self, connection: Connection, task_id: str, limit_s: float) -> None:
        request = CancelTaskRequest(id=task_id)
        with suppress(RemoteAgentFailed):  # the task may have ended
            await self._request(connection, lambda client, call: client.cancel_task(request, context=call), limit_s)

    def _check(self, task: Task, expected: str) -> Task:
        if not 0 < len(task.id) <= MAX_ID_CHARS or task.id != (expected or task.id):
            raise RemoteAgentFailed(f"The remote agent {self.name!r} replied with another task than was asked for.")
        return task

    @asynccontextmanager
    async def _open(self, context: ToolContext) -> AsyncIterator[Connection | None]:
        """Open a connection, or yield None after asking the user for a missing credential."""
        if await authorize(self.name, *self._auth, context, ask=True) is None:
            yield None
            return
        plain, hooks = {"Accept-Encoding": "identity"}, {"response": [_limit]}
        async with httpx.AsyncClient(headers=plain, event_hooks=hooks, timeout=POLL_LIMIT_S) as http:
            yield Connection(http, context)

    async def _connect(self, http: httpx.AsyncClient, headers: dict[str, str]) -> Client:
        bindings = ["JSONRPC", "HTTP+JSON"]
        config = ClientConfig(streaming=False, polling=True, httpx_client=http, supported_protocol_bindings=bindings)
        return ClientFactory(config).create(self.card or await self._fetch_card(http, headers))

    async def _fetch_card(self, http: httpx.AsyncClient, headers: dict[str, str]) -> AgentCard:
        url = httpx.URL(self._url)
        resolver = A2ACardResolver(http, f"{url.scheme}://{url.netloc.decode()}")
        card = await resolver.get_agent_card(url.path.strip("/") or None, http_kwargs={"headers": headers})
        for interface in card.supported_interfaces:
            to = httpx.URL(interface.url)
            if (to.scheme, to.host, to.port) != (url.scheme, url.host, url.port):
                text = f"The card at {self._url} sends requests to another host, {interface.url[:MAX_ERROR_CHARS]}."
                raise RemoteAgentFailed(f"{text} If that is right, save the card as a file, and pass its path.")
        return card

    async def _request(
        self, connection: Connection, request: Callable[[Client, ClientCallContext], Awaitable[T]], limit_s: float
    ) -> T:
        """Send a request with a fresh credential. The first one is preceded by that for the card.

        Raises:
            RemoteAgentFailed: There is no acceptable reply.
        """
        authorization = await authorize(self.name, *self._auth, connection.context, ask=True)
        headers = authorization.headers if authorization else {}
        with _translated(self.name):
            async with asyncio.timeout(limit_s):
                if connection.client is None:
                    connection.client = await self._connect(connection.http, headers)
                call = ClientCallContext(timeout=limit_s, service_parameters=headers)
                return await request(connection.client, call)


def find_context_id(context: ToolContext, agent: str) -> str:
    """Return the ID of the conversation with a remote agent: one for each session, person, tenant and app."""
    session = context.session
    about = json.dumps([context.tenant, session.app_name, session.user_id, session.id, agent])
    return str(uuid.UUID(bytes=hashlib.sha256(about.encode()).digest()[:16], version=4))  # some agents require a UUID


def _read_card(path: Any) -> AgentCard:
    try:
        return parse_agent_card(json.loads(Path(path).read_text(encoding="utf-8")))
    except Exception as error:  # noqa: BLE001  # protobuf raises errors of its own
        problem = f"The agent card {path!r} cannot be read ({type(error).__name__}: {error})."
        raise ValueError(f"{problem} Pass a URL, the path of a JSON file or an AgentCard.") from None


def _is_interrupted() -> bool:
    """Return whether another attempt will continue this call, because the worker stops or an operator intervened."""
    details = activity.cancellation_details() if activity.in_activity() else None
    is_stopping = activity.in_activity() and activity.is_worker_shutdown()
    return is_stopping or bool(details and (details.paused or details.reset))


async def _limit(response: httpx.Response) -> None:
    """Read a response up to the limit, and refuse one that leads elsewhere or is compressed."""
    if response.has_redirect_location or "Content-Encoding" in response.headers:
        raise RemoteAgentFailed("The remote agent redirects to another address, or compresses its reply.")
    body, values, stream = bytearray(), 0, response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    async for chunk in stream:
        body += chunk
        values += sum(map(chunk.count, _MARKS))
        if len(body) > MAX_REPLY_BYTES or values > MAX_VALUES:
            raise RemoteAgentFailed(f"A reply exceeds {MAX_REPLY_BYTES:,} bytes, or about {MAX_VALUES:,} values.")
    await stream.aclose()
    response.stream = httpx.ByteStream(bytes(body))


@contextmanager
def _translated(agent: str) -> Iterator[None]:
    """Convert what the client raises to `RemoteAgentFailed`."""
    try:
        yield
    except RemoteAgentFailed:
        raise
    except Exception as error:  # noqa: BLE001  # replies that are not valid raise anything
        trouble, reason = _find_trouble(error), f"{type(error).__name__}: {error}"
        text = f"The remote agent {agent!r} {_WORDS[trouble]} ({reason[:MAX_ERROR_CHARS]})."
        raise RemoteAgentFailed(text, trouble) from None


_WORDS: dict[Trouble, str] = {
    "unreachable": "cannot be reached",
    "lost": "did not reply",
    "garbled": "sent a reply that is not acceptable",
    "refused": "refused the request",
}


def _find_trouble(error: Exception) -> Trouble:
    # What `asyncio.timeout` raises is caused by the cancellation.
    cause = error if isinstance(error, TimeoutError) else error.__cause__ or error
    if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.UnsupportedProtocol):
        return "unreachable"
    if isinstance(cause, httpx.HTTPStatusError):
        return "refused" if cause.response.status_code < 500 else "lost"
    # After an internal error, the agent may have worked.
    if isinstance(cause, httpx.HTTPError | TimeoutError | InternalError | InvalidAgentResponseError):
        return "lost"
    # The client also raises its base class for a reply that is not JSON-RPC, and for errors that A2A does not define.
    return "refused" if isinstance(cause, A2AError) and type(cause) is not A2AClientError else "garbled"


async def _read_task(task: Task, context: ToolContext) -> JsonObject:
    """Return the state of a task and, if it does not run, what it has to say."""
    about: JsonObject = {"state": _STATES.get(task.status.state, "working"), "task_id": task.id}
    if about["state"] in RUNNING:
        return about
    artifacts = task.artifacts if about["state"] == "completed" else ()
    said = [message for message in task.history if message.role == Role.ROLE_AGENT]
    parts = [part for artifact in artifacts for part in artifact.parts] or task.status.message.parts
    read = await _read_parts(parts or (said[-1].parts if said else ()), context)
    if about["state"] in ("failed", "canceled", "rejected"):
        return {**about, "error": f"The remote agent reports that the task is {about['state']}. {read['text']}".strip()}
    return about | read


async def _read_parts(parts: Any, context: ToolContext) -> JsonObject:
    """Return the text and data of a reply, and save its files as artifacts."""
    parts = list(parts)[:MAX_PARTS]
    text, data = "\n\n".join(get_text_parts(parts)), get_data_parts(parts)
    files = [await _save(part, context) for part in parts if part.HasField("raw")]
    files += [f"{part.url[:MAX_ERROR_CHARS]} (not fetched)" for part in parts if part.HasField("url")]
    read = {"text": text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]} … (cut)"}
    return {**read, "data": data, "files": files}


async def _save(part: Part, context: ToolContext) -> str:
    # A name of the remote agent must neither replace a file of ours nor reach the user's other sessions.
    name = f"{context.agent_name}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', part.filename)[:MAX_ID_CHARS] or 'file'}"
    if len(part.raw) > MAX_FILE_BYTES:
        return f"{name} (not kept, because it has {len(part.raw):,} bytes)"
    kind = part.media_type if re.fullmatch(r"[\w.+-]+/[\w.+-]+", part.media_type) else "application/octet-stream"
    content = {"inlineData": {"data": base64.b64encode(part.raw).decode(), "mimeType": kind}}
    try:
        return f"{name} (artifact, version {await context.save_artifact(name, content)})"
    except ValueError:
        return f"{name} (not kept, because the worker has no artifact service)"
