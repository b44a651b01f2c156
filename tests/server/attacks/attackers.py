"""An attacker who may write to the namespace and run workers, but has no key and may approve nothing."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.protobuf.duration_pb2 import Duration
from temporalio import workflow
from temporalio.api.command.v1 import Command, ScheduleActivityTaskCommandAttributes
from temporalio.api.common.v1 import ActivityType, Payload, Payloads
from temporalio.api.common.v1 import RetryPolicy as Retries
from temporalio.api.enums.v1 import CommandType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollWorkflowTaskQueueRequest,
    RespondActivityTaskCompletedRequest,
    RespondWorkflowTaskCompletedRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError

from tests.agents import Till
from tests.server.identity.test_deciding import client_of
from tests.steps import wait_for_calls, wait_until
from tests.unit.identity.conftest import Installation
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy, PendingCall
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, calls, latest_turn, says
from waystation.tools import FunctionTool

ANN, BOB = "ann@example.com", "bob@example.com"
BOTH = ApprovalPolicy(approvers=(ANN, BOB), quorum=2, remember=timedelta(hours=1))
"""The policy: two verified approvers must agree, and may let an approval cover later calls."""
ARGS: JsonObject = {"amount": 5}


def payer(till: Till, policy: ApprovalPolicy = BOTH, *, model: BaseLlm | None = None, **options: Any) -> Agent:
    """Return an agent that pays once its approvers agree."""
    return Agent(name="payer", model=model or pays(), tools=[FunctionTool(till.pay, approval=policy, **options)])


def pays() -> FunctionModel:
    """Return a model that pays once for each message of the user."""

    def act(request: LlmRequest) -> LlmResponse:
        _, results = latest_turn(request)
        return says(f"They said {results[-1][1]}.") if results else calls(("pay", ARGS))

    return FunctionModel(act)


@workflow.defn(dynamic=True, sandboxed=False)
class Script:
    """A workflow of any type that follows the plan in its input."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> Any:
        """Start a child, continue as another workflow, or run activities."""
        plan: JsonObject = workflow.payload_converter().from_payload(args[0].payload, dict)
        match plan:
            case {"child": params, "id": id, "task_queue": queue}:
                return await workflow.execute_child_workflow("AgentInvocation", params, id=id, task_queue=queue)
            case {"continue": params, "task_queue": queue}:
                params["carried"]["run_id"] = workflow.info().run_id
                workflow.continue_as_new(args=[params], workflow="AgentInvocation", task_queue=queue)
            case {"activities": steps}:
                mark, outcomes = "", list[Any]()
                for step in steps:
                    outcomes.append(await _outcome(step, mark))
                    mark = outcomes[-1].get("mark", "")
                return outcomes
            case _:
                raise ValueError(plan)

    @workflow.signal(dynamic=True)
    def signalled(self, name: str, args: Sequence[RawValue]) -> None:
        """Accept every signal, as a session would."""


async def _outcome(step: JsonObject, mark: str) -> JsonObject:
    """Run an activity; its input may name the mark of the previous result."""
    try:
        result: JsonObject = await workflow.execute_activity(
            step["type"],
            json.loads(json.dumps(step["input"]).replace("{mark}", mark)),
            activity_id=step["id"],
            task_queue=step["task_queue"],
            start_to_close_timeout=timedelta(seconds=20),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
    except ActivityError as error:
        return {"failed": str(error.cause)}
    return result


@dataclass(frozen=True)
class Attacker:
    """A stock client, and the queue of a stock worker that runs every type of workflow."""

    temporal: Client
    task_queue: str

    async def script(self, type: str, plan: JsonObject, *, id: str = "") -> WorkflowHandle[Any, Any]:
        """Start a workflow of this type that follows the plan."""
        id = id or f"{type}-{uuid.uuid4()}"
        return await self.temporal.start_workflow(type, plan, id=id, task_queue=self.task_queue)

    async def child(self, env: AgentEnvironment, params: JsonObject, *, parent: str, parent_id: str = "") -> Invocation:
        """Start an invocation as the child of a workflow of type `parent`."""
        id = f"child-{uuid.uuid4()}"
        await self.script(parent, {"child": params, "id": id, "task_queue": env.client.task_queue}, id=parent_id)
        invocation = env.client.invocation(id)
        await wait_until(lambda: started(invocation), "that the child started")
        return invocation

    async def continued(self, env: AgentEnvironment, params: JsonObject, *, type: str) -> Invocation:
        """Start a workflow of this type, which continues as an invocation with forged input."""
        handle = await self.script(type, {"continue": params, "task_queue": env.client.task_queue})

        async def gone_on() -> bool:
            return (await handle.describe()).run_id != handle.first_execution_run_id

        await wait_until(gone_on, "that the forged run continued as new")
        return env.client.invocation(handle.id)

    async def lie(self, queue: str, activity_type: str, result: JsonObject) -> None:
        """Poll a queue for one activity, as any worker may, and return a forged result."""
        polled = await self.temporal.workflow_service.poll_activity_task_queue(
            PollActivityTaskQueueRequest(namespace="default", task_queue=TaskQueue(name=queue), identity="a worker"),
            timeout=timedelta(seconds=20),
        )
        assert polled.activity_type.name == activity_type
        payload = Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(result).encode())
        await self.temporal.workflow_service.respond_activity_task_completed(
            RespondActivityTaskCompletedRequest(
                namespace="default", task_token=polled.task_token, result=Payloads(payloads=[payload])
            )
        )

    async def command(self, queue: str, activity_id: str, activity_type: str, params: JsonObject) -> None:
        """Poll a queue for one workflow task, as any worker may, and run an activity."""
        polled = await self.temporal.workflow_service.poll_workflow_task_queue(
            PollWorkflowTaskQueueRequest(namespace="default", task_queue=TaskQueue(name=queue), identity="a worker"),
            timeout=timedelta(seconds=20),
        )
        payload = Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(params).encode())
        run = ScheduleActivityTaskCommandAttributes(
            activity_id=activity_id,
            activity_type=ActivityType(name=activity_type),
            task_queue=TaskQueue(name=queue),
            input=Payloads(payloads=[payload]),
            start_to_close_timeout=Duration(seconds=20),
            schedule_to_close_timeout=Duration(seconds=20),
            retry_policy=Retries(maximum_attempts=1),
        )
        schedule = Command(
            command_type=CommandType.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK, schedule_activity_task_command_attributes=run
        )
        await self.temporal.workflow_service.respond_workflow_task_completed(
            RespondWorkflowTaskCompletedRequest(
                namespace="default", task_token=polled.task_token, commands=[schedule], identity="a worker"
            )
        )


async def started(invocation: Invocation) -> bool:
    """Return whether an invocation exists."""
    try:
        await invocation.handle.describe()
    except Exception:  # noqa: BLE001  # not yet
        return False
    return True


async def settled(invocation: Invocation, till: Till) -> list[PendingCall]:
    """Wait until an invocation waits for approvers, paid or ended; return the pending calls, and verify that nothing
    was paid.
    """

    async def look() -> tuple[list[PendingCall]] | None:
        if till.paid or (await invocation.handle.describe()).status != WorkflowExecutionStatus.RUNNING:
            return ([],)
        pending = await invocation.pending()
        return (pending,) if pending else None

    outcome = await wait_until(look, f"that {invocation.id} waits or ends")
    assert till.paid == [], f"The tool ran: {till.paid}"
    assert outcome is not None
    return outcome[0]


async def recorded_reply(invocation: Invocation) -> JsonObject:
    """Return the result of an invocation's first model call, which anyone may read in the history."""
    for event in (await invocation.handle.fetch_history()).events:
        for payload in event.activity_task_completed_event_attributes.result.payloads:
            result: JsonObject = json.loads(payload.data)
            if "calls" in result:
                return result
    raise AssertionError("No model has replied.")


async def activity_ended(invocation: Invocation, activity_id: str) -> JsonObject:
    """Wait until an activity of a workflow has ended; return its result."""

    async def look() -> tuple[JsonObject] | None:
        number = None
        for event in (await invocation.handle.fetch_history()).events:
            if event.activity_task_scheduled_event_attributes.activity_id == activity_id:
                number = event.event_id
            done, failed = event.activity_task_completed_event_attributes, event.activity_task_failed_event_attributes
            if number and done.scheduled_event_id == number:
                return (json.loads(done.result.payloads[0].data),)
            if number and failed.scheduled_event_id == number:
                return ({"failed": failed.failure.message},)
        return None

    result = await wait_until(look, f"the end of {activity_id}")
    assert result is not None
    return result[0]


async def agree(env: AgentEnvironment, there: Installation, invocation: Invocation, **options: Any) -> None:
    """Approve the first call as both approvers."""
    await wait_for_calls(invocation, "fc-1")
    for subject in (ANN, BOB):
        token = there.provider.token(subject)
        await client_of(env, there).invocation(invocation.id).approve("fc-1", token=token, **options)
