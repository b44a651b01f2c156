"""Run one tool call in five steps: load the call, find its tool, gate it, run it with its callbacks, and record it.

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
from datetime import timedelta
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from waystation.activities.activity_attempt import EventLoopBlocked, activity_failure, describe_block, send_heartbeats
from waystation.activities.answer_verification import bind_approval, find_missing_proof, find_refusal
from waystation.activities.call_modes import CallMode, choose_mode, error_outcome
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
from waystation.core import ids
from waystation.core.approval import CompletionGrant
from waystation.core.contract import ActivitySettings, ToolCallInput, ToolOutcome
from waystation.core.conversation import Conversation
from waystation.core.errors import CredentialStoreError, ForeignHistory, StoreFailed, UnknownAgent
from waystation.core.log import DEFAULT_DEADLINE_S, CallRef, CallReturned, CallState, Log, responses, stage_of
from waystation.core.naming import with_article
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, copy_json
from waystation.core.projection import HELD_TOOL
from waystation.tools import BaseTool, BaseToolset, ToolContext
from waystation.tools.outcome import (
    CallHeld,
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
            mode = choose_mode(params, heart)
            with _hold_if_stopped(mode):
                conversation = await self._load(mode)
            call = _find_call(conversation.log, params)
            started = time.perf_counter()
            outcome = mode.find_lost_start(call) or await self._prepare(mode, call, conversation).complete()
            duration = round(time.perf_counter() - started, 4)
        return await self._record(mode, call, outcome, duration)

    async def _record(self, mode: CallMode, call: CallState, outcome: ToolOutcome, duration: float) -> bytes:
        """Return the encoded outcome, after storing it if it is large.

        Raises:
            ApplicationError: The outcome is too large for the mode.
        """
        outcome = outcome.model_copy(
            update={"function_call_id": call.id, "duration_s": duration, "measured": True, "mark": secrets.token_hex(3)}
        )
        data = outcome.encode()
        mode.check_size(len(data))
        if len(data) > MAX_VALUE_BYTES:
            # Store the result here: if the SDK failed to store it, the server would retry the activity and the tool.
            try:
                await self._logs.keep(data)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # stores and codecs raise anything
                outcome = create_not_stored_outcome(outcome, error)
                data = outcome.encode()
        # `_report` runs while the SDK sends the result, so logging does not delay the result.
        asyncio.get_running_loop().call_soon(self._report, activity.info(), call, mode.params.run, outcome, len(data))
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

    async def _load(self, mode: CallMode) -> Conversation:
        """Return the conversation so far. Retry for a while, because calls with effect `once` have only this attempt.

        Raises:
            ApplicationError: The conversation cannot be read. The tool did not run.
        """
        info, problem = activity.info(), ""
        for delay in (*(READ_AGAIN_S if mode.waits else ()), 0.0):
            try:
                log = await self._logs.at(info.workflow_id or "", info.workflow_run_id or "", mode.params)
                return await self._sessions.conversation(log)
            except ForeignHistory as error:
                raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None
            except (StoreFailed, RPCError) as error:
                problem = str(error)
                events.warning("tool_call.held_up", invocation_id=info.workflow_id, problem=problem)
            await asyncio.sleep(delay)
        raise mode.fail("store_failed", "StoreFailed", problem)

    def _prepare(self, mode: CallMode, call: CallState, conversation: Conversation) -> "_ToolRun":
        """Prepare to run the call.

        Raises:
            ApplicationError: This worker does not have the agent.
        """
        try:
            root, agent = self._registry.find(conversation.log.state.root, call.agent)
        except UnknownAgent as error:
            raise mode.fail("agent_missing", "UnknownAgent", str(error)) from None
        if not isinstance(agent, LlmAgent):  # a deployment changed the kind of agent
            raise mode.fail("tool_missing", "UnknownTool", _describe_missing(call))
        contexts = Contexts.of(
            conversation,
            conversation.log.state.runs[call.turn],
            self._services.for_app(root.lifespan),
            scopes_read=root.state_scopes,
            limits=self._limits,
        )
        hooks = Hooks(agent, root.plugins_of(agent), self._limits.callback_timeout)
        return _ToolRun(mode, call, agent, contexts, hooks, root.rules_of(agent), self._proofs)


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


def _describe_missing(call: CallState) -> str:
    return f"This worker cannot run `{call.name}`: agent {call.agent!r} has no tool with this name here."


@contextlib.contextmanager
def _hold_if_stopped(mode: CallMode, run: "_ToolRun | None" = None) -> Iterator[None]:
    """Leave a call to another worker if this one stops before the tool has started, rather than use up the only attempt
    of a call with the effect `once`.
    """
    try:
        yield
    except asyncio.CancelledError:
        interruption = _find_interruption()
        if not mode.is_single or not interruption:
            raise
        if run and run.has_started:
            text = f"{interruption} before it reported the result of `{run.call.name}`. {responses.unknown_effect(1)}"
            raise activity_failure("tool_call.stopped", "OutcomeUnknown", text) from None
        if not activity.is_worker_shutdown():
            raise
        raise mode.fail("worker_stopped", "WorkerStopped", "The worker stopped.") from None


def _find_interruption() -> str:
    """Return what stopped this attempt if the server may start another one, or an empty string."""
    if activity.is_worker_shutdown():
        return "The worker stopped"
    details = activity.cancellation_details()
    if details is None or not (details.paused or details.reset):
        return ""
    return f"The activity was {'paused' if details.paused else 'reset'}"


@dataclass(slots=True)
class _ToolRun:
    """One running tool call."""

    mode: CallMode
    call: CallState
    agent: LlmAgent
    contexts: Contexts
    hooks: Hooks
    rules: Sequence[ApprovalRule]
    proofs: ProofFactory
    origin: str | None = None
    """Where the tool to run comes from."""
    first_run: str = ""
    """For a call that a machine answers: ID of the invocation's first run."""
    aborted: bool = False
    has_started: bool = False

    def context(self, attempt: int) -> ToolContext:
        return self.contexts.call(
            self.call,
            self.mode.params,
            attempt,
            lambda: self.aborted,
            self.mode.heart,
            self._make_completion_url,
            is_held=self.mode.is_held,
        )

    def _make_completion_url(self, lifetime: timedelta | None) -> str:
        """Return the completion URL of the call, which is the same for all attempts.

        Raises:
            ValueError: People answer the call, or this worker cannot make completion URLs.
        """
        call, log, info = self.call, self.contexts.log, activity.info()
        if call.call.machine_policy is None:
            raise ValueError("People answer this call. Only a tool with `answered_by=External(…)` has completion URLs.")
        if self.proofs.completions is None:
            raise ValueError(
                "This worker has no key for completion URLs. Start it with --identity FILE. The "
                "section [completion] of the file names the key (`waystation identity init` writes one)."
            )
        # The deadline counts from when the function returns.
        lifetime = lifetime or timedelta(seconds=(call.call.deadline_s or DEFAULT_DEADLINE_S) + DEFAULT_TIMEOUT_S)
        grant = CompletionGrant(
            namespace=info.namespace,
            approval_id=ids.approval(log.invocation_id, call.id),
            run=self.first_run,
            digest=call.digest,
            machine=call.call.machine_policy.machine or "",
            revoked=call.revoked,
            until=int((info.scheduled_time + lifetime).timestamp()),
        )
        return self.proofs.completions.make_url(grant)

    async def complete(self) -> ToolOutcome:
        """Return the outcome of what this activity does for the call: its check, its run, or what follows its target.

        Raises:
            ApplicationError: This worker does not have the tool, or another attempt has to run it.
        """
        with _hold_if_stopped(self.mode, self):
            tool = await self._find_tool()
            if tool is None:
                return await self._run_without_tool()
            outcome = await self._gate(tool) or await self._run_with_callbacks(tool)
        return add_transfer(outcome, self.hooks)

    async def _find_tool(self) -> BaseTool | None:
        """Return the tool to run, or None if the model made up its name or the agent's toolsets no longer list it.

        Raises:
            ApplicationError: This worker does not have the tool. The tool did not run.
        """
        call, contexts, mode = self.call, self.contexts, self.mode
        if call.call.unknown:
            # Someone may have given a tool this name since then. No one was asked whether that tool may run.
            return None
        started, retry_s = time.monotonic(), contexts.limits.toolset_retry.total_seconds() if mode.waits else 0.0
        while True:
            failed = list[ToolsetFailure]()
            tools = await tools_for(self.agent, contexts, wanted=call.name, failed=failed)
            tool = tools.get(call.name)
            if tool is not None:
                self.origin = tools.origins.get(call.name)
                return tool
            is_optional = any(isinstance(entry, BaseToolset) for entry in entries_of(self.agent))
            if is_optional and not failed and mode.reports_missing:
                return None
            if not failed:
                raise mode.fail("tool_missing", "UnknownTool", _describe_missing(call))
            if time.monotonic() >= started + retry_s:
                text = " ".join([f"This worker cannot run `{call.name}`.", *(each.description for each in failed)])
                raise mode.fail("toolset_failed", "ToolsetFailed", text)
            await asyncio.sleep(1.0)

    async def _run_without_tool(self) -> ToolOutcome:
        """Run the callbacks for a tool that does not exist. Return an error if none returns a value or raises."""
        problem = unknown_tool(self.call.name, await tools_for(self.agent, self.contexts))
        outcome = error_outcome(self.call, problem, "UnknownTool")
        tool, context = BaseTool(name=self.call.name or "<unnamed>", description="Tool not found"), self.context(1)

        async def fail() -> Attempt:
            return Attempt(context, raised=ValueError(problem), outcome=outcome, ran=False)

        return await run_with_callbacks(self.hooks, tool, copy_json(self.call.args), context, fail)

    async def _gate(self, tool: BaseTool) -> ToolOutcome | None:
        """Note the start of the tool. Return an outcome if the workflow runs the call's target after this activity:
        a refusal if the call's approval is not valid. The approval of any other call is checked after its callbacks,
        because they may change the arguments.
        """
        await self.mode.note_start()
        self.mode.heart.ask_every(tool.cancel_within or self.contexts.limits.cancel_within)
        if stage_of(self.call) != "check":
            return None
        refusal = await self._find_refusal(tool, copy_json(self.call.args), self.context(1))
        return refusal or ToolOutcome(function_call_id=self.call.id, proceed=True)

    async def _run_with_callbacks(self, tool: BaseTool) -> ToolOutcome:
        """Run the tool with its callbacks, unless a callback answers the call or the call is not approved.

        After the call's target or an agent that was called as a tool, run only the callbacks on its outcome.
        """
        args = copy_json(self.call.args)
        if stage_of(self.call) == "after" and (child := self.call.provisional):
            self.contexts = self.contexts.after(child.actions)
            return await run_after_agent(self.hooks, tool, args, self.context(1), child)
        if self.call.call.machine_policy is not None:
            self.first_run = await self.proofs.find_first_run()
        context = self.context(self.mode.attempt)
        run = functools.partial(self._run_approved, tool, args, context)
        outcome = await run_with_callbacks(self.hooks, tool, args, context, run)
        outcome, actions = bind_approval(self.call, tool, args, outcome, origin=self.origin), outcome.actions
        requests = actions and {*actions.requested_auth_configs, *actions.requested_tool_confirmations}
        if not requests or self.call.id not in requests or not may_need_verified_approval(tool, self.rules):
            return outcome
        proofs = await self.proofs.proofs()
        return proofs.signed_request(self.call, outcome) if proofs else outcome

    async def _find_refusal(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> ToolOutcome | None:
        refusal = await find_refusal(self.call, self.mode.params, tool, args, context, self.rules, origin=self.origin)
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
            if not result.repeatable or attempt > self.mode.params.retries:
                return result
            if not self.mode.retries_tool:
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
        if not isinstance(result.raised, failed) or (has_begun and self.mode.params.effect == "once"):
            return
        self.mode.forget_start()
        is_late = isinstance(result.raised, TimeoutError)
        problem = "its store or its provider does not respond." if is_late else result.raised
        text = f"The credential for `{self.call.name}` cannot be read: {problem}"
        raise self.mode.fail("store_failed", "CredentialStoreError", text, has_begun=has_begun) from None

    async def _run_once(self, tool: BaseTool, args: JsonObject, context: ToolContext) -> Attempt:
        limit, self.has_started = self.mode.params.timeout_s or DEFAULT_TIMEOUT_S, True
        running = asyncio.create_task(_call_tool(tool, args, context))
        try:
            # Do not use asyncio.timeout: a tool that suppresses its cancellation would block forever.
            await asyncio.wait((running,), timeout=limit)
        except asyncio.CancelledError:
            await self._abort(running)
            if not running.done() or running.result().raised is not None:
                await self.hooks.tool_cancelled(tool, args, context)
                if self.mode.params.effect == "once" and (interruption := _find_interruption()):
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
        if isinstance(attempt.raised, CallHeld) and self.mode.params.effect == "read":
            raise self.mode.hold(attempt.raised.reason, str(attempt.raised)) from None
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
        return Attempt(context, raised=TimeoutError(text), outcome=error_outcome(self.call, text, error_type))


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
