"""The preferences: state that belongs to the user, written and read by tools."""

import pytest

from tests.server.conftest import Serve
from tests.server.examples.conftest import answered
from waystation.apps.registry import Registry, Root
from waystation.testing import ScriptedModel, calls, says


@pytest.fixture
def root(examples: Registry) -> Root:
    """The package."""
    return examples.roots["user_preferences_agent"]


@pytest.mark.slow
async def test_the_next_call_reads_the_state_of_an_earlier_one(serve: Serve, root: Root) -> None:
    """The whole value is recorded under its key, and is in the result."""
    model = ScriptedModel(
        calls(("update_user_preference", {"preference": "theme", "value": "dark"})),
        calls(("update_user_preference", {"preference": "theme", "value": "light"})),
        calls(("list_user_preferences", {})),
        says("Light."),
    )
    async with serve(root.agent, model=model) as env:
        initial_state = {"user:preferences": {"language": "Welsh"}}
        app = env.client.task_queue
        invocation = await env.client.start("user_preferences_agent", "Dark. No, light!", state=initial_state, app=app)
        result = await invocation.result()
        events = [event async for event in invocation.events()]
        assert await invocation.state() == {"user:preferences": {"language": "Welsh", "theme": "light"}}
    assert result.state_delta == {"user:preferences": {"language": "Welsh", "theme": "light"}}
    assert answered(events)[-1] == {"language": "Welsh", "theme": "light"}


CONVERSATIONS: list[tuple[str, dict[str, object] | None, str, dict[str, object]]] = [
    (
        "My theme is dark and my language is Welsh.",
        None,
        "Remembered: theme, language.",
        {"user:preferences": {"theme": "dark", "language": "Welsh"}},
    ),
    (
        "My favorite color is dark blue!",
        {"user:preferences": {"theme": "dark"}},
        "Remembered: color.",
        {"user:preferences": {"theme": "dark", "color": "dark blue"}},
    ),
    (
        "What do you know?",
        {"user:preferences": {"theme": "dark"}},
        "theme: dark.",
        {"user:preferences": {"theme": "dark"}},
    ),
    ("What do you know?", None, "I know nothing about you.", {}),
]


async def test_the_demo_model_follows_its_rules(serve: Serve, root: Root) -> None:
    """The demo model also names itself."""
    async with serve(root.agent, model=root.demo_model) as env:
        for number, (message, state, text, after) in enumerate(CONVERSATIONS):
            app = f"{env.client.task_queue}-{number}"  # a separate user, because preferences outlive a test
            invocation = await env.client.start("user_preferences_agent", message, state=state, app=app)
            assert (await invocation.result()).text == f"[demo model] {text}"
            assert await invocation.state() == after


@pytest.mark.slow
async def test_the_next_invocation_finds_earlier_preferences(serve: Serve, root: Root) -> None:
    """Preferences belong to the user, not to a conversation."""
    async with serve(root.agent, model=root.demo_model) as env:
        app = env.client.task_queue
        await env.client.run("user_preferences_agent", "My theme is dark.", app=app, session_id="one")
        result = await env.client.run("user_preferences_agent", "What do you know?", app=app, session_id="two")
    assert result.text == "[demo model] theme: dark."
