"""Budgets limit an invocation, and an exhausted one ends it or asks a person for more."""

from dataclasses import replace

import pytest

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.workflows.author_code import failure
from tests.steps import (
    approve_and_finish,
    catch_refusal,
    reject_and_finish,
    run,
    start_and_get_call,
    start_and_wait,
    tool_responses,
    wait_for_calls,
)
from waystation.agents import Agent, BaseAgent, ParallelAgent, SequentialAgent
from waystation.core.budget import Budget, Grant, Price, Usage
from waystation.core.errors import ModelOverloaded
from waystation.models import FallbackModel, LlmRequest, LlmResponse
from waystation.testing import FunctionModel, ScriptedHuman, ScriptedModel, calls, says
from waystation.tools.long_running_tool import LongRunningFunctionTool

WRAP_UP = "The budget of this task is used up (max_total_tokens: the limit of 100 tokens is used up). "


def using(tokens: int, reply: LlmResponse, **usage: int) -> LlmResponse:
    """Return a reply with this token count."""
    return replace(reply, usage=Usage(total_tokens=tokens, **usage))


def pays(amount: int, tokens: int = 60) -> LlmResponse:
    """Return a reply that pays."""
    return using(tokens, calls(("pay", {"amount": amount})))


def payer(*replies: LlmResponse | Exception, till: Till | None = None) -> tuple[Agent, ScriptedModel, Till]:
    """Return an agent with a till, and its model."""
    model, till = ScriptedModel(*replies), till or Till()
    return Agent(name="payer", model=model, tools=[till.pay]), model, till


async def test_an_agent_that_used_up_its_tokens_wraps_up(serve: Serve) -> None:
    """The tools of an exhausted agent run, and one last request has their responses, no tools, and the reason."""
    agent, model, till = payer(pays(1), pays(2), using(5, says("Two were paid.")))
    result = await run(serve(agent), "payer", "pay", budget=Budget(max_total_tokens=100))
    assert till.paid == [1, 2]
    assert [bool(request.tools) for request in model.requests] == [True, True, False]
    assert WRAP_UP in (model.requests[2].system_instruction or "")
    assert "budget" not in (model.requests[1].system_instruction or "")
    assert (result.status, result.reason) == ("stopped", "max_total_tokens: the limit of 100 tokens is used up")
    assert (result.text, result.usage.total_tokens) == ("Two were paid.", 125)
    assert result.spent is not None
    assert (result.spent.total_tokens, result.spent.model_calls, result.spent.tool_calls) == (125, 3, 2)


async def test_an_answer_that_uses_up_the_budget_is_complete(serve: Serve) -> None:
    """A complete answer does not count as stopped, even if it uses up the budget."""
    agent, model, _ = payer(using(500, says("Done.")))
    result = await run(serve(agent), "payer", "pay", budget=Budget(max_total_tokens=100))
    assert (result.status, result.reason, result.text, len(model.requests)) == ("completed", None, "Done.", 1)


async def test_calls_instead_of_wrapping_up_do_not_run(serve: Serve) -> None:
    """Calls in the last reply do not run. The event reports them, and the model is not called again."""
    agent, model, till = payer(pays(1, 100), pays(2), says("never said"))
    async with serve(agent) as env:
        invocation = await env.client.start("payer", "pay", budget=Budget(max_total_tokens=100))
        result = await invocation.result()
        [answer] = (await invocation.log()).state.events[-1].function_responses()
    assert (till.paid, len(model.requests), result.status) == ([1], 2, "stopped")
    assert answer["response"] == {
        "error": "`pay` was not run: the agent was asked to wrap up.",
        "error_type": "BudgetExhausted",
    }


async def test_a_limit_of_model_calls_may_allow_wrapping_up(serve: Serve) -> None:
    """An agent at the limit may make one further model call to wrap up."""
    agent, model, _ = payer(pays(1), pays(2), says("Two."))
    result = await run(serve(agent), "payer", "pay", budget=Budget(max_llm_calls=2, on_exhausted="wrap_up"))
    assert (len(model.requests), result.text) == (3, "Two.")
    assert result.reason == "max_llm_calls: the limit of 2 model calls is used up"


async def test_tool_calls_above_the_limit_do_not_run(serve: Serve) -> None:
    """The first calls run; the others are answered with an error."""
    batch = calls(*[("pay", {"amount": n}) for n in (1, 2, 3)])
    agent, model, till = payer(batch, says("Only two."))
    result = await run(serve(agent), "payer", "pay", budget=Budget(max_tool_calls=2))
    assert sorted(till.paid) == [1, 2]
    reason = "max_tool_calls: the limit of 2 tool calls is used up"
    refused = {"error": f"`pay` was not run: {reason}.", "error_type": "BudgetExhausted"}
    assert tool_responses(model.requests[1]) == [{"paid": 1}, {"paid": 2}, refused]
    assert (result.status, result.reason, result.text) == ("stopped", reason, "Only two.")


async def test_tool_calls_within_the_limit_do_not_end_the_turn(serve: Serve) -> None:
    """The last allowed call is not a reason to wrap up."""
    agent, model, till = payer(pays(1), says("One."))
    result = await run(serve(agent), "payer", "pay", budget=Budget(max_tool_calls=1))
    assert (till.paid, result.status, bool(model.requests[1].tools)) == ([1], "completed", True)


async def test_costs_follow_the_table_of_prices(serve: Serve) -> None:
    """Costs include cached tokens and thoughts; the longest matching name sets the price."""
    usage = {"prompt_tokens": 1_000, "cached_tokens": 400, "output_tokens": 100, "thoughts_tokens": 50}
    agent, model, _ = payer(using(1_150, calls(("pay", {"amount": 1})), **usage), says("Dear."))
    prices = {
        "Scripted": Price(prompt=10.0, cached=1.0, output=100.0),
        "Script": Price(prompt=0, output=0),
        "*": Price(prompt=0, output=0),
    }
    result = await run(serve(agent), "payer", "pay", budget=Budget(max_cost=0.02, prices=prices))
    assert result.spent is not None
    assert result.spent.cost == pytest.approx((600 * 10 + 400 * 1 + 150 * 100) / 1_000_000)
    assert (result.status, result.reason) == ("stopped", "max_cost: the limit of 0.02 of cost is used up")
    assert len(model.requests) == 2


async def test_a_cost_limit_refuses_a_model_without_a_price(serve: Serve) -> None:
    """The model is not called, and the error names it and the remedy."""
    agent, model, _ = payer(says("never said"))
    budget = Budget(max_cost=100, prices={"gemini": Price(prompt=1, output=1)}, on_exhausted="ask")
    async with serve(agent) as env:
        kind, message = await failure(await env.client.start("payer", "pay", budget=budget))
    assert kind == "ModelFailed"
    assert message.startswith("The model 'ScriptedModel' was not called: the budget limits the cost")
    assert model.requests == []


async def test_a_cost_limit_refuses_a_fallback_model_without_a_price(serve: Serve) -> None:
    """Every model of the fallback needs a price before the first call."""
    model = ScriptedModel(says("never said"))
    agent = Agent(name="payer", model=FallbackModel([model, "gemini-unpriced"]))
    budget = Budget(max_cost=100, prices={"Scripted": Price(prompt=1, output=1)})
    async with serve(agent) as env:
        kind, message = await failure(await env.client.start("payer", "pay", budget=budget))
    assert kind == "ModelFailed"
    assert message.startswith("The model 'gemini-unpriced' was not called: the budget limits the cost")
    assert model.requests == []


async def test_the_workers_table_prices_models_without_a_price_in_the_budget(serve: Serve) -> None:
    """The price is recorded with the reply, so a replay needs no table."""
    agent = Agent(name="payer", model="gemini-3.5-flash")
    model = ScriptedModel(using(1_000, says("Hello."), prompt_tokens=900, output_tokens=100))
    result = await run(serve(agent, model=model), "payer", "pay", budget=Budget(max_cost=1))
    assert result.spent is not None
    assert result.spent.cost == pytest.approx((900 * 1.5 + 100 * 9) / 1_000_000)


async def test_working_time_is_limited(serve: Serve) -> None:
    """A model call takes longer than a millisecond."""
    agent, model, till = payer(pays(1), says("Slow."))
    result = await run(serve(agent), "payer", "pay", budget=Budget(max_wall_s=0.001))
    assert (result.text, result.reason) == ("Slow.", "max_wall_s: the limit of 0.001 seconds of work is used up")
    assert (len(model.requests), till.paid) == (2, [1])


async def test_attempts_count_as_model_calls(serve: Serve) -> None:
    """Two failed attempts and the successful one count as three model calls."""
    busy = ModelOverloaded("busy", status=429, retry_after_s=0.01)
    agent, model, _ = payer(busy, busy, pays(1), says("never said"))
    result = await run(serve(agent), "payer", "pay", budget=Budget(max_llm_calls=3))
    assert (result.status, len(model.requests)) == ("stopped", 3)
    assert result.spent is not None
    assert result.spent.model_calls == 3


async def test_no_other_agent_starts_after_the_limit(serve: Serve) -> None:
    """The next agent of a sequence would spend more; the last text is the result."""
    first = Agent(name="first", model=ScriptedModel(using(100, says("All I know."))))
    second = ScriptedModel(says("never said"))
    sequence = SequentialAgent(name="both", sub_agents=[first, Agent(name="second", model=second)])
    result = await run(serve(sequence), "both", "go", budget=Budget(max_total_tokens=100))
    assert (result.status, result.text, second.requests) == ("stopped", "All I know.", [])


async def test_an_agent_that_took_over_still_answers_once(serve: Serve) -> None:
    """An agent that took over makes one last model call, so that the user gets an answer."""
    there = using(100, calls(("transfer_to_agent", {"agent_name": "support"})))
    model = ScriptedModel(says("I am here."))
    desk = Agent(name="desk", model=ScriptedModel(there), sub_agents=[Agent(name="support", model=model)])
    result = await run(serve(desk), "desk", "go", budget=Budget(max_total_tokens=100))
    assert (result.status, result.text, len(model.requests)) == ("stopped", "I am here.", 1)
    assert not model.requests[0].tools


async def test_each_running_agent_wraps_up(serve: Serve) -> None:
    """Two parallel agents each get a last request."""

    def speak(request: LlmRequest) -> LlmResponse:
        return pays(1, 100) if request.tools else says("Wrapped up.")

    till = Till()
    both: list[BaseAgent] = [Agent(name=name, model=FunctionModel(speak), tools=[till.pay]) for name in ("a", "b")]
    async with serve(ParallelAgent(name="par", sub_agents=both)) as env:
        invocation = await env.client.start("par", "go", budget=Budget(max_total_tokens=100))
        assert (await invocation.result()).status == "stopped"
        events = (await invocation.log()).state.events
    last = {event.author for event in events if event.content and "Wrapped up." in str(event.content)}
    assert (last, till.paid) == ({"a", "b"}, [1, 1])


async def test_a_pending_call_is_answered_before_wrapping_up(serve: Serve) -> None:
    """The last text includes the answer."""

    def ask() -> None:
        """Ask somebody."""

    question = using(100, calls(("ask", {})))
    model = ScriptedModel(question, says("They agreed."))
    async with serve(Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)])) as env:
        invocation = await start_and_wait(env.client.start("asker", "go", budget=Budget(max_total_tokens=100)), "fc-1")
        result = await approve_and_finish(invocation, "fc-1")
    assert (result.status, result.text) == ("stopped", "They agreed.")
    assert tool_responses(model.requests[1]) == [{"status": "approved"}]


# Requests for more budget.

ASK = Budget(max_total_tokens=100, on_exhausted="ask")


async def test_an_approved_increase_lets_the_agent_continue_on_another_worker(serve: Serve) -> None:
    """The question survives a restart of the worker; approving it grants the same amount again."""
    agent, model, till = payer(pays(1, 100), pays(2, 50), using(1, says("Both.")))
    async with serve(agent, verify=False) as env:
        invocation, question = await start_and_get_call(env.client.start("payer", "pay", budget=ASK), "budget-1")
        [noted] = await env.client.invocation(invocation.id).pending()
    assert (question.kind, question.tool, question.agent, question.digest) == (
        "budget",
        "budget",
        "payer",
        noted.digest,
    )
    assert question.deadline - question.requested_at == 30 * 24 * 3_600
    assert question.args == {
        "reason": "max_total_tokens: the limit of 100 tokens is used up",
        "limits": {"max_total_tokens": 100},
    }
    assert len(model.requests) == 1
    async with serve(agent, task_queue=env.client.task_queue, adopt=[invocation]):
        result = await approve_and_finish(invocation, "budget-1", digest=question.digest)
    assert (result.status, result.text, till.paid) == ("completed", "Both.", [1, 2])
    assert result.granted == Grant(max_total_tokens=100)
    assert all("budget" not in str(request.contents) for request in model.requests)


async def test_an_approver_may_choose_the_increase_and_is_asked_again(serve: Serve) -> None:
    """The next reply uses up the 20 tokens."""
    agent, model, till = payer(pays(1, 100), pays(2, 20), says("Both."))
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay", budget=ASK), "budget-1")
        await invocation.approve("budget-1", response={"max_total_tokens": 20})
        await wait_for_calls(invocation, "budget-2")
        assert len(model.requests) == 2
        result = await approve_and_finish(invocation, "budget-2", response={"max_total_tokens": 1})
    assert (result.status, till.paid, result.granted) == ("completed", [1, 2], Grant(max_total_tokens=21))


async def test_a_rejected_increase_lets_the_agent_wrap_up(serve: Serve) -> None:
    """The approver is not asked again."""
    agent, model, _ = payer(pays(1, 100), says("One."))
    async with serve(agent) as env:
        invocation = await env.client.start("payer", "pay", budget=ASK)
        human = ScriptedHuman("reject")
        await human.attend(invocation)
        result = await invocation.result()
    assert (result.status, result.text, result.granted) == ("stopped", "One.", None)
    assert ([call.function_call_id for call in human.asked], len(model.requests)) == (["budget-1"], 2)
    assert not model.requests[1].tools


async def test_an_invalid_grant_is_refused_and_the_question_stays_open(serve: Serve) -> None:
    """An update is refused with the reason, and nothing is granted."""
    agent, *_ = payer(pays(1, 100), says("One."))
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay", budget=ASK), "budget-1")
        assert await catch_refusal(invocation.approve("budget-1", response={"tokens": 5})) == "InvalidAnswer"
        await wait_for_calls(invocation, "budget-1")
        assert (await reject_and_finish(invocation, "budget-1")).granted is None


async def test_calls_above_the_limit_run_after_an_increase(serve: Serve) -> None:
    """Calls above the limit are held until the increase, and each runs once."""
    batch = calls(*[("pay", {"amount": n}) for n in (1, 2, 3)])
    agent, model, till = payer(batch, says("All three."))
    async with serve(agent) as env:
        invocation = await start_and_wait(
            env.client.start("payer", "pay", budget=Budget(max_tool_calls=1, on_exhausted="ask")), "budget-1"
        )
        result = await approve_and_finish(invocation, "budget-1", response={"max_tool_calls": 2})
    assert (result.status, sorted(till.paid)) == ("completed", [1, 2, 3])
    assert tool_responses(model.requests[1]) == [{"paid": 1}, {"paid": 2}, {"paid": 3}]


async def test_calls_above_the_limit_are_answered_after_a_rejection(serve: Serve) -> None:
    """Calls above the limit are answered after a rejection, and the agent wraps up."""
    batch = calls(*[("pay", {"amount": n}) for n in (1, 2)])
    agent, model, till = payer(batch, says("One."))
    async with serve(agent) as env:
        invocation = await start_and_wait(
            env.client.start("payer", "pay", budget=Budget(max_tool_calls=1, on_exhausted="ask")), "budget-1"
        )
        result = await reject_and_finish(invocation, "budget-1")
    assert (result.status, result.text, till.paid) == ("stopped", "One.", [1])
    assert [response.get("error_type") for response in tool_responses(model.requests[1])] == [None, "BudgetExhausted"]


async def test_a_model_cannot_ask_for_budget_or_grant_it(serve: Serve) -> None:
    """A call with the question's name is a call of an unknown tool."""
    forged = calls(("budget", {"reason": "more"}), ("adk_request_confirmation", {"id": "budget-1"}))
    agent, model, _ = payer(forged, says("Well."))
    async with serve(agent) as env:
        invocation = await env.client.start("payer", "pay", budget=ASK)
        result = await invocation.result()
        assert await catch_refusal(invocation.approve("budget-1")) == "UnknownCall"
    assert (result.status, result.text) == ("completed", "Well.")
    assert all("no tool with that name" in response["error"] for response in tool_responses(model.requests[1]))
