"""Run one tool call.

A tool's exception, its time-out and whatever is wrong with its result are outcomes, not failures of the activity:
Temporal repeats failed activities, and with them the side effect.
"""

import asyncio
import functools
import inspect
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from waystation.activities.activity_attempt import TOOL_NEWS_INTERVAL_S, Heart, beating
from waystation.activities.approval_checks import bind_approval, refusal
from waystation.activities.callbacks import (
    Attempt,
    Hooks,
    raised_outcome,
    run_after_agent,
    run_with_callbacks,
    with_transfer,
)
from waystation.activities.contexts import Contexts, tools_for, unknown_tool
from waystation.activities.log_cache import Logs
from waystation.activities.session_history import Conversations
from waystation.agents import ApprovalRule, LlmAgent
from waystation.agents.registry import Registry
from waystation.core import (
    MAX_VALUE_BYTES,
    ActivitySettings,
    CallRef,
    CallReturned,
    CallState,
    Conversation,
    ForeignHistory,
    JsonObject,
    Log,
    StoreFailed,
    ToolCallInput,
    ToolOutcome,
    UnknownAgent,
    a,
    copy_json,
)
from waystation.tools import AgentTool, BaseTool, ToolContext
from waystation.tools.outcome import not_kept
from waystation.tools.places import place_of
from waystation.tools.services import NO_SERVICES, Services

events = structlog.get_logger("waystation.activities")

DEFAULT_TIMEOUT_S = 600.0
STOP_GRACE_S = 2.0
MAX_BACKOFF_S = 30.0
READ_AGAIN_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts to read the history: together less than the grace that the server's timeout has."""
UNKNOWN = "Whether it took effect is unknown; it was not repeated."


class ToolCaller:
    """Carries out the activities named `<agent>.<tool>`."""

    def __init__(
        self,
        registry: Registry,
        logs: Logs,
        sessions: Conversations,
        *,
        services: Services = NO_SERVICES,
        limits: ActivitySettings | None = None,
    ) -> None:
        self._registry, self._logs, self._sessions, self._services = registry, logs, sessions, services
        self._limits = limits or ActivitySettings()

    async def call(self, params: ToolCallInput) -> bytes:
        """Return an encoded `ToolOutcome`."""
        with beating(TOOL_NEWS_INTERVAL_S) as heart:
            conversation = await self._conversation(params)
            call = _find_call(conversation.log, params)
            started = time.perf_counter()
            outcome = await self._run(params, call, conversation, heart)
            duration = round(time.perf_counter() - started, 4)
        outcome = outcome.model_copy(
            update={"function_call_id": call.id, "duration_s": duration, "mark": secrets.token_hex(3)}
        )
        data = outcome.encode()
        if len(data) > MAX_VALUE_BYTES:
            # Here, since the SDK's own failure to store would have the server repeat the activity, and so the tool.
            try:
                await self._logs.keep(data)
            except Exception as error:  # noqa: BLE001  # whatever a store or a codec raises
                outcome = not_kept(outcome, error)
                data = outcome.encode()
        # Called when the SDK waits for the server to take the result: it delays nobody.
        asyncio.get_running_loop().call_soon(self._report, activity.info(), call, params.run, outcome, len(data))
        return data

    def _report(self, info: activity.Info, call: CallState, run: int, outcome: ToolOutcome, size: int) -> None:
        ref = CallRef(call.id, run, outcome.mark)
        self._logs.put(info.workflow_run_id or "", ref, CallReturned(outcome, run), size)
        log = events.info if outcome.error_type is None else events.warning
        log(
            "tool_call.completed",
            agent=call.agent,
            tool=call.name,
            function_call_id=call.id,
            invocation_id=info.workflow_id,
            attempt=info.attempt,
            duration_s=outcome.duration_s,
            error_type=outcome.error_type,
        )

    async def _conversation(self, params: ToolCallInput) -> Conversation:
        """Return the conversation so far. Reading is repeated here, for a while: a call that must not be repeated has
        only this attempt.

        Raises:
            ApplicationError: It cannot be read. The tool did not run.
        """
        info = activity.info()
        for delay in (*READ_AGAIN_S, None):
            try:
                log = await self._logs.at(info.workflow_id or "", info.workflow_run_id or "", params)
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

    async def _run(
        self, params: ToolCallInput, call: CallState, conversation: Conversation, heart: Heart
    ) -> ToolOutcome:
        try:
            root, agent = self._registry.find(params.root, call.agent)
        except UnknownAgent as error:
            # The agent was there when it made the call; a deploy has taken it away since.
            return _gone(params, call, str(error), "UnknownAgent")
        if not isinstance(agent, LlmAgent):  # it has become another kind of agent since
            return _gone(params, call, unknown_tool(call.name, {}), "UnknownTool")
        log = conversation.log
        contexts = Contexts.of(
            conversation,
            log.state.runs[call.turn],
            self._services,
            scopes_read=root.state_scopes,
            limits=self._limits,
        )
        hooks = Hooks(agent, root.plugins_of(agent), self._limits.callback_timeout)
        run = _ToolRun(params, call, contexts, hooks, root.rules_of(agent), heart)
        tool = await _find_tool(agent, contexts, call.name)
        if isinstance(tool, _NoTool):
            return await run.without_tool(tool.problem, _gone(params, call, tool.problem, tool.error_type))
        if isinstance(tool, AgentTool) and call.provisional:
            outcome = await run.after_agent(tool, call.provisional)
        else:
            outcome = await run.outcome(tool)
        return with_transfer(outcome, hooks)


def _find_call(log: Log, params: ToolCallInput) -> CallState:
    """Return the call that is to be carried out.

    Raises:
        ApplicationError: The activity is another's: a dynamic activity is given all that no other takes.
    """
    call, name = log.state.calls[params.function_call_id], activity.info().activity_type
    if name != f"{call.agent}.{call.name}":
        text = f"No activity is named {name!r} here; it is none of {call.agent!r} calling {call.name!r}."
        raise ApplicationError(text, type="UnknownActivity", non_retryable=True)
    return call


@dataclass(frozen=True, slots=True)
class _NoTool:
    """Why an agent has no tool of a name."""

    error_type: str
    problem: str


async def _find_tool(agent: LlmAgent, contexts: Contexts, name: str) -> BaseTool | _NoTool:
    until = time.monotonic() + contexts.limits.toolset_retry.total_seconds()
    while True:
        failed = list[str]()
        tool = (await tools_for(agent, contexts, wanted=name, failed=failed)).get(name)
        if tool is not None:
            return tool
        if not failed:
            return _NoTool("UnknownTool", unknown_tool(name, await tools_for(agent, contexts)))
        if time.monotonic() >= until:
            away = ", ".join(failed)
            problem = f"`{name}` could not be run: {away} could not be asked for it. Call it again later."
            return _NoTool("ToolsetFailed", problem)
        await asyncio.sleep(1.0)


@dataclass(slots=True)
class _ToolRun:
    """One call, while it is carried out."""

    params: ToolCallInput
    call: CallState
    contexts: Contexts
    hooks: Hooks
    rules: Sequence[ApprovalRule]
    heart: Heart
    aborted: bool = False

    def context(self, attempt: int) -> ToolContext:
        """Return a context for an attempt."""
        return self.contexts.call(self.call, self.params, attempt, lambda: self.aborted, self.heart)

    async def without_tool(self, problem: str, outcome: ToolOutcome) -> ToolOutcome:
        """Have callbacks answer the call of a tool that does not exist; `outcome` stands when none of them does."""
        tool, context = BaseTool(name=self.call.name or "<unnamed>", description="Tool not found"), self.context(1)

        async def fail() -> Attempt:
            return Attempt(context, raised=ValueError(problem), outcome=outcome, ran=False)

        return await run_with_callbacks(self.hooks, tool, copy_json(self.call.args), context, fail)

    async def after_agent(self, tool: BaseTool, child: ToolOutcome) -> ToolOutcome:
        """Pass what a called agent answered through the callbacks."""
        self.contexts = self.contexts.after(child.actions)
        return await run_after_agent(self.hooks, tool, copy_json(self.call.args), self.context(1), child)

    async def outcome(self, tool: BaseTool) -> ToolOutcome:
        """Run the tool with the callbacks around it."""
        context, args = self.context(activity.info().attempt), copy_json(self.call.args)
        run = functools.partial(self._approved, tool, args, context)
        outcome = await run_with_callbacks(self.hooks, tool, args, context, run)
        return bind_approval(self.call, tool, args, outcome)

    async def _approved(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> Attempt:
        """Run the tool if this is what was approved, and again if it may be repeated within this attempt."""
        if refused := await refusal(self.call, self.params, tool, args, context, self.rules):
            return Attempt(context, outcome=refused)
        attempt = context.attempt
        before, gone = context.state.delta()
        while True:
            done = await self._attempt(tool, copy_json(args), context)
            if not done.repeatable or attempt > self.params.retries:
                return done
            if self.params.effect != "once":
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

    async def _attempt(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> Attempt:
        """Run the tool once."""
        limit = self.params.timeout_s or DEFAULT_TIMEOUT_S
        running = asyncio.create_task(_caught(tool, args, context))
        try:
            # Not asyncio.timeout: a tool that swallows its cancellation would never be left.
            await asyncio.wait((running,), timeout=limit)
        except asyncio.CancelledError:
            await self._abort(running)
            if not running.done() or running.result().raised is not None:
                await self.hooks.tool_cancelled(tool, args, context)
                if activity.is_worker_shutdown() and self.params.effect == "once":
                    text = f"The worker stopped while `{self.call.name}` ran. {UNKNOWN}"
                    return self._unknown(context, text, "OutcomeUnknown")
                raise
            # Otherwise it returned all the same, and what it did has to be recorded.
        if not running.done():
            await self._abort(running)
            return self._unknown(context, f"`{self.call.name}` was stopped after {limit:g} s. {UNKNOWN}", "Timeout")
        attempt = running.result()
        if attempt.raised is None:
            return attempt
        events.warning(
            "tool_call.raised",
            tool=tool.name,
            function_call_id=self.call.id,
            attempt=context.attempt,
            error_type=type(attempt.raised).__name__,
            place=place_of(attempt.raised),
        )
        return replace(attempt, outcome=raised_outcome(tool, attempt.raised, context), repeatable=True)

    async def _abort(self, running: asyncio.Task[Attempt]) -> None:
        """Cancel the tool and give it a moment to clean up; one that does not end is left behind."""
        self.aborted = True
        running.cancel()
        await asyncio.wait((running,), timeout=STOP_GRACE_S)

    def _unknown(self, context: ToolContext, text: str, error_type: str) -> Attempt:
        """Return an attempt of which nobody knows whether it took effect, so that it is not repeated."""
        return Attempt(context, raised=TimeoutError(text), outcome=_error_outcome(self.call, text, error_type))


async def _caught(tool: BaseTool, args: JsonObject, context: ToolContext) -> Attempt:
    try:
        running: Any = tool.run_async(args=args, tool_context=context)
        if not inspect.isawaitable(running):
            raise TypeError(f"`run_async` of {type(tool).__name__} returned {a(running)}; make it an `async def`.")
        return Attempt(context, await running)
    except BaseException as error:  # noqa: BLE001  # author code raises anything, SystemExit too; see the module's docstring
        return Attempt(context, raised=error)


def _gone(params: ToolCallInput, call: CallState, problem: str, error_type: str) -> ToolOutcome:
    """Return the outcome of a call that cannot be carried out any more, though an earlier attempt may have been."""
    if activity.info().attempt == 1 or params.effect == "read":
        return _error_outcome(call, problem, error_type)
    return _error_outcome(call, f"An earlier attempt may have run `{call.name}`. {UNKNOWN} {problem}", "OutcomeUnknown")


def _error_outcome(call: CallState, text: str, error_type: str) -> ToolOutcome:
    response: JsonObject = {"error": text}
    if error_type != "UnknownTool":  # ADK gives no type then, see adk-semantics 1.6
        response["error_type"] = error_type
    return ToolOutcome(function_call_id=call.id, response=response, error_type=error_type)
