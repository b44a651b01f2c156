"""`waystation pending`, and the commands that answer calls."""

from datetime import timedelta

import pytest
from temporalio.client import WorkflowFailureError

from tests.server.cli.conftest import Command
from tests.server.cli.test_run import ask, asking, waits
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, wait_until
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import External
from waystation.core.log import is_working
from waystation.testing import Machine, ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool


async def test_pending_calls_are_listed_for_one_invocation_and_for_all(serve: Serve, waystation: Command) -> None:
    """The list of the namespace and the list of the invocation match the state of the workflow."""
    async with serve(asking()) as env:
        invocation = await env.client.start("asker", "go", user_id="dana")
        call = await waits(invocation)
        one = await waystation(env, "pending", invocation.id, "--json")
        assert one.records == [call.model_dump(mode="json")]

        async def every() -> bool:
            return one.records[0] in (await waystation(env, "pending", "--json")).records

        await wait_until(every, "the call in the list of all")
        listing = await waystation(env, "pending", invocation.id)
        assert "asked by asker, for user dana" in listing.out
        assert f"{invocation.id}/fc-1" in (await waystation(env, "pending")).out
        await approve_and_finish(invocation)
        assert (await waystation(env, "pending", invocation.id, "--json")).out == ""
        assert "No calls are waiting" in (await waystation(env, "pending", invocation.id)).out


async def test_an_answer_carries_comment_person_and_response(serve: Serve, waystation: Command) -> None:
    """Comment, person and response are recorded with the answer."""
    async with serve(asking()) as env:
        invocation = await env.client.start("asker", "go")
        await waits(invocation)
        options = ("--comment", "too dear", "--by", "dana", "--response", '{"limit": 50}')
        ran = await waystation(env, "reject", invocation.id, "fc-1", *options, "--json")
        assert ran.code == 0
        assert ran.records == [{"accepted": True, "function_call_id": "fc-1", "tool": "ask", "action": "reject"}]
        await invocation.result()
        answer = (await invocation.log()).state.calls["fc-1"].answer
        assert answer is not None
        assert (answer.by, answer.comment, answer.response) == ("dana", "too dear", {"limit": 50})
        assert answer.digest is not None


async def test_a_confirmation_is_edited(serve: Serve, waystation: Command) -> None:
    """The tool runs with the edited arguments, and the output shows the original and the edited call."""

    def pay(amount: int) -> dict[str, int]:
        return {"paid": amount}

    model = ScriptedModel(calls(("pay", {"amount": 5})), says("paid"))
    agent = Agent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    async with serve(agent) as env:
        invocation = await env.client.start("payer", "go")
        await waits(invocation)
        assert (await waystation(env, "edit", invocation.id)).code == 2
        ran = await waystation(env, "edit", invocation.id, "--args", '{"amount": 3}', "--by", "dana")
        assert ran.out.startswith("approved pay(amount=5) as pay(amount=3) [fc-1]")
        await invocation.result()
        response = (await invocation.log()).state.events[-2].content
        assert response is not None
        assert response["parts"][0]["functionResponse"]["response"] == {
            "paid": 3,
            "edited": {"args": {"amount": {"from": 5, "to": 3}}, "by": "dana"},
        }


async def test_a_long_running_call_receives_progress_and_a_response(serve: Serve, waystation: Command) -> None:
    """Progress leaves the call open and wakes the agent unless it is quiet; the response is recorded unchanged."""
    async with serve(asking()) as env:
        invocation = await env.client.start("asker", "go")
        await waits(invocation)
        told = await waystation(env, "progress", invocation.id, "--quiet", "--response", '{"status": "at customs"}')
        assert told.out.startswith('reported the progress of ask(purpose="x") [fc-1]')
        [call] = await invocation.pending()
        assert call.interim == {"status": "at customs"}
        ran = await waystation(env, "respond", invocation.id, "--response", '{"status": "delivered"}', "--json")
        assert ran.records == [{"accepted": True, "function_call_id": "fc-1", "tool": "ask", "action": "respond"}]
        assert (await invocation.result()).text == "They said delivered."
        answer = (await invocation.log()).state.calls["fc-1"].answer
        assert answer is not None
        assert answer.response == {"status": "delivered"}


async def test_an_action_that_a_call_does_not_accept_exits_with_2(serve: Serve, waystation: Command) -> None:
    """The call stays pending, and the message lists the actions that it accepts."""
    async with serve(asking()) as env:
        invocation = await env.client.start("asker", "go")
        await waits(invocation)
        ran = await waystation(env, "edit", invocation.id, "--args", "{}")
        assert (ran.code, "respond" in ran.err) == (2, True)
        await approve_and_finish(invocation)


async def test_an_answered_call_exits_with_3(serve: Serve, waystation: Command) -> None:
    """The first answer counts, even after the invocation has ended, and the message names it."""
    async with serve(asking()) as env:
        invocation = await env.client.start("asker", "go")
        await waits(invocation)
        assert (await waystation(env, "approve", invocation.id, "--by", "dana")).code == 0
        await invocation.result()
        ran = await waystation(env, "reject", invocation.id)
        assert (ran.code, ran.out) == (3, "")
        assert "already answered by 'dana': approve" in ran.err


async def test_an_expired_call_exits_with_4(serve: Serve, waystation: Command) -> None:
    """An answer after the deadline does not count."""
    agent = asking()
    agent.tools = [LongRunningFunctionTool(ask, deadline=timedelta(seconds=0.5))]
    async with serve(agent) as env:
        invocation = await env.client.start("asker", "go")
        assert (await invocation.result()).text == "They said expired."
        ran = await waystation(env, "approve", invocation.id)
        assert ran.code == 4
        assert "deadline" in ran.err


async def test_unknown_calls_and_invocations_exit_with_6(serve: Serve, waystation: Command) -> None:
    """This includes a call that never waited, and a call of an invocation that was cancelled in the meantime."""
    async with serve(asking()) as env:
        invocation = await env.client.start("asker", "go")
        await waits(invocation)
        assert (await waystation(env, "approve", invocation.id, "fc-9")).code == 6
        assert (await waystation(env, "approve", "no-such")).code == 6
        assert (await waystation(env, "pending", "no-such")).code == 6
        await invocation.cancel()
        with pytest.raises(WorkflowFailureError):
            await invocation.result()
        ran = await waystation(env, "approve", invocation.id, "fc-1")
        assert (ran.code, "the invocation is cancelled" in ran.err) == (6, True)


async def test_several_pending_calls_need_an_id(serve: Serve, waystation: Command) -> None:
    """Without an id nothing is answered, and the message lists the ids."""
    agent = asking()
    agent.model = ScriptedModel(calls(("ask", {"purpose": "x"}), ("ask", {"purpose": "y"})), says("asked"))
    async with serve(agent) as env:
        invocation = await env.client.start("asker", "go")
        async for log in invocation.follow():
            if len(log.state.waiting()) == 2 and not is_working(log.state):
                break
        ran = await waystation(env, "approve", invocation.id)
        assert ran.code == 6
        assert "has several pending calls" in ran.err
        assert "fc-1, fc-2" in ran.err
        for call in ("fc-1", "fc-2"):
            assert (await waystation(env, "approve", invocation.id, call)).code == 0
        await invocation.result()


@pytest.mark.slow
async def test_an_answer_without_confirmation_exits_with_7(
    serve: Serve, waystation: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says that the answer may still count, not that it failed."""
    defaults = Invocation.answer.__kwdefaults__ or {}
    assert defaults["confirm_within"] == timedelta(seconds=15)
    monkeypatch.setitem(defaults, "confirm_within", timedelta(seconds=1))
    async with serve(asking()) as env:
        # The task queue is another one, so no worker ever takes it.
        ran = await waystation(env, "run", "asker", "go", "--task-queue", "deserted", "--detach", "--json")
        id = ran.records[0]["invocation_id"]
        ran = await waystation(env, "approve", id, "fc-1")
        assert ran.code == 7
        assert "may still be applied" in ran.err
        await env.client.invocation(id).handle.terminate()


async def test_a_response_must_be_an_object(serve: Serve, waystation: Command) -> None:
    """Anything but a JSON object is a usage error, and the call stays pending."""
    async with serve(asking()) as env:
        invocation = await env.client.start("asker", "go")
        await waits(invocation)
        assert (await waystation(env, "approve", invocation.id, "--response", "yes")).code == 2
        assert len(await invocation.pending()) == 1
        await approve_and_finish(invocation)


async def test_operators_list_the_calls_of_machines_and_answer_in_their_place(
    serve: Serve, waystation: Command
) -> None:
    """The list has the last progress. The calls of people do not include them; a replacement needs a comment."""
    tool = LongRunningFunctionTool(ask, answered_by=External("claims"))
    agent = Agent(
        name="asker", model=ScriptedModel(calls(("ask", {"purpose": "?"})), *[says("done")] * 2), tools=[tool]
    )
    async with serve(agent) as env:
        invocation = await env.client.start("asker", "go")
        await Machine("claims").progress(invocation, {"step": 1})

        async def listed() -> str:
            out = (await waystation(env, "pending", "--machines")).out
            return out if "progress" in out else ""

        assert "claims" in await wait_until(listed, "the call in visibility")
        assert invocation.id not in (await waystation(env, "pending")).out
        place = f"{invocation.id}/fc-1"
        assert (await waystation(env, "respond", place, "--response", "{}")).code == 5
        reply = ("--response", '{"status": "paid"}', "--by", "olga")
        assert (await waystation(env, "replace", place, *reply)).code == 2
        assert (await waystation(env, "revoke", place, "--by", "olga")).code == 0
        assert (await waystation(env, "replace", place, *reply, "--comment", "By phone.")).code == 0

        async def is_gone() -> bool:
            return invocation.id not in (await waystation(env, "pending", "--machines")).out

        await wait_until(is_gone, "the end of the call")
        await invocation.result()
        answered_by = (await invocation.log()).state.calls["fc-1"].answered_by
    assert answered_by == "olga"
