"""Run one tool call.

A tool's exception, its time-out and whatever is wrong with its result are outcomes, not failures of the activity:
Temporal repeats failed activities, and with them the side effect.
"""

import asyncio
import inspect
import secrets
import time
from collections.abc import Sequence
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from waystation.activities.afterwards import afterwards
from waystation.activities.annotate import unknown_tool
from waystation.activities.approved import asking, refusal
from waystation.activities.around_tool import Attempt, after_agent_call, performed, with_transfer, without_tool
from waystation.activities.contexts import Contexts
from waystation.activities.heartbeat import TOOL_NEWS_INTERVAL_S, Heart, beating
from waystation.activities.hooks import Hooks
from waystation.activities.request import tools_for
from waystation.activities.sessions import Conversations
from waystation.activities.view import Logs
from waystation.agents.approval_rule import ApprovalRule
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Registry
from waystation.core import ids
from waystation.core.call import CallState
from waystation.core.conversation import Conversation
from waystation.core.entry import CallReturned
from waystation.core.errors import ForeignHistory, StoreFailed, UnknownAgent
from waystation.core.log import Log
from waystation.core.naming import a
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, copy_json
from waystation.core.settings import ActivitySettings
from waystation.core.tool_call import ToolCallInput, ToolOutcome
from waystation.tools.agent_tool import AgentTool
from waystation.tools.base_tool import BaseTool
from waystation.tools.outcome import failure_of, not_kept
from waystation.tools.places import place_of
from waystation.tools.services import NO_SERVICES, Services
from waystation.tools.tool_context import ToolContext

events = structlog.get_logger("waystation.activities")

DEFAULT_TIMEOUT_S = 600.0
STOP_GRACE_S = 2.0
MAX_BACKOFF_S = 30.0
READ_AGAIN_S = (1.0, 2.0, 4.0, 8.0)
"""When to read again what could not be read: together less than the grace that the server's timeout has."""
UNKNOWN = "Whether it took effect is unknown; it was not repeated."


class ToolCaller:
    """Carries out the activities named `<agent>.<tool>`."""

    def __init__(
        self,
        registry: Registry,
        views: Logs,
        sessions: Conversations,
        *,
        services: Services = NO_SERVICES,
        limits: ActivitySettings | None = None,
    ) -> None:
        self._registry, self._views, self._sessions, self._services = registry, views, sessions, services
        self._limits = limits or ActivitySettings()

    async def call(self, given: ToolCallInput) -> bytes:
        """Return an encoded `ToolOutcome`."""
        info = activity.info()
        with beating(TOOL_NEWS_INTERVAL_S) as heart:
            said = await self._known(given)
            log = said.log
            call = _meant(log, given)
            started = time.perf_counter()
            outcome = await self._run(given, call, said, heart)
            duration = round(time.perf_counter() - started, 4)
        outcome = outcome.model_copy(
            update={"function_call_id": call.id, "duration_s": duration, "mark": secrets.token_hex(3)}
        )
        data = outcome.encode()
        if len(data) > MAX_VALUE_BYTES:
            # Here, since the SDK's own failure to store would have the server repeat the activity, and so the tool.
            try:
                await self._views.keep(data)
            except Exception as error:  # noqa: BLE001  # whatever a store or a codec raises
                outcome = not_kept(outcome, error)
                data = outcome.encode()
        log_event = events.info if outcome.error_type is None else events.warning
        afterwards(
            log_event,
            "tool_call.completed",
            agent=call.agent,
            tool=call.name,
            function_call_id=call.id,
            invocation_id=log.invocation_id,
            attempt=info.attempt,
            duration_s=duration,
            error_type=outcome.error_type,
        )
        ref = ids.result(ids.performance(call.id, given.run), outcome.mark)
        afterwards(self._views.put, info.workflow_run_id or "", ref, CallReturned(outcome, given.run), len(data))
        return data

    async def _known(self, given: ToolCallInput) -> Conversation:
        """Return the conversation so far. What cannot be read is read again for a while: a call that must not be
        repeated has only this attempt.

        Raises:
            ApplicationError: It cannot be read. The tool did not run.
        """
        info = activity.info()
        for delay in (*READ_AGAIN_S, None):
            try:
                log = await self._views.at(info.workflow_id or "", info.workflow_run_id or "", given)
                return await self._sessions.conversation(log)
            except ForeignHistory as error:
                raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None
            except (StoreFailed, RPCError, ApplicationError) as error:
                if delay is None:
                    kind = error.type if isinstance(error, ApplicationError) else type(error).__name__
                    raise ApplicationError(f"{error} The tool did not run.", type=kind) from None
                events.warning("tool_call.held_up", invocation_id=info.workflow_id, problem=str(error))
            await asyncio.sleep(delay)
        raise AssertionError

    async def _run(self, given: ToolCallInput, call: CallState, said: Conversation, heart: Heart) -> ToolOutcome:
        try:
            root, agent = self._registry.find(given.root, call.agent)
        except UnknownAgent as error:
            # The agent was there when it made the call; a deploy has taken it away since.
            return _gone(given, call, str(error), "UnknownAgent")
        if not isinstance(agent, LlmAgent):  # it has become another kind of agent since
            return _gone(given, call, unknown_tool(call.name, {}), "UnknownTool")
        hooks, log = Hooks(agent, root.plugins_of(agent), self._limits.callback_timeout), said.log
        contexts = Contexts.of(
            log, log.works[call.turn], self._services, scopes_read=root.state_scopes, said=said, limits=self._limits
        )
        tool, failed = await _found(agent, contexts, call.name)
        running = _Running(hooks, call, contexts, given, heart, root.rules_of(agent))
        if tool is None:
            if failed:
                kind, away = "ToolsetFailed", ", ".join(failed)
                problem = f"`{call.name}` could not be run: {away} could not be asked for it. Call it again later."
            else:
                kind, problem = "UnknownTool", unknown_tool(call.name, await tools_for(agent, contexts))
            args = copy_json(call.args)
            found = await without_tool(hooks, call.name, args, running.context(1), problem)
            return found or _gone(given, call, problem, kind)
        returned = isinstance(tool, AgentTool) and call.provisional
        outcome = await (running.after_agent(tool, returned) if returned else running.outcome(tool))
        return with_transfer(outcome, agent, hooks)


async def _found(agent: LlmAgent, contexts: Contexts, name: str) -> tuple[BaseTool | None, list[str]]:
    """Return a tool, or the kinds of the toolsets that could not say whether they have it."""
    until = time.monotonic() + contexts.limits.toolset_retry.total_seconds()
    while True:
        failed = list[str]()
        tool = (await tools_for(agent, contexts, wanted=name, failed=failed)).get(name)
        if tool is not None or not failed or time.monotonic() >= until:
            return tool, failed
        await asyncio.sleep(1.0)


def _meant(log: Log, given: ToolCallInput) -> CallState:
    """Return the call that is to be carried out.

    Raises:
        ApplicationError: The activity is another's: a dynamic activity is given all that no other takes.
    """
    call, name = log.calls[given.function_call_id], activity.info().activity_type
    if name != f"{call.agent}.{call.name}":
        text = f"No activity is named {name!r} here; it is none of {call.agent!r} calling {call.name!r}."
        raise ApplicationError(text, type="UnknownActivity", non_retryable=True)
    return call


class _Running:
    """One call, while it is carried out."""

    def __init__(
        self,
        hooks: Hooks,
        call: CallState,
        contexts: Contexts,
        given: ToolCallInput,
        heart: Heart,
        rules: Sequence[ApprovalRule],
    ) -> None:
        self._heart, self._rules = heart, rules
        self._hooks, self._call, self._contexts, self._given = hooks, call, contexts, given
        self._aborted = False

    def context(self, attempt: int) -> ToolContext:
        """Return a context for an attempt."""
        return self._contexts.call(self._call, self._given, attempt, lambda: self._aborted, self._heart)

    async def after_agent(self, tool: BaseTool, child: ToolOutcome) -> ToolOutcome:
        """Pass what a called agent answered through the callbacks."""
        self._contexts = self._contexts.after(child.actions)
        return await after_agent_call(self._hooks, tool, copy_json(self._call.args), self.context(1), child)

    async def outcome(self, tool: BaseTool) -> ToolOutcome:
        """Run the tool with the callbacks around it."""
        context = self.context(activity.info().attempt)

        async def run(args: JsonObject) -> Attempt:
            if refused := await refusal(self._call, self._given, tool, args, context, self._rules):
                return Attempt(context, told=refused)
            return await self._attempts(tool, args, context)

        args = copy_json(self._call.args)
        outcome = await performed(self._hooks, tool, args, context, run)
        return asking(self._call, tool, args, outcome)

    async def _attempts(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> Attempt:
        """Run the tool, and again if it may be repeated within this attempt of the activity."""
        given, attempt = self._given, activity.info().attempt
        before, gone = context.state.delta()
        while True:
            done, repeatable = await self._attempt(tool, copy_json(args), context)
            if not repeatable or attempt > given.retries:
                return done
            if given.effect != "once":
                kind = type(done.raised).__name__
                # Benign: it is logged here, and the SDK's stack trace would add content.
                benign = ApplicationErrorCategory.BENIGN
                raise ApplicationError(f"{tool.name} raised; it is tried again.", type=kind, category=benign)
            # Within one attempt of the activity: an activity that may be repeated is also repeated when its worker
            # is lost, and then nobody knows whether the tool took effect.
            await asyncio.sleep(min(2.0 ** (attempt - 1), MAX_BACKOFF_S))
            attempt += 1
            # What the failed attempt wrote is forgotten, what callbacks wrote before it is not.
            context = self.context(attempt)
            context.state.update(before)
            for key in gone:
                context.state.pop(key, None)

    async def _attempt(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> tuple[Attempt, bool]:
        """Run the tool once; return what came of it, and whether it may be tried again."""
        call, limit = self._call, self._given.timeout_s or DEFAULT_TIMEOUT_S
        running = asyncio.create_task(_caught(tool, args, context))
        try:
            # Not asyncio.timeout: a tool that swallows its cancellation would never be left.
            done, _ = await asyncio.wait((running,), timeout=limit)
        except asyncio.CancelledError:
            self._aborted = True
            await _stop(running)
            if not running.done() or running.result()[1] is not None:
                await self._hooks.tool_cancelled(tool, args, context)
                if activity.is_worker_shutdown() and self._given.effect == "once":
                    text = f"The worker stopped while `{call.name}` ran. {UNKNOWN}"
                    return Attempt(context, raised=TimeoutError(text), told=_told(call, text, "OutcomeUnknown")), False
                raise
            done = {running}  # it returned all the same, and what it did has to be recorded
        if not done:
            self._aborted = True
            await _stop(running)
            text = f"`{call.name}` was stopped after {limit:g} s. {UNKNOWN}"
            return Attempt(context, raised=TimeoutError(text), told=_told(call, text, "Timeout")), False
        value, raised = running.result()
        if raised is None:
            return Attempt(context, value), False
        events.warning(
            "tool_call.raised",
            tool=tool.name,
            function_call_id=call.id,
            attempt=context.attempt,
            error_type=type(raised).__name__,
            place=place_of(raised),
        )
        told = failure_of(raised, context=context).model_copy(update={"fatal": tool.on_error == "raise"})
        return Attempt(context, raised=raised, told=told), True


async def _caught(tool: BaseTool, args: JsonObject, context: ToolContext) -> tuple[object, BaseException | None]:
    try:
        running: Any = tool.run_async(args=args, tool_context=context)
        if not inspect.isawaitable(running):
            raise TypeError(f"`run_async` of {type(tool).__name__} returned {a(running)}; make it an `async def`.")
        return await running, None
    except BaseException as error:  # noqa: BLE001  # author code raises anything, SystemExit too; see the module's docstring
        return None, error


async def _stop(running: asyncio.Task[tuple[object, BaseException | None]]) -> None:
    """Cancel a tool and give it a moment to clean up; one that does not end is left behind."""
    running.cancel()
    await asyncio.wait((running,), timeout=STOP_GRACE_S)


def _gone(given: ToolCallInput, call: CallState, problem: str, error_type: str) -> ToolOutcome:
    """Return the outcome of a call that cannot be carried out any more, though an earlier attempt may have been."""
    if activity.info().attempt == 1 or given.effect == "read":
        return _told(call, problem, error_type)
    return _told(call, f"An earlier attempt may have run `{call.name}`. {UNKNOWN} {problem}", "OutcomeUnknown")


def _told(call: CallState, text: str, error_type: str) -> ToolOutcome:
    response: JsonObject = {"error": text}
    if error_type != "UnknownTool":  # of which ADK says nothing else, see adk-semantics 1.6
        response["error_type"] = error_type
    return ToolOutcome(function_call_id=call.id, response=response, error_type=error_type)
