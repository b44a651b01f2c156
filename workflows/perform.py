"""Carry out one step: a model call, a tool call, a called agent. Each gives exactly one log entry."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
)
from temporalio.workflow import ActivityCancellationType, ChildWorkflowCancellationType, ParentClosePolicy

from waystation.core import ids, responses, results, summary
from waystation.core.call import CallState
from waystation.core.continued import ChildInput
from waystation.core.entry import Body, CallLost, Failure, ModelLost, ScopesTold
from waystation.core.log import Log
from waystation.core.model_call import ModelCallInput, Phase, Position
from waystation.core.payload import encode
from waystation.core.policy import StandingApproval
from waystation.core.scope import DELIVERY_ACTIVITY, ScopeDelivery
from waystation.core.tool_call import ToolCallInput
from waystation.core.wire import CHILD_ACTIVITY, MODEL_ACTIVITY, WORKFLOW, InvocationInput
from waystation.workflows.engine_activity import execute_engine_activity, settings
from waystation.workflows.ports import failure_of, now, raw, result_of
from waystation.workflows.search_attributes import at_start

MAX_INLINE_ARGS = 4_096
"""Arguments up to this size, in bytes, are repeated in the activity's input, where people look for them; and so is what
an approver added. The activity reads what is larger from the log."""


async def call_model(log: Log, number: int, turn: int, phase: Phase, wrap_up: str | None, position: Position) -> Body:
    """Have the model activity called; return its entry."""
    agent = log.works[turn].agent
    call = ModelCallInput(
        agent=agent,
        root=log.root,
        number=number,
        turn=turn,
        phase=phase,
        wrap_up=wrap_up,
        standing=tuple(each.origin for each in _in_force(log)),
        at=position.at,
        new=position.new,
    )
    try:
        reply = await execute_engine_activity(
            MODEL_ACTIVITY,
            call.encode(),
            settings().model,
            activity_id=ids.model_replied(number),
            summary=f"{agent}, callbacks" if phase == "leave" else f"{agent}, model call {number}",
        )
    except ActivityError as error:
        return ModelLost(number, failure_of(error))
    return results.model_reply(number, reply)


async def call_tool(log: Log, call: CallState, position: Position, task_queue: str) -> Body:
    """Have a tool run; return its entry."""
    plan = call.call
    activity_id = ids.performance(call.id, call.run)
    inline = len(encode(call.args)) <= MAX_INLINE_ARGS
    confirmation = call.tool_confirmation()
    given = ToolCallInput(
        function_call_id=call.id,
        at=position.at,
        new=position.new,
        args=call.args if inline else None,
        confirmation=confirmation if len(encode(confirmation)) <= MAX_INLINE_ARGS else None,
        root=log.root,
        run=call.run,
        effect=plan.effect,
        timeout_s=plan.timeout_s,
        retries=plan.retries,
        digest=call.approved_digest,
    )
    options = settings().tool
    once = plan.effect == "once"
    attempts = 1 if once else 1 + plan.retries + options.lost_worker_attempts
    tries = 1 + plan.retries if once else 1  # a call that is never repeated is retried within its one attempt
    timeout = timedelta(seconds=plan.timeout_s) if plan.timeout_s else options.timeout
    heartbeat = timedelta(seconds=plan.heartbeat_timeout_s) if plan.heartbeat_timeout_s else options.heartbeat
    try:
        outcome = await workflow.execute_activity(
            f"{call.agent}.{call.name}",
            raw(given.encode()),
            activity_id=activity_id,
            task_queue=plan.task_queue or task_queue,
            result_type=RawValue,
            start_to_close_timeout=tries * (timeout + options.grace),
            schedule_to_start_timeout=options.schedule_to_start,
            heartbeat_timeout=heartbeat,
            retry_policy=RetryPolicy(maximum_attempts=attempts),
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary.call(call.name, call.args),
        )
    except ActivityError as error:
        return results.lost_call(activity_id, failure_of(error))
    return results.tool_outcome(activity_id, result_of(outcome.payload))


async def tell_scopes(after: int, last: int, position: Position) -> Body:
    """Have `user:` and `app:` state told what events after number `after`, up to `last`, wrote to it."""
    activity_id = ids.delivery(last)
    given = ScopeDelivery(after=after, last=last, at=position.at, new=position.new)
    try:
        report = await execute_engine_activity(
            DELIVERY_ACTIVITY,
            given.encode(),
            settings().deliver_scopes,
            activity_id=activity_id,
            summary="user: and app: state",
        )
    except ActivityError as error:
        return ScopesTold(last, failure=failure_of(error))
    return results.scopes_told(activity_id, report)


async def call_agent(log: Log, call: CallState, started_as: Callable[[str], None], *, findable: bool) -> Body:
    """Have another agent do it, in an invocation of its own; return its entry.

    `started_as` is told the id of the child's run; `findable` says whether the search attributes exist.
    """
    started = log.input
    assert started is not None
    child = InvocationInput(
        agent=call.call.agent or call.name,
        message=call.call.message if call.call.message is not None else str(call.args.get("request", "")),
        state=responses.inherited_state(log.state),
        user_id=started.user_id,
        session_id=started.session_id,
        app=started.app,
        budget=log.share(call.id),
        root=log.root,
        depth=started.depth + 1,
        origin=started.family or log.invocation_id,
        requester=started.requester,
        standing=_in_force(log),
    )
    try:
        running = await workflow.start_child_workflow(
            WORKFLOW,
            raw(child.encode()),
            id=ids.child_invocation(log.invocation_id, call.id),
            result_type=RawValue,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            # Not terminated: the child seals its own open calls and tells its running tools.
            # The server closes the children of a run that continues as new, too; one that may live to see that has
            # to be left alone, and is told by the workflow.
            parent_close_policy=ParentClosePolicy.ABANDON if call.call.detached else ParentClosePolicy.REQUEST_CANCEL,
            static_summary=summary.call(call.name, call.args),
            search_attributes=at_start(child) if findable else None,
        )
        started_as(running.first_execution_run_id or "")
        result = await running
    except WorkflowAlreadyStartedError as error:
        return CallLost(call.id, Failure(kind="error", error_type=type(error).__name__))
    except ChildWorkflowError as error:
        used = results.used(error.cause.details) if isinstance(error.cause, ApplicationError) else None
        return CallLost(call.id, failure_of(error).model_copy(update={"used": used}))
    return results.child_result(call.id, result_of(result.payload))


def _in_force(log: Log) -> tuple[StandingApproval, ...]:
    return tuple(each for each in log.standing if each.until > now()) if log.standing else ()


async def follow_agent(log: Log, call: CallState, run_id: str, position: Position) -> Body:
    """Wait for an agent that an earlier run of this invocation called; return its entry.

    The server tells only the run that started a child of its end. So an activity asks what became of it.
    """
    child_id = ids.child_invocation(log.invocation_id, call.id)
    try:
        return await _child_outcome(call, child_id, run_id, position)
    except ActivityError as error:
        if not isinstance(error.cause, CancelledError):
            return results.lost_call(call.id, failure_of(error))
    with suppress(ApplicationError):  # it is over already
        await workflow.get_external_workflow_handle(child_id).cancel()
    # It says nothing of what was applied: what is cancelled before it was scheduled leaves no trace in the history.
    silent = Position(at=log.length, new=())
    try:
        return await _child_outcome(call, child_id, run_id, silent, stopping=True)
    except ActivityError as error:
        return results.lost_call(call.id, failure_of(error))


async def _child_outcome(
    call: CallState, child_id: str, run_id: str, position: Position, *, stopping: bool = False
) -> Body:
    given = ChildInput(at=position.at, new=position.new, workflow_id=child_id, run_id=run_id)
    outcome = await execute_engine_activity(
        CHILD_ACTIVITY,
        given.encode(),
        settings().stopped_child_outcome if stopping else settings().child_outcome,
        # The server may still hold the first one, which is cancelled, when the other one is scheduled.
        activity_id=ids.looked_after(call.id, stopping),
        summary=f"waits for {call.name}",
    )
    return results.child_outcome(call.id, outcome)
