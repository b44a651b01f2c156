"""The reimbursement agent, with a scripted model and with its demo model."""

from datetime import timedelta

import pytest

from tests.paths import EXAMPLES
from tests.server.conftest import Serve
from waystation.agents import LlmAgent
from waystation.apps.registry import Root, discover
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest
from waystation.testing import AgentEnvironment, ScriptedHuman, ScriptedModel, calls, says
from waystation.tools.tool_context import ToolContext

MEALS = {"purpose": "meals", "amount": 200.0}


@pytest.fixture(scope="module")
def root() -> Root:
    """Return the package, found as a worker finds it."""
    registry, problems = discover([EXAMPLES])
    assert problems == []
    return registry.roots["reimbursement_agent"]


@pytest.fixture
def demo_model(root: Root) -> BaseLlm:
    """Return the demo model of the package."""
    assert root.demo_model is not None
    return root.demo_model


async def attended(env: AgentEnvironment, message: str, *answers: JsonObject | str) -> tuple[str, list[str]]:
    """Return the agent's last text for a message, and its tool calls, when a person gives this answer."""
    invocation = await env.client.start("reimbursement_agent", message)
    events = await ScriptedHuman(*answers).attend(invocation)
    return (await invocation.result()).text, [call["name"] for event in events for call in event.function_calls()]


@pytest.mark.slow
async def test_a_model_uses_the_tools(serve: Serve, root: Root) -> None:
    """The tools respond as in ADK's documentation, and the ticket is the same for all attempts."""
    model = ScriptedModel(
        calls(("ask_for_approval", MEALS)), says("I asked."), calls(("reimburse", MEALS)), says("Reimbursed.")
    )
    async with serve(root.agent, model=model) as env:
        human = ScriptedHuman("approve")
        invocation = await env.client.start("reimbursement_agent", "200$ for meals", user_id="traveler")
        await human.attend(invocation)
        assert (await invocation.result()).text == "Reimbursed."
        ticket = f"ticket-{invocation.id}/fc-1"
        assert human.asked[0].interim == {"status": "pending", "approver": "Sean Zhou", **MEALS, "ticket-id": ticket}
        assert await invocation.state() == {"ticket": ticket}
        assert [tool["name"] for tool in model.requests[0].tools] == ["reimburse", "ask_for_approval"]
        assert "amount is less than $100" in (model.requests[0].system_instruction or "")


CONVERSATIONS: list[tuple[str, tuple[JsonObject | str, ...], str, list[str]]] = [
    ("Please reimburse 50$ for meals", (), "50$ for meals: reimbursed.", ["reimburse"]),
    (
        "Please reimburse 200$ for meals",
        ("approve",),
        "200$ for meals: reimbursed.",
        ["ask_for_approval", "reimburse"],
    ),
    (
        "Please reimburse 200$ for meals",
        ({"action": "reject", "comment": "too dear"},),
        "200$ for meals: rejected, with the comment: too dear.",
        ["ask_for_approval"],
    ),
    (
        "Please reimburse $1,200.50 for a chair.",
        ({"action": "progress", "response": {"at": "Sean's desk"}}, "approve"),
        "1200.5$ for a chair: reimbursed.",
        ["ask_for_approval", "reimburse"],
    ),
    (
        "100 dollars for books",
        ({"action": "respond", "response": {"status": "approved"}},),
        "100$ for books: reimbursed.",
        ["ask_for_approval", "reimburse"],
    ),
    ("Hello", (), "I need an amount, as in: Please reimburse 50$ for meals", []),
]


@pytest.mark.slow
async def test_the_demo_model_follows_its_rules(serve: Serve, root: Root, demo_model: BaseLlm) -> None:
    """The demo model also names itself."""
    async with serve(root.agent, model=demo_model) as env:
        for message, answers, text, called in CONVERSATIONS:
            assert await attended(env, message, *answers) == (f"[demo model] {text}", called)


async def test_the_demo_model_reports_an_expired_approval(serve: Serve, root: Root, demo_model: BaseLlm) -> None:
    """The demo model reports an expired approval, and nothing is reimbursed."""
    agent = LlmAgent(**dict(root.agent))
    asking = next(tool for tool in agent.tools if getattr(tool, "name", "") == "ask_for_approval")
    before, asking.deadline = asking.deadline, timedelta(seconds=0.3)
    try:
        async with serve(agent, model=demo_model) as env:
            text, called = await attended(env, "Please reimburse 200$ for meals")
    finally:
        asking.deadline = before
    assert text == "[demo model] 200$ for meals: not reimbursed, because nobody answered in time."
    assert called == ["ask_for_approval"]


async def test_the_demo_model_is_a_function_of_the_request(demo_model: BaseLlm) -> None:
    """The demo model depends only on the last of several messages."""

    def message(text: str) -> JsonObject:
        return {"role": "user", "parts": [{"text": text}]}

    answered = {"functionResponse": {"name": "reimburse", "response": {"status": "ok"}}}
    request = LlmRequest(
        model="any",
        contents=[message("50$ for meals"), {"role": "user", "parts": [answered]}, message("60$ for tea")],
    )
    first, second = [await demo_model.generate(request) for _ in range(2)]
    assert first == second
    assert first.content == {
        "role": "model",
        "parts": [{"functionCall": {"name": "reimburse", "args": {"purpose": "tea", "amount": 60.0}}}],
    }


def test_a_repeated_question_creates_one_ticket(root: Root) -> None:
    """The ticket derives from the idempotency key, which is the same for all attempts."""
    assert isinstance(root.agent, LlmAgent)
    asking = next(tool for tool in root.agent.tools if getattr(tool, "name", "") == "ask_for_approval")
    contexts = [ToolContext(idempotency_key="i/fc-1", attempt=attempt) for attempt in (1, 2)]
    first, second = [asking.func(purpose="meals", amount=200.0, tool_context=context) for context in contexts]
    assert first == second
