"""The calculator: a toolset with a prefix."""

import logging
from importlib import import_module

import pytest
import structlog
from structlog.testing import capture_logs

from tests.server.conftest import Serve
from tests.server.examples.conftest import called
from tests.steps import run
from waystation.apps.registry import Registry, Root
from waystation.testing import ScriptedModel, calls, says


@pytest.fixture
def root(examples: Registry) -> Root:
    """The package."""
    return examples.roots["calculator_agent"]


@pytest.mark.slow
async def test_tools_are_offered_and_called_under_the_prefix(serve: Serve, root: Root) -> None:
    """The model's declarations, the activity and the state have the prefixed name."""
    model = ScriptedModel(calls(("calculator_add", {"a": 2, "b": 3})), says("Five."))
    async with serve(root.agent, model=model) as env:
        invocation = await env.client.start("calculator_agent", "2 + 3", user_id="pupil")
        assert (await invocation.result()).text == "Five."
        assert await invocation.state() == {"last_result": 5}
        history = await invocation.history()
    assert [tool["name"] for tool in model.requests[0].tools] == ["calculator_add", "calculator_subtract"]
    scheduled = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
    assert [name for name in scheduled if name] == [
        "call_model",
        "calculator_agent.calculator_add",
        "call_model",
    ]


CONVERSATIONS: list[tuple[str, str, list[str]]] = [
    ("What is 5 - 3 + 10?", "5 - 3 + 10 = 12", ["calculator_subtract", "calculator_add"]),
    ("0.5+0.25", "0.5+0.25 = 0.75", ["calculator_add"]),
    ("Hello", "I need a sum, as in: What is 5 - 3 + 10?", []),
]


async def test_the_demo_model_lets_the_tools_calculate(serve: Serve, root: Root) -> None:
    """The demo model also names itself."""
    async with serve(root.agent, model=root.demo_model) as env:
        for message, text, tools in CONVERSATIONS:
            invocation = await env.client.start("calculator_agent", message)
            assert (await invocation.result()).text == f"[demo model] {text}"
            assert [name for name, _ in called([event async for event in invocation.events()])] == tools


async def test_the_toolset_is_closed_with_its_worker(serve: Serve) -> None:
    """The toolset logs the number of its calculations when it is closed."""
    module = import_module("calculator.agent")
    toolset = module.CalculatorToolset(prefix="sum")
    agent = module.root_agent.clone(update={"tools": [toolset]})
    model = ScriptedModel(calls(("sum_add", {"a": 1, "b": 1}), ("sum_subtract", {"a": 1, "b": 1})), says("2 and 0."))
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        with capture_logs() as entries:
            assert (await run(serve(agent, model=model), "calculator_agent", "1+1")).text == "2 and 0."
    finally:
        structlog.configure(**before)
    assert {"event": "calculator.closed", "calculations": 2, "log_level": "info"} in entries
