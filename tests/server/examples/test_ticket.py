"""The ticket agent: progress of a long-running call from another program, and the final answer."""

import importlib.util
from types import ModuleType

import pytest

from tests.paths import EXAMPLES
from tests.server.conftest import Serve
from tests.server.examples.conftest import answered, texts
from tests.steps import wait_for_calls, wait_for_model_calls, wait_until
from waystation.apps.registry import Registry, Root
from waystation.core.contract import Event
from waystation.testing import ScriptedModel, calls, responses, says

PRINTER = {"summary": "The printer smells burnt.", "urgency": "high"}


@pytest.fixture
def root(examples: Registry) -> Root:
    """The package."""
    return examples.roots["ticket_agent"]


@pytest.fixture(scope="module")
def desk() -> ModuleType:
    """Return the program that plays the help desk."""
    spec = importlib.util.spec_from_file_location("desk", EXAMPLES / "ticket" / "desk.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
async def test_the_model_receives_each_report_except_the_quiet_one(serve: Serve, root: Root, desk: ModuleType) -> None:
    """Quiet progress is only recorded; the final answer closes the call."""
    model = ScriptedModel(
        calls(("create_ticket", PRINTER)), says("Opened."), says("A fuse is coming."), says("It is mended.")
    )
    async with serve(root.agent, model=model) as env:
        invocation = await env.client.start("ticket_agent", "The printer smells burnt!")
        await wait_for_model_calls(model, 2)
        (call,) = await wait_for_calls(invocation, "fc-1")
        assert (call.kind, call.tool, call.args) == ("long_running", "create_ticket", PRINTER)
        await desk.assign(invocation, "Ada takes it")
        await desk.report(invocation, "a new fuse is on its way")
        await wait_for_model_calls(model, 3)
        await desk.close(invocation, "the fuse was changed")
        assert (await invocation.result()).text == "It is mended."
        events = [event async for event in invocation.events()]
    ticket = {"status": "open", "ticket_id": f"ticket-{invocation.id}/fc-1", "urgency": "high"}
    news = [
        ticket,
        {"status": "assigned", "message": "Ada takes it"},
        {"status": "in progress", "message": "a new fuse is on its way"},
        {"status": "closed", "resolution": "the fuse was changed"},
    ]
    assert answered(events) == news
    assert texts(events) == ["Opened.", "A fuse is coming.", "It is mended."]
    assert [responses(request)[-1][1] for request in model.requests[1:]] == [news[0], news[2], news[3]]


@pytest.mark.slow
@pytest.mark.parametrize(("message", "urgency"), [("The door squeaks", "normal"), ("Fire! Come at once", "high")])
async def test_the_demo_model_repeats_the_reports(
    serve: Serve, root: Root, desk: ModuleType, message: str, urgency: str
) -> None:
    """The demo model also names itself."""
    async with serve(root.agent, model=root.demo_model) as env:
        invocation = await env.client.start("ticket_agent", message)

        async def texts_when(count: int) -> list[str]:
            events: list[Event] = [event async for event in invocation.events(follow=False)]
            return texts(events) if len(texts(events)) == count else []

        await wait_until(lambda: texts_when(1), "the demo model's first sentence")
        (call,) = await invocation.pending()
        assert call.args == {"summary": message, "urgency": urgency}
        await desk.report(invocation, "somebody is on the way")
        await wait_until(lambda: texts_when(2), "the demo model's second sentence")
        await desk.close(invocation, "done")
        await invocation.result()
        assert await texts_when(3) == [
            f"[demo model] open: ticket-{invocation.id}/fc-1.",
            "[demo model] in progress: somebody is on the way.",
            "[demo model] closed: done.",
        ]
