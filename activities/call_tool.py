"""Run one tool call.

A tool's exception, its time-out and whatever is wrong with its result are outcomes, not failures of the activity:
Temporal repeats failed activities, and with them the side effect.
"""

import asyncio
import secrets
import threading
import time

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.annotate import unknown_tool
from activities.heartbeat import beating
from activities.view import Views
from tools import failure_of, outcome_of, tools_of
from tools.base import BaseTool
from tools.context import ToolContext
from waystation.agents.registry import Registry
from waystation.core import ids
from waystation.core.call import CallState
from waystation.core.entry import CallReturned
from waystation.core.errors import ForeignHistory, UnknownAgent
from waystation.core.event import ToolConfirmation
from waystation.core.log import Log
from waystation.core.payload import JsonObject, copy_json
from waystation.core.wire import ToolCallInput, ToolOutcome

events = structlog.get_logger("waystation.activities")

DEFAULT_TIMEOUT_S = 600.0
STOP_GRACE_S = 2.0
MAX_BACKOFF_S = 30.0
UNKNOWN = "Whether it took effect is unknown; it was not repeated."


class ToolCaller:
    """Carries out the activities named `<agent>.<tool>`."""

    def __init__(self, registry: Registry, views: Views) -> None:
        self._registry, self._views = registry, views

    async def call(self, given: ToolCallInput) -> bytes:
        """Return an encoded `ToolOutcome`."""
        info = activity.info()
        try:
            log = await self._views.at(info.workflow_id or "", info.workflow_run_id or "", given)
        except ForeignHistory as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None
        call = log.calls[given.function_call_id]
        started = time.perf_counter()
        outcome = await self._run(given, call, log)
        duration = round(time.perf_counter() - started, 4)
        outcome = outcome.model_copy(
            update={"function_call_id": call.id, "duration_s": duration, "mark": secrets.token_hex(3)}
        )
        log_event = events.info if outcome.error_type is None else events.warning
        log_event(
            "tool_call.completed",
            agent=call.agent,
            tool=call.name,
            function_call_id=call.id,
            invocation_id=log.invocation_id,
            attempt=info.attempt,
            duration_s=duration,
            error_type=outcome.error_type,
        )
        data = outcome.encode()
        ref = ids.result(ids.performance(call.id, given.run), outcome.mark)
        self._views.put(info.workflow_run_id or "", ref, CallReturned(outcome, given.run), len(data))
        return data

    async def _run(self, given: ToolCallInput, call: CallState, log: Log) -> ToolOutcome:
        try:
            _, agent = self._registry.find(given.root, call.agent)
        except UnknownAgent as error:
            # The agent was there when it made the call; a deploy has taken it away since.
            return _told(call, str(error), "UnknownAgent")
        tools = tools_of(agent)
        tool = tools.get(call.name)
        if tool is None:
            return _told(call, unknown_tool(call.name, tools), "UnknownTool")
        with beating():
            return await _outcome(tool, call, log, given)


async def _outcome(tool: BaseTool, call: CallState, log: Log, given: ToolCallInput) -> ToolOutcome:
    """Run the tool, and again if it may be repeated within this attempt of the activity."""
    attempt = activity.info().attempt
    while True:
        aborted = threading.Event()
        context = _context(call, log, given, attempt, aborted)
        outcome, raised = await _attempt(tool, call, given, context, aborted)
        if raised is None or attempt > given.retries:
            return outcome
        if given.effect != "once":
            kind = outcome.error_type or "Error"
            events.warning(
                "tool_call.raised", tool=call.name, function_call_id=call.id, attempt=attempt, error_type=kind
            )
            # Benign: it is logged here, and the SDK's stack trace would add content.
            benign = ApplicationErrorCategory.BENIGN
            raise ApplicationError(f"{tool.name} raised; it is tried again.", type=kind, category=benign)
        # Within one attempt of the activity: an activity that may be repeated is also repeated when its worker
        # is lost, and then nobody knows whether the tool took effect.
        await asyncio.sleep(min(2.0 ** (attempt - 1), MAX_BACKOFF_S))
        attempt += 1


async def _attempt(
    tool: BaseTool, call: CallState, given: ToolCallInput, context: ToolContext, aborted: threading.Event
) -> tuple[ToolOutcome, BaseException | None]:
    """Run the tool once; return what the model may be told, and the tool's own exception."""
    limit = given.timeout_s or DEFAULT_TIMEOUT_S
    running = asyncio.create_task(_caught(tool, copy_json(call.args), context))
    try:
        # Not asyncio.timeout: a tool that swallows its cancellation would never be left.
        done, _ = await asyncio.wait((running,), timeout=limit)
    except asyncio.CancelledError:
        aborted.set()
        await _stop(running)
        if not running.done() or running.result()[1] is not None:
            if activity.is_worker_shutdown() and given.effect == "once":
                text = f"The worker stopped while `{call.name}` ran. {UNKNOWN}"
                return _told(call, text, "OutcomeUnknown"), None
            raise
        done = {running}  # it returned all the same, and what it did has to be recorded
    if not done:
        aborted.set()
        await _stop(running)
        return _told(call, f"`{call.name}` was stopped after {limit:g} s. {UNKNOWN}", "Timeout"), None
    value, raised = running.result()
    if raised is not None:
        outcome = failure_of(raised, context=context)
        return outcome.model_copy(update={"fatal": tool.on_error == "raise"}), raised
    return outcome_of(value, context=context, long_running=tool.is_long_running), None


async def _caught(tool: BaseTool, args: JsonObject, context: ToolContext) -> tuple[object, BaseException | None]:
    try:
        return await tool.run_async(args=args, tool_context=context), None
    except BaseException as error:  # noqa: BLE001  # author code raises anything, SystemExit too; see the module's docstring
        return None, error


async def _stop(running: asyncio.Task[tuple[object, BaseException | None]]) -> None:
    """Cancel a tool and give it a moment to clean up; one that does not end is left behind."""
    running.cancel()
    await asyncio.wait((running,), timeout=STOP_GRACE_S)


def _told(call: CallState, text: str, error_type: str) -> ToolOutcome:
    return ToolOutcome(
        function_call_id=call.id, response={"error": text, "error_type": error_type}, error_type=error_type
    )


def _context(call: CallState, log: Log, given: ToolCallInput, attempt: int, aborted: threading.Event) -> ToolContext:
    started = log.input
    confirmation = given.confirmation or call.tool_confirmation()
    loop = asyncio.get_running_loop()
    beat = activity.heartbeat
    user = next((event.content for event in log.events if event.author == "user"), None)

    def heartbeat(*details: object) -> None:
        loop.call_soon_threadsafe(beat, *details)

    return ToolContext(
        state=log.state,
        tool_name=call.name,
        function_call_id=call.id,
        invocation_id=log.invocation_id,
        agent_name=call.agent,
        user_id=started.user_id if started else "",
        session_id=started.session_id if started else None,
        idempotency_key=ids.idempotency_key(log.invocation_id, call.id),
        attempt=attempt,
        tool_confirmation=ToolConfirmation.model_validate(confirmation) if confirmation else None,
        user_content=user,
        heartbeat=heartbeat,
        is_aborted=aborted.is_set,
    )
