"""The AG-UI interface: `POST /agui/{agent}` runs an agent in a thread, and streams what happens there.

A thread is a session of the person who is logged in, and nothing about it is kept in memory: every request reads the
session, does what its input asks for, and follows the session's open invocations.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import structlog
from ag_ui.core import (
    PROTOCOL_VERSION,
    ActivityMessage,
    BaseEvent,
    CustomEvent,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
    ResumeEntry,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateSnapshotEvent,
    ToolMessage,
    UserMessage,
)
from pydantic import ValidationError
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError

from waystation.client import Invocation, Session
from waystation.client.invocation_handle import PartialTextReader, new_events, stream_logs
from waystation.core.contract import DEFAULT_APP
from waystation.core.errors import AnswerRefused, InvalidInput, UnknownSession, WaystationError
from waystation.core.log import Log
from waystation.core.payload import JsonObject, decode_foreign, describe_faults, digest, repeated_key
from waystation.interfaces.ag_ui_events import (
    MESSAGE_ID,
    PROGRESS,
    InvocationMessages,
    RunEvents,
    Subagent,
    count_tokens,
    find_state,
    make_messages,
    name_result,
    parse_content,
    select_state,
    show_activity,
)
from waystation.interfaces.ag_ui_interrupts import (
    AWAITED,
    make_closed,
    make_interrupt,
    make_wait,
    may_accept,
    parse_answer,
    parse_result,
    parse_shown,
)
from waystation.interfaces.open_calls import OpenCall, find_open_calls
from waystation.web.call_answers import CallView, unknown_call
from waystation.web.call_api import AnswerFields, RefusedAnswer, Unconfirmed, make_recorded
from waystation.web.http_responses import RequestRefused, to_refused
from waystation.web.inbox_pages import PAUSE_S
from waystation.web.logins import Login
from waystation.web.paths import format_call_path, root
from waystation.web.route_table import RouteRow
from waystation.web.starter import AppName
from waystation.web.typed_routes import JSON, Body
from waystation.web.web_services import WebServices

log = structlog.get_logger("waystation.interfaces")

MAX_INVOCATIONS = 100
"""A thread shows its latest invocations."""
CONFIRM_WITHIN = timedelta(seconds=15)
CONTEXT = "temp:ag_ui_context"
"""The state key with the context that the client gives to a run."""
OURS = "waystation"
"""Key in `forwardedProps` of what only this server understands."""
ANSWERED = "waystation:answered"
"""Name of the event about an interrupt that has been answered already."""


class RunQuery(Body):
    """How a run is handled."""

    app: AppName = DEFAULT_APP
    strict: bool = True
    """Whether a message is refused while the thread waits for this person. Otherwise it is queued."""


class RunProps(Body):
    """Requests that only clients of Waystation make."""

    seen: tuple[str, ...] = ()
    """The interrupts and pending tool calls that the client shows. The run stays open until these change."""
    cancel: bool = False
    """Whether to cancel what runs in the thread."""


def make_rows(services: WebServices) -> Sequence[RouteRow]:
    """Return the routes of the interface."""

    async def run(request: Request) -> Response:
        query, input, props = parse_request(dict(request.query_params), await request.body())
        login, agent = request.state.login, request.path_params["agent"]
        session = services.starter.session(login, input.thread_id, agent=agent, app=query.app)
        run = AgUiRun(services, login, session, input, props, is_strict=query.strict)
        # Done before the response begins, so that it does not depend on whether the client stays.
        await run.begin()
        return services.invocations.respond(login, encode_events(run.stream()))

    return [RouteRow("POST", "/agui/{agent}", run, "author", accepts=(JSON,))]


def parse_request(params: JsonObject, data: bytes) -> tuple[RunQuery, RunAgentInput, RunProps]:
    """Parse the parameters and the body of a request.

    Raises:
        InvalidInput: They are not those of a run, or the body has a repeated key.
    """
    try:
        input = RunAgentInput.model_validate(decode_foreign(data))
        forwarded = input.forwarded_props if isinstance(input.forwarded_props, dict) else {}
        props, query = RunProps.model_validate(forwarded.get(OURS) or {}), RunQuery.model_validate(params)
    except ValidationError as error:
        raise InvalidInput(f"The input is invalid: {describe_faults(error)}.") from None
    except ValueError:
        raise InvalidInput("The input is not JSON; send a `RunAgentInput` of AG-UI.") from None
    if (key := repeated_key(data)) is not None:
        raise InvalidInput(f"The input contains the key {key[:100]!r} twice in the same object. Send it only once.")
    return query, input, props


async def encode_events(events: AsyncGenerator[BaseEvent]) -> AsyncGenerator[ServerSentEvent]:
    """Yield events as server-sent events."""
    async with aclosing(events):
        async for event in events:
            yield ServerSentEvent(event.model_dump_json(by_alias=True), sep="\n")  # other ends of lines are not allowed


class AgUiThread:
    """A thread with the calls that wait there, from the point of view of its person and one client."""

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
            if call.view.id not in tool_calls or call.view.id in problems:
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


class AgUiRun:
    """One run of AG-UI in a thread."""

    def __init__(
        self,
        services: WebServices,
        login: Login,
        session: Session,
        input: RunAgentInput,
        props: RunProps,
        *,
        is_strict: bool,
    ) -> None:
        self._services, self._login, self._session = services, login, session
        self._input, self._props, self._is_strict = input, props, is_strict
        self._thread = AgUiThread(services, login, session, {tool.name for tool in input.tools or ()})
        self._sent: dict[str, Invocation] = {}
        self._added: list[Message] = []
        """The messages of this input that have counted. No event may contain them yet."""
        self._covered: list[CustomEvent] = []
        self._problems: dict[str, str] = {}
        """Why answers were refused, by interrupt."""
        self._end: RunFinishedEvent | RunErrorEvent = self._finish(RunFinishedSuccessOutcome())

    async def begin(self) -> None:
        """Give the answers, results and messages of the input to the thread."""
        try:
            await self._thread.read()
            await self._give_answers()
            if self._input.resume or self._added:
                # The logs stay as they were, so that the run streams the results of the answers.
                await self._thread.read_calls(list(self._thread.logs.values()))
            self._check_problems()
            if self._props.cancel:
                await self._cancel()
            await self._send_messages()
        except (RequestRefused, WaystationError, RPCError) as error:
            refused = to_refused(error)
            self._end = RunErrorEvent(message=refused.message, code=refused.kind)

    async def stream(self) -> AsyncGenerator[BaseEvent]:
        """Yield the events of the run."""
        yield RunStartedEvent(
            thread_id=self._input.thread_id,
            run_id=self._input.run_id,
            parent_run_id=self._input.parent_run_id,
            protocol_version=PROTOCOL_VERSION,
        )
        if isinstance(self._end, RunErrorEvent):
            yield self._end
            return
        thread, client = self._thread, self._services.client
        try:
            state, snapshot = await thread.read_state(), thread.make_snapshot(self._added)
            known = {message.id for message in snapshot.messages}
            for event in (StateSnapshotEvent(snapshot=state), snapshot, *self._covered):
                yield event
            started = [Invocation.from_id(client, id) for id in thread.running]
            for invocation in (*started, *(each for id, each in self._sent.items() if id not in thread.logs)):
                async with aclosing(self._follow(invocation, known, state)) as events:
                    async for event in events:
                        yield event
                if not thread.logs[invocation.id].state.outcome.ended:
                    break
            yield self._end
        except (RPCError, WaystationError) as error:
            # Just end the stream: the run has not failed, and the client reads the thread again.
            log.warning("stream.broken", session_id=self._session.id, error_type=type(error).__name__)

    async def _give_answers(self) -> None:
        """Answer the calls of interrupts, and those of tools that the client has run."""
        answers, pending = self._services.approvals.answers, set(self._thread.tool_calls)
        given: dict[str, ResumeEntry | ToolMessage] = {
            message.tool_call_id: message
            for message in self._input.messages
            if isinstance(message, ToolMessage) and message.tool_call_id in pending
        }
        entries = self._input.resume or []
        if len({entry.interrupt_id for entry in entries}) < len(entries):
            raise InvalidInput("The `resume` answers the same interrupt twice. Send one entry for each.")
        given |= {entry.interrupt_id: entry for entry in entries}
        answers.check_count(list(given))
        if strangers := [id for id in given if not any(id.startswith(f"{own}/") for own in self._thread.logs)]:
            raise unknown_call(strangers[0])
        views = await answers.view_all(self._login, list(given))
        if refused := [view for view in views if isinstance(view, RequestRefused)]:
            raise refused[0]
        for view in (view for view in views if isinstance(view, CallView)):
            answer = given[view.id]
            await self._give_answer(view, answer)
            if isinstance(answer, ToolMessage) and view.id not in self._problems:
                self._added.append(answer.model_copy(update={"id": name_result(view.id)}))

    async def _give_answer(self, view: CallView, given: ResumeEntry | ToolMessage) -> None:
        if view.standing == "open":
            try:
                fields = parse_result(given) if isinstance(given, ToolMessage) else parse_answer(given, view.pending)
                outcome = await self._send_answer(view, fields, given.metadata)
            except AnswerRefused as error:
                self._problems[view.id] = str(error)
                return
            if outcome is None:
                return
            self._problems[view.id] = outcome.problem.detail
            view = await self._services.approvals.answers.view(self._login, view.id)
        is_abandoned = isinstance(given, ResumeEntry) and given.status == "cancelled"
        if view.standing == "expired" and not is_abandoned:
            self._problems[view.id] = view.decision
        elif view.standing != "open":  # someone else was faster, or the client repeats itself
            self._problems.pop(view.id, None)
            self._covered.append(make_covered(view))

    async def _send_answer(
        self, view: CallView, fields: AnswerFields, metadata: JsonObject | None
    ) -> RefusedAnswer | None:
        """Send an answer, and return its refusal, if any. Repeated by the same person, it counts once."""
        shown = parse_shown(metadata, view.state, fields.action)
        key = digest([self._login.subject, fields.model_dump(mode="json"), shown.model_dump(mode="json")])
        [outcome] = await self._services.calls.answer(self._login, {view.id: (view, shown)}, fields, f"ag-ui-{key}")
        if isinstance(outcome, Unconfirmed):
            raise RequestRefused(HTTPStatus.ACCEPTED, "AnswerUnconfirmed", outcome.detail)
        return outcome if isinstance(outcome, RefusedAnswer) else None

    def _check_problems(self) -> None:
        """Check that the person can still answer the calls whose answers were refused; their interrupts say why.

        Raises:
            Refused: An answer was refused whose call does not wait for the person.
        """
        own = {call.view.id for call in self._thread.own}
        if refused := [problem for id, problem in self._problems.items() if id not in own]:
            raise RequestRefused(HTTPStatus.CONFLICT, "AnswerRefused", " ".join(refused))

    async def _cancel(self) -> None:
        for id in self._thread.running:
            await Invocation.from_id(self._services.client, id).cancel()
            log.info("invocation.cancel_requested", invocation_id=id, by=self._login.subject)

    async def _send_messages(self) -> None:
        known = {message.id for each in self._thread.logs.values() for message in make_messages(each)}
        messages = [message for message in find_latest(self._input.messages) if message.id not in known]
        if messages and self._is_strict and (own := self._thread.own):
            remedy = " ".join(self._problems.values()) or "Send `resume` with answers, or the results of the tools."
            text = f"{len(own)} calls of this thread wait for you, so the message was not sent. {remedy}"
            raise RequestRefused(HTTPStatus.CONFLICT, "OpenInterrupts", text)
        context = [f"{each.description}: {each.value}" for each in self._input.context or ()]
        for message in messages:
            sent = await self._services.starter.send(
                self._login,
                self._session,
                parse_content(message),
                message_id=message.id,
                agent=self._session.given.agent,
                state={CONTEXT: "\n".join(context)} if context else None,
                metadata={MESSAGE_ID: message.id},
                streaming=True,
                confirm_within=CONFIRM_WITHIN,
            )
            self._sent[sent.id] = sent
            self._added.append(message)

    async def _follow(self, invocation: Invocation, known: set[str], state: JsonObject) -> AsyncGenerator[BaseEvent]:
        """Yield events until the invocation has ended, or waits for this person."""
        thread, run, start, read, waits = self._thread, RunEvents(InvocationMessages(), known, state), 0, 0, None
        if earlier := thread.logs.get(invocation.id):
            start, read = len(earlier.state.events), len(earlier.entries)
            run.messages.take_all(earlier)
        async with aclosing(watch(invocation)) as updates:
            async for current, pieces, is_polled in updates:
                thread.logs[invocation.id] = current
                recorded, start = new_events(current, start, pieces), max(start, len(current.state.events))
                for event in run.feed(current, recorded):  # the log may grow in the meantime
                    yield event
                if run.is_stale:
                    run.is_stale, snapshot = False, thread.make_snapshot(self._added)
                    known.update(message.id for message in snapshot.messages)
                    yield snapshot
                pending = current.state.pending()
                if is_polled or pending != waits:
                    waits = pending
                    for activity in await thread.read_calls([current]):
                        yield show_activity(activity)
                if start == len(current.state.events) and self._is_over(current):
                    interrupts = thread.make_interrupts(run.messages.active, self._problems)
                    for event in run.end(interrupts):
                        yield event
                    yield StateSnapshotEvent(snapshot=run.state)
                    yield thread.make_snapshot(self._added)
                    outcome: RunFinishedOutcome = RunFinishedSuccessOutcome(pending_tool_call_ids=thread.tool_calls)
                    if interrupts:
                        outcome = RunFinishedInterruptOutcome(interrupts=interrupts)
                    self._end = self._finish(outcome, usage=count_tokens(current, read))
                    return
        for event in run.end():
            yield event
        self._end = self._conclude(thread.logs[invocation.id], read)

    def _is_over(self, current: Log) -> bool:
        """Return whether only calls are left that wait for this person, and that the client does not show already."""
        own = {call.view.id for call in self._thread.own}
        is_new = bool(own) and own != set(self._props.seen) and not self._props.cancel
        return is_new and is_idle(current, self._thread.calls)

    def _conclude(self, ended: Log, read: int) -> RunFinishedEvent | RunErrorEvent:
        outcome, usage = ended.state.outcome, count_tokens(ended, read)
        result, failure, last = ended.state.result(), outcome.failure, outcome.last_said
        if outcome.ended in ("cancelled", "terminated"):
            return self._finish(RunFinishedCancelledOutcome(), usage=usage)
        if outcome.ended != "completed":
            text = failure.message if failure else f"The invocation has {str(outcome.ended).replace('_', ' ')}."
            return RunErrorEvent(message=text, code=failure.error_type if failure else None, usage=usage)
        if result.status == "stopped" and last and last.error_code:
            return RunErrorEvent(message=result.reason or last.error_code, code=last.error_code, usage=usage)
        if result.status == "stopped":  # by its budget
            return self._finish(RunFinishedCancelledOutcome(), usage=usage, metadata={OURS: {"reason": result.reason}})
        return self._finish(RunFinishedSuccessOutcome(), usage=usage, result=result.output)

    def _finish(self, outcome: RunFinishedOutcome, **fields: Any) -> RunFinishedEvent:
        return RunFinishedEvent(thread_id=self._input.thread_id, run_id=self._input.run_id, outcome=outcome, **fields)


def find_latest(messages: Sequence[Message]) -> list[UserMessage]:
    """Return the user's messages since the agent's last one. What precedes it has been answered."""
    latest = list(itertools.takewhile(lambda message: message.role != "assistant", reversed(messages)))
    return [message for message in reversed(latest) if isinstance(message, UserMessage)]


def make_covered(view: CallView) -> CustomEvent:
    """Return the event about an interrupt that no longer waits, with the recorded answer."""
    answer = make_recorded(view.state)
    recorded = answer.model_dump(mode="json") if answer else None
    return CustomEvent(name=ANSWERED, value={"interruptId": view.id, "answer": recorded, "text": view.decision})
