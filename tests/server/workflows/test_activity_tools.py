"""Activities of the user as tools: the invocation schedules them itself, on the workers that have them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import activity
from temporalio.client import WorkflowFailureError, WorkflowHistory
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from tests.server.conftest import Serve
from tests.steps import answer_and_finish, reject_and_finish, start_and_finish
from waystation import ActivityTool, Agent, ApprovalPolicy, InvalidAnswer, Invocation
from waystation.replay import Recording
from waystation.replay.activity_replay import NoSuchActivity, find_tool_call
from waystation.testing import AgentEnvironment, FunctionModel, ScriptedModel, calls, responses, says


class Refund(BaseModel):
    """Refund an order."""

    order: str
    cents: int = 100


received: list[Any] = []


@activity.defn
async def refund(params: dict[str, Any]) -> dict[str, Any]:
    """Take one object, as activities in most languages do."""
    received.append((activity.info().activity_id, params))
    return {"refunded": params["order"]}


@activity.defn
async def move(source: str, target: str, cents: int = 5) -> str | None:
    """Move money between accounts."""
    received.append((source, target, cents))
    return None


@activity.defn
async def fail() -> None:
    """Fail at every attempt."""
    received.append(activity.info().attempt)
    raise ApplicationError("no such order", type="NotFound")


@activity.defn
async def hang() -> None:
    """Run until it is canceled."""
    received.append("hangs")
    try:
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        received.append("canceled")
        raise


GIFTS: dict[str, Any] = {
    "list": [1, [2]],
    "text": "text",
    "number": 0.5,
    "deep": json.loads("[" * 100 + "]" * 100),
    "long": 10**30,
    "bytes": b"bytes",
}


@activity.defn
async def give(what: str) -> Any:
    """Return something."""
    received.append(what)
    return GIFTS[what]


@asynccontextmanager
async def users_worker(env: AgentEnvironment, *activities: Callable[..., Any]) -> AsyncIterator[str]:
    """Run a worker of the user, which has no agent, with a client of its own."""
    received.clear()
    queue = f"{env.client.task_queue}-users"
    async with Worker(env.temporal, task_queue=queue, activities=activities):
        yield queue


def scheduled(history: WorkflowHistory) -> list[str]:
    """Return the types of the activities of an invocation, in order."""
    about = (event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events)
    return [name for name in about if name]


async def waiting(invocation: Invocation) -> None:
    """Wait until a call waits for an approver."""
    while not await invocation.pending():
        await asyncio.sleep(0.01)


def agent(tool: ActivityTool, *replies: Any, **options: Any) -> tuple[Agent, ScriptedModel]:
    """Return an agent with one tool, and its model."""
    model = ScriptedModel(*replies)
    return Agent(name="clerk", model=model, tools=[tool], **options), model


async def test_an_activity_of_the_user_is_a_tool(serve: Serve) -> None:
    """A call runs only the user's activity, which takes the valid arguments as one object and returns the response."""
    clerk, model = agent(
        ActivityTool("refund", schema=Refund), calls(("refund", {"order": "A1", "extra": "dropped"})), says("done")
    )
    async with serve(clerk) as env, users_worker(env, refund) as queue:
        clerk.tools[0].task_queue = queue
        invocation = await env.client.start("clerk", "hi")
        assert (await invocation.result()).text == "done"
        assert scheduled(await invocation.history()) == ["call_model", "refund", "call_model"]
    assert received == [("fc-1.target", {"order": "A1"})]
    assert responses(model.requests[-1]) == [("refund", {"refunded": "A1"})]


async def test_a_function_describes_arguments_that_are_passed_separately(serve: Serve) -> None:
    """Arguments are passed separately with their defaults. An activity that returns nothing gives the model a null."""
    clerk, model = agent(
        ActivityTool("move", schema=move, effect="once"),
        calls(("move", {"source": "a", "target": "b"})),
        says("done"),
    )
    async with serve(clerk) as env, users_worker(env, move) as queue:
        clerk.tools[0].task_queue = queue
        assert (await env.client.run("clerk", "hi")).text == "done"
    assert received == [("a", "b", 5)]
    assert responses(model.requests[-1]) == [("move", {"result": None})]


async def test_invalid_arguments_never_reach_the_activity(serve: Serve) -> None:
    """The model receives the reasons in the reply's own activity."""
    schema = {"type": "object", "properties": {"order": {"type": "string"}}}
    clerk, model = agent(
        ActivityTool("refund", schema=schema, task_queue="nobody"),
        calls(("refund", {"order": 7}), ("refund", {"order": "A1", "admin": True})),
        says("done"),
    )
    async with serve(clerk) as env:
        invocation = await start_and_finish(env.client.start("clerk", "hi"))
        assert scheduled(await invocation.history()) == ["call_model", "call_model"]
    first, second = (response["error"] for _, response in responses(model.requests[-1]))
    assert "7 is not of type 'string'" in first
    assert "'admin' was unexpected" in second


async def test_an_approver_edits_the_arguments_of_an_activity(serve: Serve) -> None:
    """A tool activity verifies the approval of the edited call; then the user's activity runs with its arguments."""
    clerk, model = agent(
        ActivityTool("refund", schema=Refund, approval=ApprovalPolicy(actions=("approve", "edit", "reject"))),
        calls(("refund", {"order": "A1"})),
        says("done"),
    )
    async with serve(clerk) as env, users_worker(env, refund) as queue:
        clerk.tools[0].task_queue = queue
        invocation = await env.client.start("clerk", "hi")
        await waiting(invocation)
        with pytest.raises(InvalidAnswer, match="cents: Input should be a valid integer"):
            await invocation.answer("edit", "fc-1", args={"order": "A1", "cents": "all"})
        assert received == []
        await answer_and_finish(invocation, "edit", "fc-1", args={"order": "A1", "cents": "5"})
        names = [name for name in scheduled(await invocation.history()) if name != "review_answer"]
        assert names == ["call_model", "clerk.refund", "refund", "call_model"]
    assert received == [("fc-1~1.target", {"order": "A1", "cents": 5})]
    assert responses(model.requests[-1]) == [("refund", {"refunded": "A1", "edited": {"args": {"cents": {"to": 5}}}})]


async def test_a_rejected_call_never_reaches_the_activity(serve: Serve) -> None:
    """The model gets the rejection."""
    clerk, model = agent(
        ActivityTool("refund", schema=Refund, require_confirmation=True), calls(("refund", {"order": "A1"})), says("ok")
    )
    async with serve(clerk) as env:
        invocation = await env.client.start("clerk", "hi")
        await waiting(invocation)
        await reject_and_finish(invocation, "fc-1")
    assert "rejected" in responses(model.requests[-1])[0][1]["error"]


@pytest.mark.parametrize(("effect", "retries", "attempts"), [("once", 0, [1]), ("repeatable", 1, [1, 2])])
async def test_the_attempts_of_a_failing_activity_follow_its_effect(
    serve: Serve, effect: Any, retries: int, attempts: list[int]
) -> None:
    """A call with the effect `once` has one attempt, and any other as many as it has retries. The model receives the
    failure.
    """
    clerk, model = agent(ActivityTool("fail", effect=effect, retries=retries), calls(("fail", {})), says("done"))
    async with serve(clerk) as env, users_worker(env, fail) as queue:
        clerk.tools[0].task_queue = queue
        await env.client.run("clerk", "hi")
    assert received == attempts
    assert responses(model.requests[-1]) == [("fail", {"error": "no such order", "error_type": "NotFound"})]


async def test_a_lost_activity_is_not_repeated_silently(serve: Serve) -> None:
    """A call with the effect `once` that does not end in time has an unknown outcome."""
    clerk, model = agent(
        ActivityTool("hang", effect="once", timeout=timedelta(milliseconds=200)), calls(("hang", {})), says("done")
    )
    async with serve(clerk) as env, users_worker(env, hang) as queue:
        clerk.tools[0].task_queue = queue
        await env.client.run("clerk", "hi")
    (_, response), *_ = responses(model.requests[-1])
    assert response["error_type"] == "OutcomeUnknown"
    assert "it was not repeated" in response["error"]
    assert received.count("hangs") == 1


async def test_cancellation_reaches_the_activity(serve: Serve) -> None:
    """An activity with heartbeats is canceled with its invocation."""
    clerk, _ = agent(ActivityTool("hang", heartbeat_timeout=timedelta(seconds=1)), calls(("hang", {})))
    async with serve(clerk) as env, users_worker(env, hang) as queue:
        clerk.tools[0].task_queue = queue
        invocation = await env.client.start("clerk", "hi")
        while not received:
            await asyncio.sleep(0.01)
        await invocation.cancel()
        with pytest.raises(WorkflowFailureError):
            await invocation.result()
    assert received == ["hangs", "canceled"]


async def test_callbacks_process_the_call_and_its_result(serve: Serve) -> None:
    """A callback before the tool may change the arguments, which are then validated; one after it may change the
    response.
    """

    def before(tool: Any, args: dict[str, Any], tool_context: Any) -> None:
        args["order"] = "B2"

    def after(tool: Any, args: dict[str, Any], tool_context: Any, tool_response: Any) -> dict[str, Any]:
        return {"seen": tool_response}

    clerk, model = agent(
        ActivityTool("refund", schema=Refund),
        calls(("refund", {"order": "A1"})),
        says("done"),
        before_tool_callback=before,
        after_tool_callback=after,
    )
    async with serve(clerk) as env, users_worker(env, refund) as queue:
        clerk.tools[0].task_queue = queue
        await env.client.run("clerk", "hi")
    assert received == [("fc-1.target", {"order": "B2"})]
    assert responses(model.requests[-1]) == [("refund", {"seen": {"refunded": "B2"}})]


async def test_a_result_of_any_shape_reaches_the_model(serve: Serve) -> None:
    """A result that cannot be recorded becomes an error, and the activity is not repeated."""
    clerk, model = agent(
        ActivityTool("give", schema=give), calls(*(("give", {"what": what}) for what in GIFTS)), says("done")
    )
    async with serve(clerk) as env, users_worker(env, give) as queue:
        clerk.tools[0].task_queue = queue
        await env.client.run("clerk", "hi")
    results = [response for _, response in responses(model.requests[-1])]
    assert results[:3] == [{"result": [1, [2]]}, {"result": "text"}, {"result": 0.5}]
    assert [response["error_type"] for response in results[3:]] == ["NotJson", "NotJson", "NotJson"]
    assert sorted(received) == sorted(GIFTS)


async def test_a_fork_inherits_the_result_of_an_activity(serve: Serve) -> None:
    """A recorded result does not run again. `waystation rerun` does not run the user's code either."""
    model = FunctionModel(lambda request: says("done") if responses(request) else calls(("refund", {"order": "A1"})))
    tool = ActivityTool("refund", schema=Refund)
    async with serve(Agent(name="clerk", model=model, tools=[tool])) as env, users_worker(env, refund) as queue:
        tool.task_queue = queue
        source = await start_and_finish(env.client.start("clerk", "hi"))
        fork = await env.client.forks.start(source.id, 3)
        assert (await fork.result()).text == "done"
        assert len(received) == 1
        recording = await Recording.of(source)
        with pytest.raises(NoSuchActivity, match="runs the activity 'refund'"):
            find_tool_call(recording, "fc-1")
