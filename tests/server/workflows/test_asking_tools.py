"""Tools that ask a person while they run are run again with the answer."""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.steps import approve_and_finish, reject_and_finish, start_and_get_call, start_and_wait
from waystation.agents import Agent
from waystation.core.errors import InvalidAnswer
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.tools.tool_context import ToolContext

CONFIG = {"credentialKey": "calendar", "authScheme": {"type": "apiKey", "in": "header", "name": "X-Key"}}


def book(days: int, tool_context: ToolContext) -> dict[str, Any]:
    """Book days off; a person decides how many."""
    tool_context.state["runs"] = tool_context.state.get("runs", 0) + 1
    answer = tool_context.tool_confirmation
    if answer is None:
        tool_context.request_confirmation(hint="How many days?", payload={"days": days})
        return {"status": "asked"}
    if not answer.confirmed:
        return {"status": "refused", "key": tool_context.idempotency_key}
    return {"booked": answer.payload["days"], "key": tool_context.idempotency_key}


def read_calendar(day: str, tool_context: ToolContext) -> dict[str, str]:
    """Read a calendar after a login."""
    if "temp:asked" not in tool_context.state:
        tool_context.state["temp:asked"] = True
        tool_context.actions.requested_auth_configs[tool_context.function_call_id or ""] = CONFIG
        return {"status": "login needed"}
    return {day: "free"}


async def test_the_model_continues_until_the_answer_arrives(serve: Serve) -> None:
    """The tool runs twice with one idempotency key; its state counts from both runs."""
    model = ScriptedModel(calls(("book", {"days": 5})), says("I have asked."), says("You have 3 days."))
    async with serve(Agent(name="hr", model=model, tools=[book])) as env:
        invocation, pending = await start_and_get_call(env.client.start("hr", "5 days off"), "fc-1")
        assert (pending.kind, pending.hint, pending.payload) == ("confirmation", "How many days?", {"days": 5})
        result = await approve_and_finish(invocation, response={"days": 3})
    assert result.text == "You have 3 days."
    assert result.state_delta == {"runs": 2}
    assert responses(model.requests[1]) == [("book", {"status": "asked"})]
    assert responses(model.requests[2]) == [("book", {"booked": 3, "key": f"{invocation.id}/fc-1", "days": 3})]


async def test_a_rejection_reaches_the_tool(serve: Serve) -> None:
    """The tool handles it; see adk-semantics 2.2."""
    model = ScriptedModel(calls(("book", {"days": 5})), says("I have asked."), says("No."))
    async with serve(Agent(name="hr", model=model, tools=[book])) as env:
        invocation = await start_and_wait(env.client.start("hr", "5 days off"), "fc-1")
        await reject_and_finish(invocation)
    assert responses(model.requests[-1])[0][1]["status"] == "refused"


async def test_a_call_that_needs_a_login_holds_the_model_back(serve: Serve) -> None:
    """The model is called once, with the result of the second run."""
    model = ScriptedModel(calls(("read_calendar", {"day": "monday"})), says("Monday is free."))
    async with serve(Agent(name="secretary", model=model, tools=[read_calendar])) as env:
        invocation, pending = await start_and_get_call(env.client.start("secretary", "monday?"), "fc-1")
        assert (pending.kind, pending.payload) == ("credential", CONFIG)
        assert len(model.requests) == 1
        assert (await approve_and_finish(invocation)).text == "Monday is free."
    assert responses(model.requests[-1]) == [("read_calendar", {"monday": "free"})]


@pytest.mark.parametrize("signal", [True, False])
async def test_an_answer_with_a_secret_is_refused(serve: Serve, signal: bool) -> None:
    """An update leaves no trace in the history; a signal is recorded as ignored, with the advice to revoke it."""
    model = ScriptedModel(calls(("read_calendar", {"day": "monday"})), says("Monday is free."))
    async with serve(Agent(name="secretary", model=model, tools=[read_calendar])) as env:
        invocation, pending = await start_and_get_call(env.client.start("secretary", "monday?"), "fc-1")
        secret = {"apiKey": "hunter2-hunter2"}
        if signal:
            await invocation.answer("approve", pending.function_call_id, signal=True, response=secret)
        else:
            with pytest.raises(InvalidAnswer, match="looks like a secret"):
                await invocation.answer("approve", pending.function_call_id, response=secret)
        assert [call.function_call_id for call in await invocation.pending()] == [pending.function_call_id]
        await approve_and_finish(invocation)
        history = await invocation.history()
        assert signal or b"hunter2" not in b"".join(event.SerializeToString() for event in history.events)
