"""Programs receive events of invocations: with a real Temporal server, over real HTTP."""

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from tests.agents import asker, speaks
from tests.fakes.webhook_receiver import WebhookReceiver
from tests.paths import write_secret
from tests.server.conftest import Serve
from tests.server.notices.test_notices import received
from tests.steps import start_and_wait
from tests.unit.notices.conftest import channels
from waystation.activities.notifications import Channels
from waystation.client.agent_client import Invocation
from waystation.core import ids
from waystation.core.contract import EVENT_WORKFLOW, ActivityOptions, Retries, Settings, WorkflowSettings
from waystation.core.payload import JsonObject
from waystation.testing import says

QUICK = Settings(
    workflow=WorkflowSettings(
        deliver_event=ActivityOptions(
            start_to_close=timedelta(seconds=10), retries=Retries(initial_interval=timedelta(milliseconds=50))
        )
    )
)


def endpoint(folder: Path, receiver: WebhookReceiver, name: str = "billing", **filters: Any) -> str:
    """Return the section of an endpoint."""
    write_secret(folder / f"{name}.key", receiver.secret)
    lines = [f"{key} = {value!r}\n" for key, value in filters.items()]
    return f'[endpoints.{name}]\nurl = "{receiver.url}"\nsecret_file = "{name}.key"\n' + "".join(lines)


async def count_kinds(invocation: Invocation) -> Counter[str]:
    """Count the history events of an invocation by their kind."""
    history = await invocation.history()
    return Counter(EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events)


async def test_a_program_receives_what_waits_and_what_has_ended(
    serve: Serve, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """Both events are signed, and name the invocation, the agent, the user and the call, but no content."""
    async with serve(asker(), channels=channels(tmp_path, endpoint(tmp_path, receiver))) as env:
        invocation = await start_and_wait(env.client.start("asker", "hello", user_id="ada"))
        [waiting] = await received(receiver)
        await invocation.respond({"answer": "yes"}, "fc-1")
        await invocation.result()
        _, ended = await received(receiver, 2)
    assert waiting.verified
    assert ended.verified
    common: JsonObject = {"invocation_id": invocation.id, "agent": "asker", "app": "waystation", "user_id": "ada"}
    common |= {"tenant": None, "session_id": None}
    nothing: JsonObject = {"status": None, "reason": None, "function_call_id": None, "tool": None}
    assert waiting.body["type"] == "waystation.invocation.waiting"
    assert waiting.body["data"] == {**common, **nothing, "function_call_id": "fc-1", "tool": "ask"}
    assert ended.body["type"] == "waystation.invocation.ended"
    assert ended.body["data"] == {**common, **nothing, "status": "completed"}


async def test_an_invocation_ends_while_its_endpoint_is_down_and_the_event_arrives_later(
    serve: Serve, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """The result does not wait, another worker continues after the first is gone, and all attempts share one ID."""
    receiver.statuses = [503] * 3
    file = channels(tmp_path, endpoint(tmp_path, receiver))
    async with serve(speaks("clerk", says("Hello.")), channels=file, settings=QUICK, task_queue="events") as env:
        invocation = await env.client.start("clerk", "hello")
        await invocation.result()
    async with serve(speaks("clerk"), channels=file, settings=QUICK, task_queue="events"):
        await received(receiver)
    assert len({request.id for request in receiver.requests}) == 1
    assert len(receiver.taken) == 1


async def test_an_endpoint_adds_five_events_to_a_history_and_none_adds_none(
    serve: Serve, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """The end of an invocation costs the start of its delivery. Without an endpoint for the agent, nothing changes."""
    other = endpoint(tmp_path, receiver, agents=["somebody_else"])
    counts = []
    for configured in (Channels({}), channels(tmp_path, other), channels(tmp_path, endpoint(tmp_path, receiver))):
        async with serve(speaks("clerk", says("Hello.")), channels=configured) as env:
            invocation = await env.client.start("clerk", "hello")
            await invocation.result()
            counts.append(await count_kinds(invocation))
    assert counts[0] == counts[1]
    assert counts[2] - counts[0] == {
        "START_CHILD_WORKFLOW_EXECUTION_INITIATED": 1,
        "CHILD_WORKFLOW_EXECUTION_STARTED": 1,
        "WORKFLOW_TASK_SCHEDULED": 1,
        "WORKFLOW_TASK_STARTED": 1,
        "WORKFLOW_TASK_COMPLETED": 1,
    }
    await received(receiver)


async def test_a_delivery_that_failed_for_good_is_a_failed_workflow(
    serve: Serve, receiver: WebhookReceiver, other_receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """It names the endpoint and the reason, and the other endpoints have received the event."""
    receiver.statuses = [410]
    sections = [endpoint(tmp_path, receiver), endpoint(tmp_path, other_receiver, "audit", events=["ended"])]
    async with serve(speaks("clerk", says("Hello.")), channels=channels(tmp_path, *sections)) as env:
        invocation = await env.client.start("clerk", "hello")
        await invocation.result()
        handle = env.temporal.get_workflow_handle(ids.event_delivery(invocation.id, "ended"))
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
    assert str(failed.value.cause) == "NotDelivered: Not delivered to billing (Status410)."
    assert len(other_receiver.taken) == 1


async def test_an_invocation_that_is_held_before_its_first_reply_is_reported(
    serve: Serve, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """The failed attempt of the model records the endpoints, so the hold is reported once, with its reason."""
    model = speaks("clerk", *[ConnectionError("down")] * 9, says("Hello."))
    async with serve(model, channels=channels(tmp_path, endpoint(tmp_path, receiver))) as env:
        invocation = await env.client.start("clerk", "hello")
        [held, *_] = await received(receiver)
        await invocation.cancel()
        _, ended = await received(receiver, 2)
    assert held.body["type"] == "waystation.invocation.held"
    assert held.body["data"]["reason"] == "model_unavailable"
    assert ended.body["data"]["status"] == "cancelled"


async def test_an_event_that_no_invocation_announced_is_not_delivered(
    serve: Serve, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """Endpoints trust the signature, so nobody else can have an event signed by starting its delivery."""
    async with serve(speaks("clerk"), channels=channels(tmp_path, endpoint(tmp_path, receiver)), settings=QUICK) as env:
        about: JsonObject = {"invocation_id": "inv-of-another", "agent": "clerk", "app": "waystation", "user_id": "ada"}
        forged = {"event": "ended", "endpoints": ["billing"], "key": "ended", "time": 1.0, "status": "completed"}
        delivery = await env.temporal.start_workflow(
            EVENT_WORKFLOW, about | forged, id="inv-of-another/event:ended", task_queue=env.client.task_queue
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await delivery.result()
    assert "NotAllowed" in str(failed.value.cause)
    assert receiver.requests == []


async def test_a_delivery_whose_id_is_taken_is_made_all_the_same(
    serve: Serve, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """A workflow that holds the ID, such as an earlier delivery after a reset, does not swallow the event."""
    file = channels(tmp_path, endpoint(tmp_path, receiver))
    async with serve(speaks("clerk", says("Hello.")), channels=file) as env:
        id = f"{env.client.task_queue}-taken"
        taken = ids.event_delivery(id, "ended")
        await env.temporal.start_workflow(EVENT_WORKFLOW, {}, id=taken, task_queue="nobody-polls-this")
        invocation = await env.client.start("clerk", "hello", id=id)
        await invocation.result()
        [ended] = await received(receiver)
    assert ended.body["data"]["status"] == "completed"
