"""Schedule an invocation's work: model calls, tools, called agents, verifications, notifications and state flushes.

Each piece of work results in exactly one log entry.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    NexusOperationError,
    RetryState,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ActivityCancellationType, ChildWorkflowCancellationType, NexusClient, ParentClosePolicy

from waystation.core import ids, summary
from waystation.core.approval import RememberedApproval
from waystation.core.budget import parse_usage
from waystation.core.contract import (
    MEMO_TENANT,
    TASK_TIMEOUT,
    WORKFLOW,
    ActivityOptions,
    InvocationInput,
    ModelCallInput,
    Position,
    Target,
    ToolCallInput,
    VerificationInput,
    WorkflowSettings,
)
from waystation.core.log import (
    AnswerVerified,
    Body,
    CallLost,
    CallModel,
    CallRef,
    CallState,
    EntryRef,
    Failure,
    Held,
    Log,
    MessageRef,
    ModelCalled,
    ModelCallRef,
    ModelReplied,
    ModelReplyRef,
    NotificationRef,
    NotifyInput,
    OutcomeRef,
    ScopeFlushRef,
    VerificationRef,
    create_question,
    decision,
    latest_notifications,
    responses,
    stage_of,
)
from waystation.core.payload import encode
from waystation.core.projection import (
    CHILD,
    CHILD_OUTCOME,
    CHILD_RESULT,
    FLUSH_SCOPES,
    FOUND_OUTCOME,
    HELD_TOOL,
    MODEL,
    NOTIFY,
    TOOL_OUTCOME,
    VERIFY,
    ChildInput,
    kind_of,
    target_entry,
    with_attempt,
)
from waystation.core.scope_state import ScopeDelivery
from waystation.workflows.engine_activity import entry_of, execute_engine_activity, retry_policy, settings
from waystation.workflows.log_writer import LogWriter
from waystation.workflows.outgoing_events import OutgoingEvents
from waystation.workflows.ports import failure_of, now, raw, result_of, target_result_of
from waystation.workflows.visibility import Visibility, at_start

MAX_INLINE_ARGS = 4_096
"""Arguments up to this size in bytes are repeated in the activity's input, which makes them visible in the Temporal Web
UI. The activity reads larger ones from the log."""
LAST_NOTIFICATIONS_LIMIT = timedelta(seconds=3)
"""How long an invocation that is about to end waits for its notifications in flight."""
InFlight: TypeAlias = "asyncio.Task[Body | None]"


class Scheduler:
    """Schedules activities and child workflows, and records their results."""

    def __init__(self, writer: LogWriter, visibility: Visibility, carried_children: dict[str, str]) -> None:
        """Create a scheduler.

        Args:
            writer: The log to write to.
            visibility: What has been published about the invocation.
            carried_children: Agents that earlier runs called, as a mapping from function call ID to the ID of the
                child's first run.
        """
        self._writer, self._visibility, self._carried = writer, visibility, carried_children
        self.in_flight: dict[EntryRef, InFlight] = {}
        self.background: dict[EntryRef, InFlight] = {}
        """Notifications and flushes in flight. They are not stopped when the invocation ends or is canceled."""
        self.questions: dict[EntryRef, InFlight] = {}
        """Invocations in flight that ask operators about calls. They outlive this invocation, which does not wait for
        them."""
        self._starting: set[EntryRef] = set()
        """Those of them that have not started yet."""
        self.children: dict[str, str] = {}
        """Called agents that are running and can outlive this run, as a mapping from function call ID to the ID of
        their first run."""
        self.arrivals = 0
        """Number of arrived results, including finished attempts to archive the log and starts of detached agents and
        deliveries. An increase wakes the main loop. In a workflow task, results arrive after messages."""
        self.stopped: set[EntryRef] = set()
        """Work that was canceled while in flight because its agent was stopped."""
        self._notified_at = -1

        def note_arrival() -> None:
            self.arrivals += 1

        self.events = OutgoingEvents(writer, note_arrival)
        self._quick: dict[EntryRef, bool] = {}
        """Calls whose local activity has no entry yet, in call order, with whether the activity still runs."""

    def call_model(self, step: CallModel) -> None:
        """Call an agent's model, or run the agent's callbacks."""
        log, state = self._writer.log, self._writer.log.state
        number, agent = state.steps + 1, state.runs[step.turn].agent
        self.events.announced_end = None
        position = self._writer.position()
        called = ModelCalled(number, step.turn, step.wrap_up is not None)
        self._writer.record(ModelCallRef(number, step.turn, called.wrap_up), called)
        params = ModelCallInput(
            agent=agent,
            root=state.root if state.root != agent else "",
            number=number,
            turn=step.turn,
            phase=step.phase,
            wrap_up=step.wrap_up,
            standing=tuple(remembered.origin for remembered in _in_force(log)),
            check_search=not self._visibility.registered,
            at=position.at,
            new=position.new,
        )
        # The activity's type and ID already say that this is a model call, and which one.
        about = f"{agent}, callbacks" if step.phase == "leave" else agent if agent != state.root else None
        ref = ModelReplyRef(number)

        def attempt(held: bool) -> Coroutine[Any, Any, Body]:
            options = _while_held(settings()) if held else None
            return entry_of(MODEL, ref, params, summary=about, options=options)

        self._begin(ref, self._until_possible(ref, attempt))

    def perform(self, calls: Sequence[str]) -> None:
        """Run those of the given calls that are not in flight yet."""
        for function_call_id in calls:
            call = self._writer.log.state.calls[function_call_id]
            if (ref := CallRef(function_call_id, call.run)) not in self.in_flight:
                self._begin(ref, self._perform(call, ref))

    def verify(self, message: MessageRef) -> InFlight:
        """Verify a submitted answer. Afterward, the answer counts or is recorded as ignored."""
        ref = VerificationRef(message)
        return self._begin(ref, _verify(self._writer.log, ref, self._writer.position()))

    def notify(self) -> None:
        """Send the notifications that are due."""
        approvals, calls = self._writer.log.state.approvals, self._writer.log.state.calls
        for due in latest_notifications(approvals.due):
            position, call = self._writer.position(), calls[due.function_call_id]
            params = NotifyInput(
                at=position.at,
                new=position.new,
                function_call_id=due.function_call_id,
                occasion=due.occasion,
                number=due.number,
                channels=due.channels,
                requested_at=call.requested_at,
                deadline=call.deadline,
            )
            about = f"notify {', '.join(due.channels)}: {due.occasion} {due.function_call_id}"
            self._begin(due.ref, entry_of(NOTIFY, due.ref, params, summary=about), self.background)
            self._notified_at = workflow.info().get_current_history_length()
        approvals.due.clear()
        self.events.send()

    def ask_operators(self, unstopped: Sequence[CallRef] = ()) -> None:
        """Ask operators about calls whose outcome is unknown, and follow the invocations that ask them already.

        With `unstopped`, ask about these instead: the invocation ends, and they have ignored their cancellation.
        """
        if unstopped:
            calls, effects = self._writer.log.state.calls, ("tool", "target")
            unstopped = [ref for ref in unstopped if stage_of(calls[ref.function_call_id]) in effects]
            ignored = [OutcomeRef(ref.function_call_id, ref.run) for ref in unstopped]
            asked = [ref for ref in ignored if ref not in self.questions and workflow.patched(ids.ASKS_UNSTOPPED)]
        else:
            unknown = [OutcomeRef(*each) for each in self._writer.log.state.unknown.items()]
            asked = [ref for ref in unknown if ref not in self.questions and workflow.patched(ids.ASKS_OUTCOMES)]
        for ref in asked:
            run_id = self._carried.get(str(ref))
            if run_id is None:
                self._starting.add(ref)
                asking = self._ask(ref)
            else:
                self.children[str(ref)] = run_id
                asking = _follow_question(self._writer.log, ref, run_id, self._writer.position())
            self._begin(ref, asking, self.questions)

    async def wait_for_questions(self) -> bool:
        """Wait until the invocations that ask operators have started. Return whether that took a while."""
        is_starting = bool(self._starting)
        await workflow.wait_condition(lambda: not self._starting)
        return is_starting

    async def _ask(self, ref: OutcomeRef) -> Body:
        log = self._writer.log
        question = create_question(log.state, ref.function_call_id)
        assert question.unknown is not None
        try:
            running = await workflow.start_child_workflow(
                WORKFLOW,
                raw(question.encode()),
                id=ids.child_invocation(log.invocation_id, str(ref)),
                result_type=RawValue,
                task_timeout=TASK_TIMEOUT,
                parent_close_policy=ParentClosePolicy.ABANDON,
                # After a reset, the question is asked again.
                id_reuse_policy=WorkflowIDReusePolicy.TERMINATE_IF_RUNNING,
                static_summary=f"ask operators: {summary.call(question.unknown.tool, question.unknown.args)}",
                search_attributes=at_start(question) if self._visibility.check() else None,
            )
            self.children[str(ref)] = running.first_execution_run_id or ""
            self._starting.discard(ref)
            result = result_of((await running).payload)
        except (ChildWorkflowError, WorkflowAlreadyStartedError) as error:
            self._starting.discard(ref)
            return kind_of(ref).to_entry(ref, failure_of(error))
        return kind_of(ref).to_entry(ref, result)

    async def wait_for_notifications(self) -> bool:
        """Wait for notifications that were scheduled in this workflow task, but at most `LAST_NOTIFICATIONS_LIMIT`.

        Return whether there were any.

        The server drops activities that are scheduled in the same task in which their workflow ends.
        """
        if workflow.info().get_current_history_length() != self._notified_at:
            return False
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: not self._in_background(NotificationRef), timeout=LAST_NOTIFICATIONS_LIMIT
            )
        return True

    def flush_scopes(self) -> bool:
        """Flush pending writes to `user:` and `app:` state, one flush at a time. Return whether one is in flight."""
        state = self._writer.log.state
        last = state.unflushed()
        in_flight = self._in_background(ScopeFlushRef)
        if in_flight or last is None:
            return in_flight
        position = self._writer.position()
        params = ScopeDelivery(after=state.session.scopes_flushed, last=last, at=position.at, new=position.new)
        ref = ScopeFlushRef(last)
        self._begin(ref, entry_of(FLUSH_SCOPES, ref, params, summary="user: and app: state"), self.background)
        return True

    async def wait_for_flush(self) -> None:
        """Wait until no flush is in flight."""
        await workflow.wait_condition(lambda: not self._in_background(ScopeFlushRef))

    def stop(self, activity_ids: Collection[str] | None = None) -> list[InFlight]:
        """Cancel all work in flight except notifications and flushes, or only the work with the given IDs.

        Return the canceled tasks.
        """
        running = [task for ref, task in self.in_flight.items() if activity_ids is None or str(ref) in activity_ids]
        for task in running:
            task.cancel()
            self._writer.note_command()
        return running

    def stop_unwanted(self) -> None:
        """Cancel work in flight that belongs to stopped agents."""
        unwanted = self._writer.log.state.runs.unwanted
        for ref, task in self.in_flight.items():
            if str(ref) in unwanted and ref not in self.stopped:
                self.stopped.add(ref)
                task.cancel()
                self._writer.note_command()

    def only_children(self) -> bool:
        """Return whether nothing is in flight except called agents that can outlive this run."""
        are_children = all(str(ref) in self.children and ref not in self.stopped for ref in self.in_flight)
        return are_children and not self._starting

    def _in_background(self, kind: type[NotificationRef | ScopeFlushRef]) -> bool:
        return any(isinstance(ref, kind) for ref in self.background)

    def _begin(
        self, ref: EntryRef, step: Coroutine[Any, Any, Body], tasks: dict[EntryRef, InFlight] | None = None
    ) -> InFlight:
        tasks = self.in_flight if tasks is None else tasks
        self._writer.note_command()

        async def record() -> Body | None:
            body: Body | None = None
            with self._writer.guard():
                body = await step
                self.arrivals += 1
                if isinstance(body, ModelReplied) and body.reply.search_attributes:
                    self._visibility.registered = True
                self._writer.record(with_attempt(ref, body), body)
            self.children.pop(str(ref), None)
            del tasks[ref]
            return body

        tasks[ref] = asyncio.create_task(record())
        return tasks[ref]

    def _perform(self, call: CallState, ref: CallRef) -> Coroutine[Any, Any, Body]:
        log = self._writer.log
        # The inputs of targets and child workflows do not contain a position. Do not call `position` here: the next
        # command would then leave out the entries that this position covers.
        if call.call.target and stage_of(call) == "target":
            return _run_target(log, call, ref, call.call.target)
        if call.call.kind == "agent" and not call.run:
            if run_id := self._carried.get(call.id):
                self.children[call.id] = run_id
                return _follow_agent(log, call, run_id, self._writer.position())
            return _call_agent(log, call, self._child_started, findable=self._visibility.check())
        if call.call.quick and not call.run:
            self._quick[ref] = True
            return self._call_quickly(call, ref, _tool_input(log, call, self._writer.peek()))
        return self._call_ordinarily(call, ref, _tool_input(log, call, self._writer.position()))

    def _call_ordinarily(self, call: CallState, ref: CallRef, params: ToolCallInput) -> Coroutine[Any, Any, Body]:
        return self._until_possible(ref, lambda held: _call_tool(call, ref, params, held=held))

    async def _call_quickly(self, call: CallState, ref: CallRef, params: ToolCallInput) -> Body:
        """Run a tool as a local activity and, if that has no result, as an ordinary activity.

        A replay delivers the results of all local activities of a workflow task together, in the order in which they
        were scheduled. So wait for all of them, and then continue in that order.
        """
        body = await _call_locally(call, ref, params)
        self._quick[ref] = False
        try:
            await workflow.wait_condition(lambda: not any(self._quick.values()) and next(iter(self._quick)) == ref)
        except asyncio.CancelledError:
            body = body or TOOL_OUTCOME.to_entry(ref, Failure(kind="cancelled"))
        del self._quick[ref]
        if body:
            return body
        return await self._call_ordinarily(call, ref, _tool_input(self._writer.log, call, self._writer.position()))

    async def _until_possible(self, ref: EntryRef, attempt: Callable[[bool], Coroutine[Any, Any, Body]]) -> Body:
        """Attempt work until it is not held, and return the entry for its result.

        `attempt` takes whether the work was held in the previous attempt.
        """
        body = await attempt(False)
        while isinstance(body, Held):
            self.arrivals += 1
            self._writer.record(with_attempt(ref, body), body)
            body = await attempt(True)
        return body

    def _child_started(self, call: CallState, run_id: str) -> None:
        if call.call.detached:
            self.children[call.id] = run_id
            self.arrivals += 1


def _while_held(options: WorkflowSettings) -> ActivityOptions:
    """Return the options for a model call that is held."""
    return replace(options.model, schedule_to_close=options.hold.limit, retries=options.hold.retries)


def _tool_input(log: Log, call: CallState, position: Position) -> ToolCallInput:
    plan = call.call
    inline = len(encode(call.args)) <= MAX_INLINE_ARGS
    return ToolCallInput(
        function_call_id=call.id,
        at=position.at,
        new=position.new,
        args=call.args if inline else None,
        run=call.run,
        effect="read" if stage_of(call) == "check" else plan.effect,
        timeout_s=plan.timeout_s,
        retries=plan.retries,
        digest=call.approved_digest,
    )


async def _call_tool(call: CallState, ref: CallRef, params: ToolCallInput, *, held: bool) -> Body:
    """Run a tool.

    If the call is held, the number of attempts is not limited. The activity then limits how often the tool is started.
    """
    plan, options, hold = call.call, settings().tool, settings().hold
    once = params.effect == "once"
    attempts = 1 if once else 1 + plan.retries + options.lost_worker_attempts
    tries = 1 + plan.retries if once or held else 1  # these calls are retried inside a single attempt
    timeout = timedelta(seconds=plan.timeout_s) if plan.timeout_s else options.timeout
    heartbeat = timedelta(seconds=plan.heartbeat_timeout_s) if plan.heartbeat_timeout_s else options.heartbeat
    try:
        outcome = await workflow.execute_activity(
            HELD_TOOL.name if held else f"{call.agent}.{call.name}",
            raw(params.encode()),
            activity_id=str(ref),
            task_queue=(None if plan.target else plan.task_queue) or workflow.info().task_queue,
            result_type=RawValue,
            start_to_close_timeout=tries * (timeout + options.grace),
            schedule_to_close_timeout=hold.limit if held else None,
            schedule_to_start_timeout=None if held else options.schedule_to_start,
            heartbeat_timeout=heartbeat,
            retry_policy=retry_policy(hold.retries) if held else RetryPolicy(maximum_attempts=attempts),
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary.call(call.name, call.args),
        )
    except ActivityError as error:
        failure = failure_of(error)
        if error.retry_state is RetryState.MAXIMUM_ATTEMPTS_REACHED:
            failure = failure.model_copy(update={"attempts": attempts})
        return TOOL_OUTCOME.to_entry(ref, failure)
    return TOOL_OUTCOME.to_entry(ref, result_of(outcome.payload))


async def _run_target(log: Log, call: CallState, ref: CallRef, target: Target) -> Body:
    """Run the user's code for a call, with the call's arguments and nothing else."""
    names = target.parameters
    args = [raw(encode(arg)) for arg in ([call.args] if names is None else [call.args.get(name) for name in names])]
    run = {"activity": _run_activity, "workflow": _run_workflow, "nexus": _run_operation}[target.kind]
    try:
        return target_entry(ref, target_result_of(await run(log, call, ref, target, args)))
    except WorkflowAlreadyStartedError as error:
        return target_entry(ref, Failure(kind="error", error_type=type(error).__name__))
    except (ActivityError, ChildWorkflowError, NexusOperationError) as error:
        failure = failure_of(error)
        if isinstance(error, ActivityError) and error.retry_state is RetryState.MAXIMUM_ATTEMPTS_REACHED:
            failure = failure.model_copy(update={"attempts": _count_attempts(call)})
        return target_entry(ref, failure)


def _count_attempts(call: CallState) -> int:
    """Return how often the target of a call may be tried.

    The server cannot distinguish an exception from a lost worker, so a call with the effect `once` has one attempt.
    """
    return 1 if call.call.effect == "once" else 1 + call.call.retries


async def _run_activity(_: Log, call: CallState, ref: CallRef, target: Target, args: list[RawValue]) -> RawValue | None:
    plan, options = call.call, settings().tool
    result: RawValue | None = await workflow.execute_activity(
        target.name,
        args=args,
        activity_id=ids.target(str(ref)),
        task_queue=plan.task_queue or workflow.info().task_queue,
        result_type=RawValue,
        start_to_close_timeout=_seconds(plan.timeout_s) or options.timeout,
        schedule_to_start_timeout=options.schedule_to_start,
        heartbeat_timeout=_seconds(plan.heartbeat_timeout_s),
        retry_policy=RetryPolicy(maximum_attempts=_count_attempts(call)),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=summary.call(call.name, call.args),
    )
    return result


async def _run_workflow(
    log: Log, call: CallState, ref: CallRef, target: Target, args: list[RawValue]
) -> RawValue | None:
    plan, is_once = call.call, call.call.effect == "once"
    tenant = log.state.input.tenant if log.state.input else None
    result: RawValue | None = await workflow.execute_child_workflow(
        target.name,
        args=args,
        id=ids.child_invocation(log.invocation_id, str(ref)),
        task_queue=plan.task_queue or workflow.info().task_queue,
        result_type=RawValue,
        execution_timeout=_seconds(plan.timeout_s),
        # After a reset, a call that must not run twice finds the workflow that it started before.
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE if is_once else WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        retry_policy=RetryPolicy(maximum_attempts=_count_attempts(call)) if plan.retries else None,
        cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
        parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
        static_summary=summary.call(call.name, call.args),
        memo={MEMO_TENANT: tenant} if tenant else None,
    )
    return result


async def _run_operation(
    _: Log, call: CallState, ref: CallRef, target: Target, args: list[RawValue]
) -> RawValue | None:
    client: NexusClient[Any] = workflow.create_nexus_client(
        service=target.service or "", endpoint=target.endpoint or ""
    )
    result: RawValue | None = await client.execute_operation(
        target.name,
        args[0] if args else raw(b"null"),
        output_type=RawValue,
        schedule_to_close_timeout=_seconds(call.call.timeout_s),
        headers={ids.CALL_HEADER: str(ref)},
        summary=summary.call(call.name, call.args),
    )
    return result


def _seconds(value: float | None) -> timedelta | None:
    return timedelta(seconds=value) if value else None


async def _call_locally(call: CallState, ref: CallRef, params: ToolCallInput) -> Body | None:
    """Run a quick tool inside the workflow task. Return None if it must run as an ordinary activity instead.

    This is the case if the local activity fails for any reason, such as a worker that lacks the agent. Since the tool
    only reads, it may run again.
    """
    try:
        outcome = await workflow.execute_local_activity(
            f"{call.agent}.{call.name}",
            raw(params.encode()),
            activity_id=str(ref),
            result_type=RawValue,
            schedule_to_close_timeout=settings().tool.quick,
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary.call(call.name, call.args),
        )
    except FailureError as error:  # a replay raises the cause of the `ActivityError` that was raised at first
        return TOOL_OUTCOME.to_entry(ref, Failure(kind="cancelled")) if is_cancelled_exception(error) else None
    return TOOL_OUTCOME.to_entry(ref, result_of(outcome.payload))


async def _call_agent(
    log: Log, call: CallState, started_as: Callable[[CallState, str], None], *, findable: bool
) -> Body:
    """Run another agent in a separate invocation.

    Args:
        log: The log of the calling invocation.
        call: The call to the agent.
        started_as: Receives the ID of the child workflow's first run once it has started.
        findable: Whether the search attributes are registered.
    """
    state, started = log.state, log.state.input
    assert started is not None
    child = InvocationInput(
        agent=call.call.agent or call.name,
        message=call.call.message if call.call.message is not None else str(call.args.get("request", "")),
        state=responses.inherited_state(state.session.values),
        user_id=started.user_id,
        session_id=started.session_id,
        app=started.app,
        budget=state.budget_use.shares[call.id].budget,
        root=state.root,
        depth=started.depth + 1,
        origin=started.family or log.invocation_id,
        requester=started.requester,
        joined_requesters=state.approvals.joined_requesters,
        signed_request=state.signed_request,
        standing=_in_force(log),
        tenant=started.tenant,
        traceparent=started.traceparent,
    )
    try:
        running = await workflow.start_child_workflow(
            WORKFLOW,
            raw(child.encode()),
            id=ids.child_invocation(log.invocation_id, call.id),
            result_type=RawValue,
            task_timeout=TASK_TIMEOUT,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            # Request cancellation rather than terminate, so that the child can close its open calls and stop its
            # tools. The server also applies this policy on continue-as-new. Detached children must outlive the run, so
            # they are abandoned, and the workflow cancels them itself.
            parent_close_policy=ParentClosePolicy.ABANDON if call.call.detached else ParentClosePolicy.REQUEST_CANCEL,
            static_summary=summary.call(call.name, call.args),
            search_attributes=at_start(child) if findable else None,
        )
        started_as(call, running.first_execution_run_id or "")
        result = await running
    except WorkflowAlreadyStartedError as error:
        return CallLost(call.id, Failure(kind="error", error_type=type(error).__name__))
    except ChildWorkflowError as error:
        used = parse_usage(error.cause.details) if isinstance(error.cause, ApplicationError) else None
        return CallLost(call.id, failure_of(error).model_copy(update={"used": used}))
    return CHILD_RESULT.to_entry(CallRef(call.id), result_of(result.payload))


async def _follow_agent(log: Log, call: CallState, run_id: str, position: Position) -> Body:
    """Wait for an agent that an earlier run called, and return its outcome as an entry.

    The server reports the end of a child workflow only to the run that started it, so an activity polls the child
    instead. If that activity is canceled, cancel the agent and wait for it to end.
    """
    child_id = ids.child_invocation(log.invocation_id, call.id)

    async def outcome(position: Position, *, stopping: bool) -> bytes:
        return await execute_engine_activity(
            CHILD,
            ChildInput(at=position.at, new=position.new, workflow_id=child_id, run_id=run_id),
            options=settings().stopped_child_outcome if stopping else None,
            # Use a different ID after cancellation, because the canceled first activity may still exist on the server.
            activity_id=ids.child_watch(call.id, stopping),
            summary=f"wait for {call.name}",
        )

    ref = CallRef(call.id)
    try:
        return CHILD_OUTCOME.to_entry(ref, await outcome(position, stopping=False))
    except ActivityError as error:
        if not isinstance(error.cause, CancelledError):
            return CHILD_OUTCOME.to_entry(ref, failure_of(error))
    with suppress(ApplicationError):  # the child has already ended
        await workflow.get_external_workflow_handle(child_id).cancel()
    try:
        # This command must not refer to new entries: if it is canceled before it is scheduled, it never reaches the
        # history, and the references would be lost.
        return CHILD_OUTCOME.to_entry(ref, await outcome(Position(at=log.length, new=()), stopping=True))
    except ActivityError as error:
        return CHILD_OUTCOME.to_entry(ref, failure_of(error))


async def _follow_question(log: Log, ref: OutcomeRef, run_id: str, position: Position) -> Body:
    """Wait for an invocation that an earlier run started to ask operators; see `_follow_agent`."""
    child_id = ids.child_invocation(log.invocation_id, str(ref))
    params = ChildInput(at=position.at, new=position.new, workflow_id=child_id, run_id=run_id)
    try:
        outcome: bytes | Failure = await execute_engine_activity(
            CHILD, params, activity_id=str(ref), summary="wait for operators"
        )
    except ActivityError as error:
        outcome = failure_of(error)
    return FOUND_OUTCOME.to_entry(ref, outcome)


async def _verify(log: Log, ref: VerificationRef, position: Position) -> Body:
    message = str(ref.message)
    answer = log.state.approvals.submitted[message]
    function_call_id = ids.requesting_call(answer.function_call_id)
    params = VerificationInput(ref=message, call=function_call_id, at=position.at, new=position.new)
    result = await entry_of(VERIFY, ref, params, summary=f"verify answer: {answer.action} {function_call_id}")
    assert isinstance(result, AnswerVerified)
    log.advance(now())
    return decision.decide_verified(log, message, result.review, now())


def _in_force(log: Log) -> tuple[RememberedApproval, ...]:
    standing = log.state.approvals.standing
    return tuple(remembered for remembered in standing if remembered.until > now()) if standing else ()
