"""A thread of AG-UI: a session of one person, read anew for each run."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

from ag_ui.core import ActivityMessage, Interrupt, Message, MessagesSnapshotEvent

from waystation.client import Invocation, Session
from waystation.client.invocation_handle import PartialTextReader, stream_logs
from waystation.core.errors import UnknownSession
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.interfaces.ag_ui_events import find_state, select_state
from waystation.interfaces.ag_ui_interrupts import AWAITED, make_closed, make_interrupt, make_wait, may_accept
from waystation.interfaces.ag_ui_messages import PROGRESS, Subagent, make_messages
from waystation.interfaces.open_calls import OpenCall, find_open_calls
from waystation.web.inbox_pages import PAUSE_S
from waystation.web.logins import Login
from waystation.web.paths import format_call_path, root
from waystation.web.web_services import WebServices

MAX_INVOCATIONS = 100
"""A thread shows its latest invocations."""


class Thread:
    """What has happened in a thread, and what waits there, from the point of view of its person and one client."""

    def __init__(self, services: WebServices, login: Login, session: Session, tools: set[str]) -> None:
        """Create a thread. `tools` are those that the client can run."""
        self._services, self._login, self._session, self._tools = services, login, session, tools
        self.logs: dict[str, Log] = {}
        """The log of each invocation, by ID."""
        self.calls: list[OpenCall] = []
        self._waits: dict[str, ActivityMessage] = {}

    @property
    def running(self) -> list[str]:
        """The IDs of the invocations that have not ended."""
        return [id for id, log in self.logs.items() if not log.state.outcome.ended]

    @property
    def own(self) -> list[OpenCall]:
        """The calls that wait for the person."""
        return [call for call in self.calls if may_accept(call, self._login.subject)]

    @property
    def tool_calls(self) -> list[str]:
        """The IDs of the calls whose tools the client has to run, with the arguments that it has received."""
        return [
            call.view.id
            for call in self.own
            if call.view.pending.invocation_id in self.logs
            and "respond" in call.actions
            and call.view.pending.tool in self._tools
            and call.view.state.requested is None
        ]

    async def read(self) -> None:
        """Read the session."""
        try:
            logs = await self._session.logs(last=MAX_INVOCATIONS)
        except UnknownSession:  # it begins with its first message
            logs = []
        self.logs = {log.invocation_id: log for log in logs}
        await self.read_calls(logs)

    async def read_state(self) -> JsonObject:
        """Return the state of the session."""
        if running := self.running:
            return find_state(self.logs[running[0]])
        try:
            return select_state(await self._session.state())
        except UnknownSession:
            return {}

    async def read_calls(self, logs: Sequence[Log]) -> list[ActivityMessage]:
        """Read the calls that wait in invocations, and return the activities of those for others that have changed."""
        self.calls = await find_open_calls(self._services, self._login, self._session, logs)
        own, waits = self.own, dict[str, ActivityMessage]()
        for call in self.calls:
            if call not in own:
                wait = make_wait(call, tool_call_id=self._find_tool_call(call), link=self._format_link(call))
                waits[wait.id] = wait
        closed = [make_closed(wait) for id, wait in self._waits.items() if id not in waits]
        changed = [wait for id, wait in waits.items() if wait != self._waits.get(id)]
        self._waits = waits
        return [*closed, *changed]

    def make_interrupts(self, subagents: Sequence[Subagent], problems: dict[str, str]) -> list[Interrupt]:
        """Return the interrupts for the calls that wait for the person, with the problems of refused answers."""
        interrupts, tool_calls = [], self.tool_calls
        for call in self.own:
            id, pending = self._find_tool_call(call), call.view.pending
            if call.view.id not in tool_calls:
                subagent = next((each.id for each in subagents if each.name == pending.agent), None)
                interrupts.append(
                    make_interrupt(
                        call,
                        tool_call_id=id,
                        subagent=subagent if pending.invocation_id in self.logs else id,
                        link=self._format_link(call),
                        problem=problems.get(call.view.id, ""),
                    )
                )
        return interrupts

    def make_snapshot(self, added: Sequence[Message] = ()) -> MessagesSnapshotEvent:
        """Return all messages, with those of the client that no event contains yet."""
        messages = [message for log in self.logs.values() for message in make_messages(log)]
        known = {message.id for message in messages}
        messages += [message for message in added if message.id not in known]
        # The official client then removes those of our activities that are missing here.
        metadata = {"@ag-ui/client": {"authoritativeActivityTypes": [AWAITED, PROGRESS]}}
        return MessagesSnapshotEvent(messages=[*messages, *self._waits.values()], metadata=metadata)

    def _find_tool_call(self, call: OpenCall) -> str:
        """Return the ID of the call of this thread that waits, or that called the agent whose call waits."""
        id = call.view.id
        own = next(own for own in self.logs if id.startswith(f"{own}/"))
        return f"{own}/{id.removeprefix(f'{own}/').partition('/')[0]}"

    def _format_link(self, call: OpenCall) -> str:
        url = self._services.settings.url
        return (url.rstrip("/") if url else root()) + format_call_path(call.view.id)


async def watch(invocation: Invocation) -> AsyncGenerator[tuple[Log, PartialTextReader, bool]]:
    """Yield the log whenever it grows, with false.

    While called agents run, also yield it from time to time, with true, because their calls wait elsewhere.
    """
    async with aclosing(stream_logs(invocation, partial=True)) as logs:
        latest: tuple[Log, PartialTextReader] | None = None
        coming = asyncio.ensure_future(anext(logs, None))
        try:
            while True:
                has_called = latest is not None and any(
                    call.call.kind == "agent" for call in latest[0].state.performing()
                )
                done, _ = await asyncio.wait((coming,), timeout=PAUSE_S if has_called else None)
                if done:
                    if (latest := coming.result()) is None:
                        return
                    coming = asyncio.ensure_future(anext(logs, None))
                if latest is not None:
                    yield *latest, not done
        finally:
            coming.cancel()
            with suppress(asyncio.CancelledError):
                await coming


def is_idle(log: Log, calls: Sequence[OpenCall]) -> bool:
    """Return whether an invocation only waits, also in the agents that it called."""
    if log.state.models_in_flight or log.state.approvals.submitted:
        return False
    below = [f"{log.invocation_id}/{call.id}/" for call in log.state.performing()]
    return all(any(call.view.id.startswith(place) for call in calls) for place in below)
