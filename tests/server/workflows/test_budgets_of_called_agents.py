"""Called agents share the budget of their caller."""

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.workflows.test_budgets import ASK, pays, using
from tests.server.workflows.test_children import waiting
from tests.steps import run, tool_responses
from waystation.agents import Agent
from waystation.core.budget import Budget, Grant, Spent
from waystation.core.errors import ModelRefused
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool


def insatiable(name: str, till: Till) -> Agent:
    """Return an agent that pays as long as it can, 30 tokens each time."""

    def speak(request: LlmRequest) -> LlmResponse:
        return pays(1, 30) if request.tools else using(1, says(f"{name} is done."))

    return Agent(name=name, description="Pays.", model=FunctionModel(speak), tools=[till.pay])


async def test_called_agents_share_the_rest_of_the_budget(serve: Serve) -> None:
    """Two parallel agents get half each of the remaining 200; the usage of both counts for their caller."""
    till = Till()
    helpers = [insatiable("left", till), insatiable("right", till)]
    model = ScriptedModel(
        using(100, calls(("left", {"request": "go"}), ("right", {"request": "go"}))), using(1, says("Both done."))
    )
    agent = Agent(name="boss", model=model, tools=[AgentTool(helper) for helper in helpers])
    async with serve(agent) as env:
        invocation = await env.client.start("boss", "go", budget=Budget(max_total_tokens=300))
        result = await invocation.result()
        children = [await env.client.invocation(f"{invocation.id}/fc-{n}").result() for n in (1, 2)]
    # The fourth reply of each exceeds 100, and the agent wraps up.
    assert [child.spent and child.spent.total_tokens for child in children] == [121, 121]
    assert [child.status for child in children] == ["stopped", "stopped"]
    assert tool_responses(model.requests[1]) == [{"result": "left is done."}, {"result": "right is done."}]
    assert result.spent is not None
    assert (result.spent.total_tokens, result.usage.total_tokens) == (343, 343)
    assert (result.spent.model_calls, result.spent.tool_calls) == (12, 10)
    assert (result.status, result.text) == ("stopped", "Both done.")


async def test_the_unused_share_of_a_called_agent_returns_to_its_caller(serve: Serve) -> None:
    """An unused share returns, because it was reserved and not spent."""
    helper = Agent(name="helper", description="Helps.", model=ScriptedModel(using(10, says("Helped."))))
    helper_call = using(50, calls(("helper", {"request": "go"})))
    model = ScriptedModel(helper_call, using(50, calls(("helper", {"request": "again"}))), using(1, says("Done.")))
    helper.model.add(using(10, says("Helped again.")))  # type: ignore[union-attr]
    result = await run(
        serve(Agent(name="boss", model=model, tools=[AgentTool(helper)])),
        "boss",
        "go",
        budget=Budget(max_total_tokens=121),
    )
    assert (result.status, result.text) == ("completed", "Done.")
    assert result.spent is not None
    assert result.spent.total_tokens == 121


async def test_an_agent_is_not_called_without_budget(serve: Serve) -> None:
    """The model receives an error and wraps up."""
    child = ScriptedModel(says("never said"))
    helper = Agent(name="helper", description="Helps.", model=child)
    model = ScriptedModel(using(100, calls(("helper", {"request": "go"}))), says("Without help."))
    result = await run(
        serve(Agent(name="boss", model=model, tools=[AgentTool(helper)])),
        "boss",
        "go",
        budget=Budget(max_total_tokens=100),
    )
    assert (result.status, result.text, child.requests) == ("stopped", "Without help.", [])
    assert tool_responses(model.requests[1])[0]["error_type"] == "BudgetExhausted"


async def test_a_grant_to_a_called_agent_counts_for_its_caller(serve: Serve) -> None:
    """A grant to a called agent counts for its caller, so no approver is asked twice."""
    till = Till()
    child = ScriptedModel(pays(1, 100), using(50, says("Paid.")))
    helper = Agent(name="helper", description="Helps.", model=child, tools=[till.pay])
    model = ScriptedModel(calls(("helper", {"request": "go"})), using(1, says("Done.")))
    async with serve(Agent(name="boss", model=model, tools=[AgentTool(helper)])) as env:
        invocation = await env.client.start("boss", "go", budget=ASK)
        called = env.client.invocation(f"{invocation.id}/fc-1")
        assert await waiting(called) == ["budget-1"]
        await called.approve("budget-1")
        result = await invocation.result()
    assert (result.status, result.text, result.granted) == ("completed", "Done.", Grant(max_total_tokens=100))
    assert result.spent == Spent(
        model_calls=4, total_tokens=151, tool_calls=2, working_s=result.spent.working_s if result.spent else 0
    )


async def test_a_failed_called_agent_reports_its_usage(serve: Serve) -> None:
    """The failure contains the usage, and the rest of the share returns to the caller."""
    till = Till()
    child = ScriptedModel(pays(1, 30), ModelRefused("no"))
    helper = Agent(name="helper", description="Helps.", model=child, tools=[till.pay])
    model = ScriptedModel(using(10, calls(("helper", {"request": "go"}))), using(1, says("Without help.")))
    result = await run(
        serve(Agent(name="boss", model=model, tools=[AgentTool(helper)])),
        "boss",
        "go",
        budget=Budget(max_total_tokens=100),
    )
    assert (result.status, result.text) == ("completed", "Without help.")
    assert result.spent == Spent(
        model_calls=3, total_tokens=41, tool_calls=2, working_s=result.spent.working_s if result.spent else 0
    )


async def test_a_grant_survives_the_failure_of_a_called_agent(serve: Serve) -> None:
    """The caller can use the rest of a grant after the called agent failed."""
    till = Till()
    child = ScriptedModel(pays(1, 100), ModelRefused("no"))
    helper = Agent(name="helper", description="Helps.", model=child, tools=[till.pay])
    model = ScriptedModel(calls(("helper", {"request": "go"})), using(1, says("Without help.")))
    async with serve(Agent(name="boss", model=model, tools=[AgentTool(helper)])) as env:
        invocation = await env.client.start("boss", "go", budget=ASK)
        called = env.client.invocation(f"{invocation.id}/fc-1")
        assert await waiting(called) == ["budget-1"]
        await called.approve("budget-1")
        result = await invocation.result()
    assert (result.status, result.text, result.granted) == ("completed", "Without help.", Grant(max_total_tokens=100))
