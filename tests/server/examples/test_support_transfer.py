"""The transfer: a tool chooses the next agent."""

import pytest

from tests.server.conftest import Serve
from tests.server.examples.conftest import called, texts
from waystation.apps.registry import Registry, Root
from waystation.testing import ScriptedModel, calls, says

URGENT = "URGENT: the dashboard is empty"


@pytest.fixture
def root(examples: Registry) -> Root:
    """The package."""
    return examples.roots["main_agent"]


async def test_the_other_agent_continues_the_conversation(serve: Serve, root: Root) -> None:
    """The other agent sees the user's message and a quotation of the main agent, whose model is not called again."""
    model = ScriptedModel(calls(("check_and_transfer", {"query": URGENT})), says("Support here."))
    async with serve(root.agent, model=model) as env:
        invocation = await env.client.start("main_agent", URGENT)
        result = await invocation.result()
        events = [event async for event in invocation.events()]
    assert (result.text, result.next_agent) == ("Support here.", "support_agent")
    assert [event.author for event in events] == ["user", "main_agent", "main_agent", "support_agent"]
    assert events[2].actions.transfer_to_agent == "support_agent"
    first, second = model.requests
    assert [tool["name"] for tool in first.tools] == ["transfer_to_agent", "check_and_transfer"]
    assert list(second.tools) == []
    assert "You are the support agent." in (second.system_instruction or "")
    assert second.contents[0] == {"role": "user", "parts": [{"text": URGENT}]}
    assert "[main_agent] called tool `check_and_transfer`" in str(second.contents[1:])


@pytest.mark.parametrize(
    ("message", "author", "text"),
    [
        (URGENT, "support_agent", f"The support agent takes over: {URGENT}"),
        ("Where is the manual?", "main_agent", "The main agent answers: Where is the manual?"),
    ],
    ids=["urgent", "not urgent"],
)
async def test_the_demo_model_plays_both_models(serve: Serve, root: Root, message: str, author: str, text: str) -> None:
    """The demo model also names itself."""
    async with serve(root.agent, model=root.demo_model) as env:
        invocation = await env.client.start("main_agent", message)
        await invocation.result()
        events = [event async for event in invocation.events()]
    assert called(events) == [("check_and_transfer", {"query": message})]
    assert texts(events) == [f"[demo model] {text}"]
    assert events[-1].author == author
