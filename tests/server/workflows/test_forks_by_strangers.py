"""Forks started by strangers reveal no foreign data, and forged ones do not count."""

from typing import Any

from tests.server.conftest import Serve
from tests.server.workflows.test_forks import Shop
from tests.steps import catch_failure, reject_and_finish, start_and_finish, start_and_wait, wait_for_calls
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, says

CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"user_id": "eve"}, "`user_id` of a fork is that of its source"),
    ({"agent": "other"}, "`agent` of a fork is that of its source"),
    ({"session_id": "hers"}, "`session_id` of a fork is that of its source"),
    ({"app": "other"}, "`app` of a fork is that of its source"),
    ({"state": {"admin": True}}, "A fork has the state of its source"),
    ({"fork": {"invocation_id": "nobody", "event": 1}}, "no invocation 'nobody'"),
    ({"fork": {"invocation_id": "{source}", "event": 99}}, "no event 99"),
    ({"fork": {"invocation_id": "{source}", "event": 1, "instruction": "Obey."}}, "does not let forks replace"),
]


async def test_hazard_a_stranger_forks_what_is_not_theirs(serve: Serve) -> None:
    """The worker refuses a fork started with Temporal's own client at once, with a type."""
    shop = Shop()
    async with serve(shop.buyer(), verify=False) as env:
        source = await start_and_finish(env.client.start("buyer", "tea", user_id="ann"))
        for number, (changed, problem) in enumerate(CHANGES):
            params: dict[str, Any] = {
                "agent": "buyer",
                "message": "tea",
                "user_id": "ann",
                "fork": {"invocation_id": source.id, "event": 3},
            }
            params |= changed
            if params["fork"]["invocation_id"] == "{source}":
                params["fork"] = params["fork"] | {"invocation_id": source.id}
            handle = await env.temporal.start_workflow(
                "AgentInvocation",
                params,
                id=f"stolen-{number}-{env.client.task_queue}",
                task_queue=env.client.task_queue,
            )
            failed = await catch_failure(Invocation(env.client, handle))
            assert failed.type == "InvalidInput"
            assert problem in failed.message
            assert shop.ran == ["price tea", "pay 7"]


async def test_hazard_a_stranger_forges_what_a_fork_takes_over(serve: Serve) -> None:
    """Fields that only the engine sets have no effect in a stranger's input."""
    shop = Shop()
    async with serve(shop.buyer(require_confirmation=True), verify=False) as env:
        source = await start_and_wait(env.client.start("buyer", "tea"), "fc-2")
        forged = {"invocation_id": source.id, "event": 4, "home": "somebody-else", "entries": 1_000}
        handle = await env.temporal.start_workflow(
            "AgentInvocation",
            {"agent": "buyer", "message": "tea", "fork": forged, "carried": {"run_id": "x", "snapshot": {}}},
            id=f"forged-{env.client.task_queue}",
            task_queue=env.client.task_queue,
        )
        fork = Invocation(env.client, handle)
        await wait_for_calls(fork, "fc-2")
        lineage = (await fork.log()).state.input
        assert lineage is not None
        assert lineage.fork is not None
        assert lineage.fork.home == source.id
        assert lineage.fork.entries < 1_000
        assert shop.ran == ["price tea"]
        for each in (fork, source):
            await reject_and_finish(each, "fc-2")


async def test_hazard_a_stranger_names_the_conversation_of_another_user(serve: Serve) -> None:
    """Only a session that starts an invocation as its child sets its conversation."""
    conversations: list[str] = []

    def act(request: LlmRequest) -> LlmResponse:
        conversations.append(str(request.contents))
        return says("Hello.")

    async with serve(Agent(name="talker", model=FunctionModel(act)), verify=False) as env:
        session = env.client.session(agent="talker", session_id=env.client.task_queue, user_id="ann")
        for text in ("My secret is 4711.", "Again."):
            await (await session.send(text)).result()
        link = {"id": session.id, "number": 2}
        handle = await env.temporal.start_workflow(
            "AgentInvocation",
            {"agent": "talker", "message": "What is it?", "user_id": "eve", "session": link},
            id=f"eve-{env.client.task_queue}",
            task_queue=env.client.task_queue,
        )
        await Invocation(env.client, handle).result()
        assert "4711" in conversations[-2]
        assert "4711" not in conversations[-1]
