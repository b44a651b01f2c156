"""Steps that many tests share: start, observe and answer invocations as a client does."""

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHistory, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from waystation.client import Sent
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.actions import Action
from waystation.core.approval import PendingCall
from waystation.core.contract import ActivitySettings, Event, InvocationResult, Retries, Settings, WorkflowSettings
from waystation.core.contract.settings import HoldOptions
from waystation.core.errors import AnswerRefused
from waystation.core.log import Log, MessageJoined
from waystation.core.payload import JsonObject
from waystation.history import find_run_id
from waystation.models import LlmRequest
from waystation.testing import AgentEnvironment, ScriptedModel, responses

T = TypeVar("T")

LIMIT_S = 60.0
"""Time limit, which only failures reach. A busy server may repeat a query or task that timed out after 10 s."""
PAUSES = Retries(initial_interval=timedelta(milliseconds=5), maximum_interval=timedelta(milliseconds=50))


def make_quick_settings(**hold: Any) -> Settings:
    """Return settings with short pauses between attempts."""
    defaults = WorkflowSettings()
    return Settings(
        workflow=dataclasses.replace(
            defaults,
            model=dataclasses.replace(defaults.model, retries=dataclasses.replace(PAUSES, maximum_attempts=8)),
            hold=HoldOptions(**{"retries": PAUSES, **hold}),
        ),
        activity=ActivitySettings(
            toolset_retry=timedelta(), store_retry=timedelta(), cancel_within=timedelta(seconds=0.2)
        ),
    )


def limit_quick_calls(seconds: float) -> Settings:
    """Return settings with another limit for the calls of quick tools."""
    tool = dataclasses.replace(WorkflowSettings().tool, quick=timedelta(seconds=seconds))
    return Settings(workflow=WorkflowSettings(tool=tool))


QUICK_SETTINGS = make_quick_settings()
PATIENT_SETTINGS = limit_quick_calls(30)
"""On a busy machine, a call of a quick tool may take longer than by default."""


async def reset_run(client: Client, history: WorkflowHistory, task: int, *, without: Sequence[int] = ()) -> None:
    """Reset a run to its `task`th workflow task; `without` lists events that are not sent again."""
    completed = [e.event_id for e in history.events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    execution = WorkflowExecution(workflow_id=history.workflow_id, run_id=find_run_id(history.events))
    request = ResetWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=execution,
        workflow_task_finish_event_id=completed[task - 1],
        reset_reapply_exclude_types=without,  # type: ignore[arg-type]
        request_id=str(uuid.uuid4()),
    )
    await client.workflow_service.reset_workflow_execution(request)


async def run(
    serving: contextlib.AbstractAsyncContextManager[AgentEnvironment], agent: str, message: str, **params: Any
) -> InvocationResult:
    """Run an agent to its end while a worker serves it, and return the result."""
    async with serving as env:
        return await env.client.run(agent, message, **params)


async def wait_until(look: Callable[[], Awaitable[T | None]], what: str) -> T:
    """Poll until the result is true, and return it.

    Raises:
        AssertionError: The time is up.
    """
    try:
        async with asyncio.timeout(LIMIT_S):
            while not (value := await look()):
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"Not seen within {LIMIT_S:g} s: {what}") from None
    return value


async def wait_for_calls(invocation: Invocation, *function_call_ids: str) -> list[PendingCall]:
    """Wait until exactly these calls are pending, in any order."""

    async def look() -> list[PendingCall]:
        pending = await invocation.pending()
        return pending if {call.function_call_id for call in pending} == set(function_call_ids) else []

    return await wait_until(look, f"{function_call_ids} waiting in {invocation.id}")


async def start_and_wait(start: Awaitable[Invocation], *function_call_ids: str) -> Invocation:
    """Start an invocation, and return it when exactly these calls are pending, or any call if none is given."""
    invocation = await start
    await (
        wait_for_calls(invocation, *function_call_ids)
        if function_call_ids
        else wait_until(invocation.pending, "a call")
    )
    return invocation


async def start_and_get_call(start: Awaitable[Invocation], function_call_id: str) -> tuple[Invocation, PendingCall]:
    """Start an invocation, and return it with its only pending call."""
    invocation = await start
    [call] = await wait_for_calls(invocation, function_call_id)
    return invocation, call


async def start_and_finish(start: Awaitable[Invocation]) -> Invocation:
    """Start an invocation, and return it when it has a result."""
    invocation = await start
    await invocation.result()
    return invocation


async def approve_and_finish(invocation: Invocation | Sent, *function_call_ids: str, **params: Any) -> InvocationResult:
    """Approve a call, the only one unless its ID is given, and return the result of the invocation."""
    await invocation.approve(*function_call_ids, **params)
    return await invocation.result()


async def reject_and_finish(invocation: Invocation | Sent, *function_call_ids: str, **params: Any) -> InvocationResult:
    """Reject a call, the only one unless its ID is given, and return the result of the invocation."""
    await invocation.reject(*function_call_ids, **params)
    return await invocation.result()


async def answer_and_finish(invocation: Invocation, action: Action, *call_ids: str, **params: Any) -> InvocationResult:
    """Answer a call, the only one unless its ID is given, and return the result of the invocation."""
    await invocation.answer(action, *call_ids, **params)
    return await invocation.result()


async def wait_for_hold(invocation: Invocation) -> JsonObject:
    """Wait until an invocation is held, and return its only hold."""

    async def look() -> list[JsonObject]:
        described = await invocation.handle.describe()
        holds: list[JsonObject] = (await described.memo()).get("waystation_held") or []
        status = described.search_attributes.get("WaystationStatus")
        return holds if holds and status == [f"held:{holds[0]['reason']}"] else []

    [hold] = await wait_until(look, f"a hold of {invocation.id}")
    return hold


async def wait_until_quiet(invocation: Invocation) -> None:
    """Wait until nothing is in flight: no activity, and no workflow task.

    Refused updates then leave no trace. One that meets a running workflow task leaves an empty one behind, and the SDK
    replays that with another clock than it ran with (its "workflow task chunking").
    """

    async def look() -> bool:
        description = (await invocation.handle.describe()).raw_description
        return not (description.pending_activities or description.HasField("pending_workflow_task"))

    await wait_until(look, f"{invocation.id} at rest")


async def wait_for_model_calls(model: ScriptedModel, times: int) -> LlmRequest:
    """Wait until the model was called this many times; return the latest request."""

    async def look() -> bool:
        return len(model.requests) >= times

    await wait_until(look, f"{times} model calls")
    return model.requests[times - 1]


async def wait_for_joined_messages(invocation: Invocation, count: int = 1) -> None:
    """Wait until messages have reached a running invocation, because its session reports "joined" before it delivers
    them.
    """

    async def look() -> bool:
        return sum(isinstance(entry.body, MessageJoined) for entry in (await invocation.log()).entries) >= count

    await wait_until(look, f"{count} joined messages in {invocation.id}")


async def wait_for_responses(invocation: Invocation, *function_call_ids: str) -> Log:
    """Wait until the events have responses to exactly these calls, in this order; return the log."""

    async def look() -> Log | None:
        log = await invocation.log()
        call_ids = [part["id"] for event in log.state.events for part in event.function_responses()]
        return log if call_ids == list(function_call_ids) else None

    return await wait_until(look, f"responses to {function_call_ids} in {invocation.id}")


async def wait_for_ignored_answers(invocation: Invocation, count: int) -> list[str]:
    """Wait until this many answers were recorded as ignored; return the reasons in order."""

    async def look() -> list[str]:
        reasons = ignored_reasons((await invocation.log()).state.events)
        return reasons if len(reasons) >= count else []

    return await wait_until(look, f"{count} ignored answers")


def ignored_reasons(events: list[Event]) -> list[str]:
    """Return the reasons of ignored answers, by their events."""
    return [e.custom_metadata["ignored_answer"]["reason"] for e in events if e.custom_metadata]


async def force_continue_as_new(invocation: Invocation) -> None:
    """Let a waiting invocation continue as new, by sending it signals until its history is long."""
    before = len(await invocation.histories())

    async def continued() -> bool:
        await invocation.handle.signal("nonsense")
        return len(await invocation.histories()) > before

    await wait_until(continued, "a cut")


async def count_events(invocation: Invocation) -> int:
    """Return the number of events in Temporal's history."""
    return len((await invocation.history()).events)


async def catch_refusal(answer: Awaitable[object]) -> str:
    """Return the type of error with which an update was refused."""
    with pytest.raises((AnswerRefused, WorkflowUpdateFailedError)) as caught:
        await answer
    error = caught.value
    if isinstance(error, WorkflowUpdateFailedError):
        assert isinstance(error.cause, ApplicationError)
        return error.cause.type or ""
    return type(error).__name__


async def catch_failure(invocation: Invocation) -> ApplicationError:
    """Return the error with which an invocation failed."""
    with pytest.raises(WorkflowFailureError) as caught:
        await invocation.result()
    assert isinstance(caught.value.cause, ApplicationError)
    return caught.value.cause


def find_stuck_tasks(history: WorkflowHistory) -> list[str]:
    """Return the causes of failed workflow tasks.

    Two causes are not faults, and the task is repeated: a completion that raced with a message, and a task that the
    server takes back because a hundred events wait for its end.
    """
    harmless = (
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
    )
    return [
        f"{WorkflowTaskFailedCause.Name(event.workflow_task_failed_event_attributes.cause)}: "
        f"{event.workflow_task_failed_event_attributes.failure.message}"
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        and event.workflow_task_failed_event_attributes.cause not in harmless
    ]


def list_files(folder: Path) -> list[Path]:
    """Return all files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def tool_responses(request: LlmRequest) -> list[JsonObject]:
    """Return the responses of tools in a request, oldest first."""
    return [response for _, response in responses(request)]


def make_raw_payload(data: bytes, encoding: bytes | None = b"json/plain") -> RawValue:
    """Return a payload of exactly these bytes."""
    return RawValue(Payload(metadata={"encoding": encoding} if encoding is not None else {}, data=data))


async def start_raw(client: AgentClient, id: str, *payloads: object) -> Invocation:
    """Start an invocation with exactly these arguments."""
    handle = await client.temporal.start_workflow(
        "AgentInvocation", args=list(payloads), id=id, task_queue=client.task_queue
    )
    return Invocation(client, handle)
