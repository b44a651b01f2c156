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
from waystation.workflows.ports import failure_of, now, raw, result_of
from waystation.workflows.search_attributes import at_start

MODEL_TIMEOUT = timedelta(minutes=10)
MODEL_HEARTBEAT_TIMEOUT = timedelta(seconds=30)
MODEL_RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=2,
    maximum_interval=timedelta(minutes=1),
    maximum_attempts=8,
)

DELIVERY_TIMEOUT = timedelta(seconds=60)
DELIVERY_HEARTBEAT_TIMEOUT = timedelta(seconds=10)
DELIVERY_RETRIES = RetryPolicy(maximum_interval=timedelta(minutes=1), maximum_attempts=30)
"""For a quarter of an hour or more; a scope counts what it is told again only once."""

TOOL_TIMEOUT_S = 600.0
"""How long a tool may run unless it says otherwise. The activity itself enforces it, because Temporal repeats an
activity that timed out, and with it the side effect."""
TOOL_GRACE_S = 30.0
"""Added to the server's timeout for each try, pauses included; it then only strikes when the worker is lost."""
TOOL_HEARTBEAT_TIMEOUT_S = 30.0
"""After so long without a sign of life a worker counts as lost."""
LOST_WORKER_ATTEMPTS = 3
"""How often a repeatable call is tried again because its worker was lost; a tool may be what kills workers."""
UNCLAIMED_TIMEOUT = timedelta(days=7)
"""How long a call may wait for a worker of its task queue."""

CHILD_LOOKS = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=15)
)
"""How often a called agent is looked at that an earlier run started. The server repeats a look without a word in the
history, and without keeping a worker busy."""
CHILD_STOP_LOOKS = RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=2))
LOOK_TIMEOUT = timedelta(seconds=30)

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
        reply = await workflow.execute_activity(
            MODEL_ACTIVITY,
            raw(call.encode()),
            activity_id=ids.model_replied(number),
            result_type=RawValue,
            start_to_close_timeout=MODEL_TIMEOUT,
            heartbeat_timeout=MODEL_HEARTBEAT_TIMEOUT,
            retry_policy=MODEL_RETRIES,
            cancellation_type=ActivityCancellationType.TRY_CANCEL,
            summary=f"{agent}, callbacks" if phase == "leave" else f"{agent}, model call {number}",
        )
    except ActivityError as error:
        return ModelLost(number, failure_of(error))
    return results.model_reply(number, result_of(reply.payload))


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
    once = plan.effect == "once"
    attempts = 1 if once else 1 + plan.retries + LOST_WORKER_ATTEMPTS
    tries = 1 + plan.retries if once else 1  # a call that is never repeated is retried within its one attempt
    try:
        outcome = await workflow.execute_activity(
            f"{call.agent}.{call.name}",
            raw(given.encode()),
            activity_id=activity_id,
            task_queue=plan.task_queue or task_queue,
            result_type=RawValue,
            start_to_close_timeout=timedelta(seconds=tries * ((plan.timeout_s or TOOL_TIMEOUT_S) + TOOL_GRACE_S)),
            schedule_to_start_timeout=UNCLAIMED_TIMEOUT,
            heartbeat_timeout=timedelta(seconds=plan.heartbeat_timeout_s or TOOL_HEARTBEAT_TIMEOUT_S),
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
        report = await workflow.execute_activity(
            DELIVERY_ACTIVITY,
            raw(given.encode()),
            activity_id=activity_id,
            result_type=RawValue,
            start_to_close_timeout=DELIVERY_TIMEOUT,
            heartbeat_timeout=DELIVERY_HEARTBEAT_TIMEOUT,
            retry_policy=DELIVERY_RETRIES,
            summary="user: and app: state",
        )
    except ActivityError as error:
        return ScopesTold(last, failure=failure_of(error))
    return results.scopes_told(activity_id, result_of(report.payload))


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
    outcome = await workflow.execute_activity(
        CHILD_ACTIVITY,
        raw(given.encode()),
        # The server may still hold the first one, which is cancelled, when the other one is scheduled.
        activity_id=ids.looked_after(call.id, stopping),
        result_type=RawValue,
        start_to_close_timeout=LOOK_TIMEOUT,
        retry_policy=CHILD_STOP_LOOKS if stopping else CHILD_LOOKS,
        cancellation_type=ActivityCancellationType.TRY_CANCEL,
        summary=f"waits for {call.name}",
    )
    return results.child_outcome(call.id, result_of(outcome.payload))
