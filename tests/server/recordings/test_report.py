"""Reports on invocations, as JSON and as a page, on a server."""

import json

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from tests.agents import Till
from tests.corpus.test_report import Page
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, start_and_finish, start_and_wait
from waystation.agents import Agent
from waystation.core.budget import Budget, Price, Usage
from waystation.core.contract import Call, EventActions, InvocationInput, ModelReply, ToolOutcome
from waystation.core.log import (
    END,
    START,
    Began,
    CallRef,
    CallReturned,
    Ended,
    Log,
    ModelCalled,
    ModelCallRef,
    ModelReplied,
    ModelReplyRef,
)
from waystation.models import LlmResponse
from waystation.replay import Recording, report
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


def used(response: LlmResponse) -> LlmResponse:
    """Return a response with its token usage."""
    return response.model_copy(update={"usage": Usage(output_tokens=3, total_tokens=3)})


@pytest.mark.slow
async def test_a_report_covers_an_invocation_and_its_called_agents(serve: Serve) -> None:
    """The report has model calls with cost, retries with reasons, answers and state changes, also of called agents."""
    tries: list[int] = []

    def look(where: str, tool_context: ToolContext) -> dict[str, str]:
        tries.append(1)
        if len(tries) == 1:
            raise TimeoutError("the archive did not answer")
        tool_context.state["seen"] = where
        return {"found": "it"}

    till = Till()
    helper = Agent(name="helper", model=ScriptedModel(calls(("look", {"where": "here"})), says("Found.")))
    helper.tools = [FunctionTool(look, retries=2)]
    model = ScriptedModel(
        used(calls(("helper", {"request": "Look!"}))), used(calls(("pay", {"amount": 5}))), used(says("Paid."))
    )
    pay = FunctionTool(till.pay, require_confirmation=True)
    agent = Agent(name="payer", model=model, tools=[AgentTool(helper), pay])
    async with serve(agent) as env:
        budget = Budget(prices={"*": Price(prompt=1, output=2)})
        invocation = await start_and_wait(env.client.start("payer", "Pay.", state={"seen": "nothing"}, budget=budget))
        waiting = report(await Recording.of(invocation)).to_json()
        assert (waiting["status"], waiting["ended"]) == ("waiting", None)
        assert (waiting["timeline"][-1]["kind"], waiting["timeline"][-1]["open"]) == ("wait", True)
        await approve_and_finish(invocation, by="dana", comment="Fine.")
        found = report(await Recording.of(invocation))
    made_report = found.to_json()
    assert (made_report["agent"], made_report["message"], made_report["status"]) == ("payer", "Pay.", "completed")
    assert made_report["result"]["text"] == "Paid."
    assert [span["kind"] for span in made_report["timeline"]] == ["model", "agent", "model", "wait", "tool", "model"]
    assert [(call["number"], call["cost"]) for call in made_report["model_calls"]] == [
        (1, 6e-06),
        (2, 6e-06),
        (3, 6e-06),
    ]
    assert made_report["spent"]["cost"] == pytest.approx(1.8e-05)
    assert [line["kind"] for line in made_report["people"]] == [
        "requested",
        "answered",
        "decided",
        "started",
        "finished",
    ]
    assert made_report["people"][1]["comment"] == "Fine."
    below = made_report["called"]["fc-1"]
    assert [each["attempts"] for each in below["attempts"]] == [2]
    assert "the archive did not answer" not in json.dumps(below["attempts"])
    assert below["attempts"][0]["last_failure"]["error_type"] == "TimeoutError"
    changes = [change for event in below["events"] for change in event["changes"]]
    assert changes == [{"key": "seen", "before": "nothing", "after": "here"}]
    page = Page(found.html())
    for text in ("Paid.", "approved by dana (unverified): “Fine.”", "2 attempts", "helper", "0.000018", "nothing"):
        assert text in page.text


async def test_text_of_models_and_tools_is_never_markup_and_is_cut(serve: Serve) -> None:
    """Tags are text, direction marks are escaped, and a cut text shows its length."""
    bad = "</script></style><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"

    def tool(tool_context: ToolContext) -> dict[str, str]:
        tool_context.state[bad] = bad
        tool_context.state["password"] = "hunter2"
        return {bad: "\u202e" * 5_000, "long": "word " * 150_000}

    agent = Agent(name="victim", model=ScriptedModel(calls(("tool", {})), says(bad + "x" * 100_000)), tools=[tool])
    async with serve(agent) as env:
        invocation = await start_and_finish(env.client.start("victim", bad))
        text = report(await Recording.of(invocation)).html()
    assert len(text) < 120_000
    page = Page(text)
    assert (page.tags["script"], page.tags["img"], text.count("alert(1)</script>")) == (1, 0, 0)
    assert "\u202e" not in text
    assert "hunter2" not in text
    assert "characters omitted" in page.text
    assert "of 100,071 characters" in page.text


def long(rounds: int) -> Recording:
    """Return a recording with many calls, which add about seven history events each."""
    log = Log("long")
    log.record(START, 0.0, Began(InvocationInput(agent="finder", message="Look at all.")))
    for number in range(1, rounds + 2):
        at, call = 10.0 * number, f"fc-{number}"
        log.record(ModelCallRef(number, 0), at, ModelCalled(number))
        call_part = {"functionCall": {"id": call, "name": "look", "args": {"shelf": number}}}
        part, made = (call_part, (Call(id=call),)) if number <= rounds else ({"text": "Done."}, ())
        reply = ModelReply(content={"role": "model", "parts": [part]}, calls=made, definition="d", attempt=1)
        log.record(ModelReplyRef(number), at + 2, ModelReplied(number, reply))
        if made:
            actions = EventActions(state_delta={"seen": number})
            response = {"found": f"books of shelf {number}, " * 200}
            outcome = ToolOutcome(function_call_id=call, response=response, actions=actions)
            log.record(CallRef(call), at + 5, CallReturned(outcome))
    assert log.state.next_deadline() is None
    log.record(END, log.entries[-1].time, Ended("completed"))
    history = WorkflowHistory("long", [HistoryEvent(event_id=number) for number in range(1, 7 * rounds)])
    started = history.events[0].workflow_execution_started_event_attributes
    started.workflow_type.name = "AgentInvocation"
    return Recording("long", [history], log)
