"""Start, observe and answer invocations as a client does, and hold tools and models at gates inside the worker."""

import asyncio
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
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import ScriptedModel, responses

T = TypeVar("T")

LIMIT_S = 60.0
"""Time limit, which only failures reach. A busy server may repeat a query or task that timed out after 10 s."""
PAUSES = Retries(initial_interval=timedelta(milliseconds=5), maximum_interval=timedelta(milliseconds=50))


def quick(**hold: Any) -> Settings:
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


QUICK = quick()
LATE = limit_quick_calls(30)
"""On a busy machine, a call of a quick tool may take longer than by default."""


async def reset(client: Client, history: WorkflowHistory, task: int, *, without: Sequence[int] = ()) -> None:
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


async def until(look: Callable[[], Awaitable[T]], what: str) -> T:
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


async def waiting(invocation: Invocation, *function_call_ids: str) -> list[PendingCall]:
    """Wait until exactly these calls are pending, in any order."""

    async def look() -> list[PendingCall]:
        pending = await invocation.pending()
        return pending if {call.function_call_id for call in pending} == set(function_call_ids) else []

    return await until(look, f"{function_call_ids} waiting in {invocation.id}")


async def until_waiting(start: Awaitable[Invocation], *function_call_ids: str) -> Invocation:
    """Start an invocation, and return it when exactly these calls are pending, or any call if none is given."""
    invocation = await start
    await (waiting(invocation, *function_call_ids) if function_call_ids else until(invocation.pending, "a call"))
    return invocation


async def until_call(start: Awaitable[Invocation], function_call_id: str) -> tuple[Invocation, PendingCall]:
    """Start an invocation, and return it with its only pending call."""
    invocation = await start
    [call] = await waiting(invocation, function_call_id)
    return invocation, call


async def ended(start: Awaitable[Invocation]) -> Invocation:
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


async def held(invocation: Invocation) -> JsonObject:
    """Wait until an invocation is held, and return its only hold."""

    async def look() -> list[JsonObject]:
        described = await invocation.handle.describe()
        holds: list[JsonObject] = (await described.memo()).get("waystation_held") or []
        status = described.search_attributes.get("WaystationStatus")
        return holds if holds and status == [f"held:{holds[0]['reason']}"] else []

    [hold] = await until(look, f"a hold of {invocation.id}")
    return hold


async def quiet(invocation: Invocation) -> None:
    """Wait until nothing is in flight: no activity, and no workflow task.

    Refused updates then leave no trace. One that meets a running workflow task leaves an empty one behind, and the SDK
    replays that with another clock than it ran with (its "workflow task chunking").
    """

    async def look() -> bool:
        description = (await invocation.handle.describe()).raw_description
        return not (description.pending_activities or description.HasField("pending_workflow_task"))

    await until(look, f"{invocation.id} at rest")


async def wait_for_model_calls(model: ScriptedModel, times: int) -> LlmRequest:
    """Wait until the model was called this many times; return the latest request."""

    async def look() -> bool:
        return len(model.requests) >= times

    await until(look, f"{times} model calls")
    return model.requests[times - 1]


async def wait_for_joined_messages(invocation: Invocation, count: int = 1) -> None:
    """Wait until messages have reached a running invocation, because its session reports "joined" before it delivers
    them.
    """

    async def look() -> bool:
        return sum(isinstance(entry.body, MessageJoined) for entry in (await invocation.log()).entries) >= count

    await until(look, f"{count} joined messages in {invocation.id}")


async def responded(invocation: Invocation, *function_call_ids: str) -> Log:
    """Wait until the events have responses to exactly these calls, in this order; return the log."""

    async def look() -> Log | None:
        log = await invocation.log()
        call_ids = [part["id"] for event in log.state.events for part in event.function_responses()]
        return log if call_ids == list(function_call_ids) else None

    matching_log = await until(look, f"responses to {function_call_ids} in {invocation.id}")
    assert matching_log is not None
    return matching_log


async def ignored(invocation: Invocation, count: int) -> list[str]:
    """Wait until this many answers were recorded as ignored; return the reasons in order."""

    async def look() -> list[str]:
        reasons = ignored_in((await invocation.log()).state.events)
        return reasons if len(reasons) >= count else []

    return await until(look, f"{count} ignored answers")


def ignored_in(events: list[Event]) -> list[str]:
    """Return the reasons of ignored answers, by their events."""
    return [e.custom_metadata["ignored_answer"]["reason"] for e in events if e.custom_metadata]


async def cut(invocation: Invocation) -> None:
    """Let a waiting invocation continue as new, by sending it signals until its history is long."""
    before = len(await invocation.histories())

    async def continued() -> bool:
        await invocation.handle.signal("nonsense")
        return len(await invocation.histories()) > before

    await until(continued, "a cut")


async def event_count(invocation: Invocation) -> int:
    """Return the number of events in Temporal's history."""
    return len((await invocation.history()).events)


async def refusal(answer: Awaitable[object]) -> str:
    """Return the type of error with which an update was refused."""
    with pytest.raises((AnswerRefused, WorkflowUpdateFailedError)) as caught:
        await answer
    error = caught.value
    if isinstance(error, WorkflowUpdateFailedError):
        assert isinstance(error.cause, ApplicationError)
        return error.cause.type or ""
    return type(error).__name__


async def failure(invocation: Invocation) -> ApplicationError:
    """Return the error with which an invocation failed."""
    with pytest.raises(WorkflowFailureError) as caught:
        await invocation.result()
    assert isinstance(caught.value.cause, ApplicationError)
    return caught.value.cause


def stuck_tasks(history: WorkflowHistory) -> list[str]:
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


def files_in(folder: Path) -> list[Path]:
    """Return all files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def tool_responses(request: LlmRequest) -> list[JsonObject]:
    """Return the responses of tools in a request, oldest first."""
    return [response for _, response in responses(request)]


def bytes_of(data: bytes, encoding: bytes | None = b"json/plain") -> RawValue:
    """Return a payload of exactly these bytes."""
    return RawValue(Payload(metadata={"encoding": encoding} if encoding is not None else {}, data=data))


async def start_raw(client: AgentClient, id: str, *payloads: object) -> Invocation:
    """Start an invocation with exactly these arguments."""
    handle = await client.temporal.start_workflow(
        "AgentInvocation", args=list(payloads), id=id, task_queue=client.task_queue
    )
    return Invocation(client, handle)


class Gate:
    """Holds callers until the test opens it."""

    def __init__(self) -> None:
        self._reached, self._opened = asyncio.Event(), asyncio.Event()

    async def passed(self) -> None:
        """Wait until the gate is open. Tools and models call this."""
        self._reached.set()
        await self._opened.wait()

    async def reached(self) -> None:
        """Wait until a caller waits at the gate. Tests call this."""
        async with asyncio.timeout(LIMIT_S):
            await self._reached.wait()

    def open(self) -> None:
        """Let every caller through."""
        self._opened.set()


class HeldModel(ScriptedModel):
    """A scripted model with one call that is held at a gate."""

    def __init__(self, *replies: Any, held_call: int) -> None:
        super().__init__(*replies)
        self.gate, self._held_call = Gate(), held_call

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the next prepared reply, the held one when the gate is open."""
        response = await super().generate(request, on_text=on_text)
        if len(self.requests) == self._held_call:
            await self.gate.passed()
        return response


class Till:
    """Tools with a counted side effect."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def pay(self, amount: int) -> dict[str, int]:
        """Pay somebody."""
        self.paid.append(amount)
        return {"paid": amount}
