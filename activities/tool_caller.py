"""Run one tool call.

A tool's exceptions, timeouts and invalid results are outcomes, not activity failures. Temporal would retry a failed
activity and repeat the tool's side effect.
"""

import asyncio
import contextlib
import functools
import inspect
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from waystation.activities.activity_attempt import (
    EventLoopBlocked,
    Heartbeater,
    activity_failure,
    describe_block,
    send_heartbeats,
)
from waystation.activities.approval_checks import bind_approval, find_missing_proof, find_refusal
from waystation.activities.callbacks import (
    Attempt,
    Hooks,
    add_transfer,
    build_error_outcome,
    run_after_agent,
    run_with_callbacks,
)
from waystation.activities.contexts import Contexts, tools_for, unknown_tool
from waystation.activities.log_cache import Logs
from waystation.activities.proofs import NO_PROOFS, ProofFactory, may_need_verified_approval
from waystation.activities.session_history import ConversationReader
from waystation.agents import ApprovalRule, LlmAgent, entries_of
from waystation.agents.toolbox import ToolsetFailure
from waystation.apps.registry import Registry
from waystation.core import (
    HELD_TOOL,
    MAX_VALUE_BYTES,
    ActivitySettings,
    CallRef,
    CallReturned,
    CallState,
    Conversation,
    CredentialStoreError,
    ForeignHistory,
    HoldReason,
    JsonObject,
    Log,
    StoreFailed,
    ToolCallInput,
    ToolOutcome,
    UnknownAgent,
    copy_json,
    responses,
    stage_of,
    with_article,
)
from waystation.tools import BaseTool, BaseToolset, ToolContext
from waystation.tools.outcome import (
    FailedAfterEffect,
    convert_result,
    create_not_stored_outcome,
    create_ran_outcome,
)
from waystation.tools.places import find_author_line
from waystation.tools.services import NO_SERVICES, Services

events = structlog.get_logger("waystation.activities")

DEFAULT_TIMEOUT_S = 600.0
STOP_GRACE_S = 2.0
MAX_BACKOFF_S = 30.0
READ_AGAIN_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses, in seconds, between attempts to read the history before a tool runs. Their sum is less than the time by which
the activity's timeout on the server exceeds the tool's timeout."""
STARTS = "waystation_starts"
"""Field of the last heartbeat detail of a held call: how many attempts have started the tool."""
MAX_QUICK_BYTES = 32_000
"""Maximum size of the result of a local activity. A call with a larger result runs again as an ordinary activity."""
MAX_STARTS = 4
"""How many times the tool of a held call may start; with effect `once`, it may start only once. There is a limit
because the tool may crash the worker."""


class ToolCaller:
    """Runs the activities named `<agent>.<tool>`."""

    def __init__(
        self,
        registry: Registry,
        logs: Logs,
        sessions: ConversationReader,
        *,
        services: Services = NO_SERVICES,
        limits: ActivitySettings | None = None,
        proofs: ProofFactory = NO_PROOFS,
    ) -> None:
        self._proofs = proofs
        self._registry, self._logs, self._sessions, self._services = registry, logs, sessions, services
        self._limits = limits or ActivitySettings()

    async def call(self, params: ToolCallInput) -> bytes:
        """Return an encoded `ToolOutcome`."""
        with send_heartbeats() as heart:
            if _is_held():
                heart.pause()
            with _hold_if_stopped(params):
                conversation = await self._conversation(params)
            call = _find_call(conversation.log, params)
            started = time.perf_counter()
            outcome = _find_lost_start(call, params)
            outcome = outcome or await self._run(self._prepare(params, call, conversation, heart))
            duration = round(time.perf_counter() - started, 4)
        outcome = outcome.model_copy(
            update={"function_call_id": call.id, "duration_s": duration, "measured": True, "mark": secrets.token_hex(3)}
        )
        data = outcome.encode()
        if len(data) > MAX_QUICK_BYTES and activity.info().is_local:
            raise _decline(f"The result is {len(data)} bytes; a local activity returns at most {MAX_QUICK_BYTES}.")
        if len(data) > MAX_VALUE_BYTES:
            # Store the result here: if the SDK failed to store it, the server would retry the activity and the tool.
            try:
                await self._logs.keep(data)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # stores and codecs raise anything
                outcome = create_not_stored_outcome(outcome, error)
                data = outcome.encode()
        # `_report` runs while the SDK sends the result, so logging does not delay the result.
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
        """Return the conversation so far. Retry for a while, because calls with effect `once` have only this attempt.

        Raises:
            ApplicationError: The conversation cannot be read. The tool did not run.
        """
        info = activity.info()
        problem = ""
        for delay in (*(() if _is_held() or info.is_local else READ_AGAIN_S), 0.0):
            try:
                log = await self._logs.at(info.workflow_id or "", info.workflow_run_id or "", params)
                return await self._sessions.conversation(log)
            except ForeignHistory as error:
                raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None
            except (StoreFailed, RPCError) as error:
                problem = str(error)
                events.warning("tool_call.held_up", invocation_id=info.workflow_id, problem=problem)
            await asyncio.sleep(delay)
        raise _fail_held(params, "store_failed", "StoreFailed", problem)

    def _prepare(
        self, params: ToolCallInput, call: CallState, conversation: Conversation, heart: Heartbeater
    ) -> "_ToolRun":
        """Prepare to run the call.

        Raises:
            ApplicationError: This worker does not have the agent.
        """
        try:
            root, agent = self._registry.find(conversation.log.state.root, call.agent)
        except UnknownAgent as error:
            raise _fail_held(params, "agent_missing", "UnknownAgent", str(error)) from None
        if not isinstance(agent, LlmAgent):  # a deployment changed the kind of agent
            raise _fail_held(params, "tool_missing", "UnknownTool", _describe_missing(call))
        contexts = Contexts.of(
            conversation,
            conversation.log.state.runs[call.turn],
            self._services,
            scopes_read=root.state_scopes,
            limits=self._limits,
        )
        hooks = Hooks(agent, root.plugins_of(agent), self._limits.callback_timeout)
        return _ToolRun(params, call, agent, contexts, hooks, root.rules_of(agent), heart, self._proofs)

    async def _run(self, run: "_ToolRun") -> ToolOutcome:
        call = run.call
        with _hold_if_stopped(run.params, run):
            tool = await _find_tool(run)
            if tool is None:
                problem = unknown_tool(call.name, await tools_for(run.agent, run.contexts))
                return await run.without_tool(problem, _error_outcome(call, problem, "UnknownTool"))
            if _is_held():
                await run.heart.mark({STARTS: _count_starts() + 1})
            run.heart.ask_every(tool.cancel_within or self._limits.cancel_within)
            if stage_of(call) == "after" and call.provisional:
                outcome = await run.after_target(tool, call.provisional)
            elif stage_of(call) == "check":
                outcome = await run.check(tool)
            else:
                outcome = await run.outcome(tool)
        return add_transfer(outcome, run.hooks)


def _is_held() -> bool:
    """Return whether this activity runs a held call. The server then repeats it until a worker can run the call."""
    return activity.info().activity_type == HELD_TOOL.name


def _count_starts() -> int:
    """Return how many attempts have started the tool of this held call."""
    details = activity.info().heartbeat_details
    return int(details[-1][STARTS]) if _is_held() and details else 0


def _find_lost_start(call: CallState, params: ToolCallInput) -> ToolOutcome | None:
    """Return the outcome of a held call whose worker was lost, or None if the tool may start again."""
    starts = _count_starts()
    if starts < (1 if params.effect == "once" else MAX_STARTS):
        return None
    text = f"The worker running `{call.name}` was lost. {responses.unknown_effect(starts)}"
    return _error_outcome(call, text, "OutcomeUnknown")


def _find_call(log: Log, params: ToolCallInput) -> CallState:
    """Return the call that this activity should run.

    Raises:
        ApplicationError: The activity's name is not that of the call. A dynamic activity receives every unknown name.
    """
    call, name = log.state.calls[params.function_call_id], activity.info().activity_type
    if name not in (f"{call.agent}.{call.name}", HELD_TOOL.name):
        text = f"No activity is named {name!r} here; the call is {call.agent!r} calling {call.name!r}."
        raise ApplicationError(text, type="UnknownActivity", non_retryable=True)
    return call


async def _find_tool(run: "_ToolRun") -> BaseTool | None:
    """Return the tool to run, or None if the model made up its name or the agent's toolsets no longer list it.

    Raises:
        ApplicationError: This worker does not have the tool. The tool did not run.
    """
    call, contexts = run.call, run.contexts
    if call.call.unknown:
        # Someone may have given a tool this name since then. No one was asked whether that tool may run.
        return None
    started, is_local = time.monotonic(), activity.info().is_local
    while True:
        failed = list[ToolsetFailure]()
        tools = await tools_for(run.agent, contexts, wanted=call.name, failed=failed)
        tool = tools.get(call.name)
        if tool is not None:
            run.origin = tools.origins.get(call.name)
            return tool
        is_optional = any(isinstance(entry, BaseToolset) for entry in entries_of(run.agent))
        if is_optional and not failed and not is_local:
            return None
        if not failed:
            raise _fail_held(run.params, "tool_missing", "UnknownTool", _describe_missing(call))
        retry_s = 0.0 if _is_held() or is_local else contexts.limits.toolset_retry.total_seconds()
        if time.monotonic() >= started + retry_s:
            text = " ".join([f"This worker cannot run `{call.name}`.", *(failure.description for failure in failed)])
            raise _fail_held(run.params, "toolset_failed", "ToolsetFailed", text)
        await asyncio.sleep(1.0)


def _describe_missing(call: CallState) -> str:
    return f"This worker cannot run `{call.name}`: agent {call.agent!r} has no tool with this name here."


def _fail_held(
    params: ToolCallInput, hold: HoldReason, kind: str, text: str, *, has_begun: bool = False
) -> ApplicationError:
    """Return the error for a call that this worker cannot run. `has_begun` is whether the tool ran in part.

    The call is held after its first attempt, because further attempts would count against the tool's retries.
    """
    info = activity.info()
    if info.is_local:
        return _decline(text)
    if not _is_held():
        runs = info.attempt - 1 + has_begun
        if not runs or params.effect == "read":
            text = f"{text} The tool did not run."
        else:
            name = info.activity_type.partition(".")[2]
            unknown = responses.unknown_effect(runs)
            kind, text = "OutcomeUnknown", f"An earlier attempt may have run `{name}`. {unknown} {text}"
    return activity_failure("tool_call.held", kind, text, hold=hold, hold_after=1, started=_count_starts() > 0)


@contextlib.contextmanager
def _hold_if_stopped(params: ToolCallInput, run: "_ToolRun | None" = None) -> Iterator[None]:
    """Leave a call to another worker if this one stops before the tool has started, rather than use up the only attempt
    of a call with the effect `once`.
    """
    try:
        yield
    except asyncio.CancelledError:
        interruption = _find_interruption()
        if params.effect != "once" or _is_held() or not interruption:
            raise
        if run and run.has_started:
            text = f"{interruption} before it reported the result of `{run.call.name}`. {responses.unknown_effect(1)}"
            raise activity_failure("tool_call.stopped", "OutcomeUnknown", text) from None
        if not activity.is_worker_shutdown():
            raise
        raise _fail_held(params, "worker_stopped", "WorkerStopped", "The worker stopped.") from None


def _find_interruption() -> str:
    """Return what stopped this attempt if the server may start another one, or an empty string."""
    if activity.is_worker_shutdown():
        return "The worker stopped"
    details = activity.cancellation_details()
    if details is None or not (details.paused or details.reset):
        return ""
    return f"The activity was {'paused' if details.paused else 'reset'}"


def _decline(problem: str) -> ApplicationError:
    """Return the error with which a local activity leaves its call to an ordinary activity."""
    events.info("tool_call.declined", invocation_id=activity.info().workflow_id, problem=problem)
    return ApplicationError("Runs as an ordinary activity.", type="Declined", category=ApplicationErrorCategory.BENIGN)


@dataclass(slots=True)
class _ToolRun:
    """One running tool call."""

    params: ToolCallInput
    call: CallState
    agent: LlmAgent
    contexts: Contexts
    hooks: Hooks
    rules: Sequence[ApprovalRule]
    heart: Heartbeater
    proofs: ProofFactory
    origin: str | None = None
    """Where the tool to run comes from."""
    aborted: bool = False
    has_started: bool = False

    def context(self, attempt: int) -> ToolContext:
        return self.contexts.call(self.call, self.params, attempt, lambda: self.aborted, self.heart)

    async def without_tool(self, problem: str, outcome: ToolOutcome) -> ToolOutcome:
        """Run the callbacks for a tool that does not exist. Return `outcome` if none returns a value or raises."""
        tool, context = BaseTool(name=self.call.name or "<unnamed>", description="Tool not found"), self.context(1)

        async def fail() -> Attempt:
            return Attempt(context, raised=ValueError(problem), outcome=outcome, ran=False)

        return await run_with_callbacks(self.hooks, tool, copy_json(self.call.args), context, fail)

    async def check(self, tool: BaseTool) -> ToolOutcome:
        """Verify a call's approval before the workflow runs the call's target. Return a refusal if it is not valid."""
        refusal = await self._find_refusal(tool, copy_json(self.call.args), self.context(1))
        return refusal or ToolOutcome(function_call_id=self.call.id, proceed=True)

    async def after_target(self, tool: BaseTool, child: ToolOutcome) -> ToolOutcome:
        """Run the callbacks on the outcome of the call's target or of an agent that was called as a tool."""
        self.contexts = self.contexts.after(child.actions)
        return await run_after_agent(self.hooks, tool, copy_json(self.call.args), self.context(1), child)

    async def outcome(self, tool: BaseTool) -> ToolOutcome:
        """Run the tool with its callbacks, unless a callback answers the call or the call is not approved."""
        attempt = 1 if _is_held() else activity.info().attempt
        context, args = self.context(attempt), copy_json(self.call.args)
        run = functools.partial(self._run_approved, tool, args, context)
        outcome = await run_with_callbacks(self.hooks, tool, args, context, run)
        outcome, actions = bind_approval(self.call, tool, args, outcome, origin=self.origin), outcome.actions
        requests = actions and {*actions.requested_auth_configs, *actions.requested_tool_confirmations}
        if not requests or self.call.id not in requests or not may_need_verified_approval(tool, self.rules):
            return outcome
        proofs = await self.proofs.proofs()
        return proofs.signed_request(self.call, outcome) if proofs else outcome

    async def _find_refusal(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> ToolOutcome | None:
        refusal = await find_refusal(self.call, self.params, tool, args, context, self.rules, origin=self.origin)
        return refusal or await find_missing_proof(
            self.call, tool, args, context, self.rules, self.proofs, self.contexts.log
        )

    async def _run_approved(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> Attempt:
        """Run the tool, or return a refusal if the call does not match its approval.

        If the tool raises an exception and the call has retries left, this activity runs the tool again if the call is
        held or has the effect `once`. Otherwise, the server retries the activity.
        """
        if refusal := await self._find_refusal(tool, args, context):
            return Attempt(context, outcome=refusal)
        first = attempt = context.attempt
        written, removed = context.state.delta()
        while True:
            result = await self._run_once(tool, copy_json(args), context)
            if attempt == first:
                self._hold_without_credential(result)
            if not result.repeatable or attempt > self.params.retries:
                return result
            if self.params.effect != "once" and not _is_held():
                kind = type(result.raised).__name__
                # Mark the error as benign because it is already logged. The SDK would log a stack trace, which may
                # contain user content.
                benign = ApplicationErrorCategory.BENIGN
                raise ApplicationError(f"{tool.name} raised and will be retried.", type=kind, category=benign)
            # Retry here, within a single activity attempt. If Temporal could retry the activity, it would also do so
            # after losing a worker, when it is unknown whether the tool took effect.
            await asyncio.sleep(min(2.0 ** (attempt - 1), MAX_BACKOFF_S))
            attempt += 1
            # Discard the state that the failed attempt wrote, but keep what callbacks wrote before the attempt.
            context = self.context(attempt)
            context.state.update(written)
            for key in removed:
                context.state.pop(key, None)

    def _hold_without_credential(self, result: Attempt) -> None:
        """Hold the call if its credential could not be read, so that an answer that it has received is not lost.

        If the tool itself reads its credential, it may have had an effect before, so only a repeatable tool is held.

        Raises:
            ApplicationError: The call is held.
        """
        has_begun = not result.context.lacks_credential.is_set()
        failed = CredentialStoreError if has_begun else (CredentialStoreError, TimeoutError)
        if not isinstance(result.raised, failed) or (has_begun and self.params.effect == "once"):
            return
        if _is_held():  # this attempt does not count as a start
            self.heart.replace_mark({STARTS: _count_starts()})
        is_late = isinstance(result.raised, TimeoutError)
        problem = "its store or its provider does not respond." if is_late else result.raised
        text = f"The credential for `{self.call.name}` cannot be read: {problem}"
        raise _fail_held(self.params, "store_failed", "CredentialStoreError", text, has_begun=has_begun) from None

    async def _run_once(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> Attempt:
        limit, self.has_started = self.params.timeout_s or DEFAULT_TIMEOUT_S, True
        running = asyncio.create_task(_call_tool(tool, args, context))
        try:
            # Do not use asyncio.timeout: a tool that suppresses its cancellation would block forever.
            await asyncio.wait((running,), timeout=limit)
        except asyncio.CancelledError:
            await self._abort(running)
            if not running.done() or running.result().raised is not None:
                await self.hooks.tool_cancelled(tool, args, context)
                if self.params.effect == "once" and (interruption := _find_interruption()):
                    text = f"{interruption} while `{self.call.name}` ran."
                    return self._unknown_outcome(context, text, "OutcomeUnknown")
                raise
            # The tool returned a result despite the cancellation, so the result has to be recorded.
        if not running.done():
            await self._abort(running)
            return self._unknown_outcome(context, f"`{self.call.name}` was stopped after {limit:g} s.", "Timeout")
        attempt = running.result()
        if attempt.raised is None:
            return attempt
        if isinstance(attempt.raised, FailedAfterEffect):
            about, failed = "its result or its changes cannot be recorded", attempt.raised
            fatal = tool.on_error == "raise"
            result = None if failed.value is None else (await convert_result(failed.value, context=context)).response
            outcome = create_ran_outcome(about, failed.cause, result, context=context, fatal=fatal)
            return Attempt(context, outcome=outcome)
        if isinstance(attempt.raised, EventLoopBlocked):
            return self._unknown_outcome(
                context, describe_block(self.call.name, *attempt.raised.args), EventLoopBlocked.__name__
            )
        events.warning(
            "tool_call.raised",
            tool=tool.name,
            function_call_id=self.call.id,
            attempt=context.attempt,
            error_type=type(attempt.raised).__name__,
            place=find_author_line(attempt.raised),
        )
        return replace(attempt, outcome=build_error_outcome(tool, attempt.raised, context), repeatable=True)

    async def _abort(self, running: asyncio.Task[Attempt]) -> None:
        """Cancel the tool and give it a moment to clean up. Abandon it if it does not finish."""
        self.aborted = True
        running.cancel()
        await asyncio.wait((running,), timeout=STOP_GRACE_S)

    def _unknown_outcome(self, context: ToolContext, text: str, error_type: str) -> Attempt:
        """Return the result of an attempt that was stopped, so its effect is unknown. The tool is not run again."""
        text = f"{text} {responses.unknown_effect(context.attempt)}"
        return Attempt(context, raised=TimeoutError(text), outcome=_error_outcome(self.call, text, error_type))


async def _call_tool(tool: BaseTool, args: JsonObject, context: ToolContext) -> Attempt:
    try:
        running: Any = tool.run_async(args=args, tool_context=context)
        if not inspect.isawaitable(running):
            raise TypeError(
                f"`run_async` of {type(tool).__name__} returned {with_article(running)}; make it an `async def`."
            )
        return Attempt(context, await running)
    except BaseException as error:  # noqa: BLE001  # user code raises anything, even SystemExit
        return Attempt(context, raised=error)


def _error_outcome(call: CallState, text: str, error_type: str) -> ToolOutcome:
    response: JsonObject = {"error": text}
    if error_type != "UnknownTool":  # ADK does not have an error type for this
        response["error_type"] = error_type
    return ToolOutcome(function_call_id=call.id, response=response, error_type=error_type)
