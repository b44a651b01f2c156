"""Compaction of a long invocation."""

from tests.server.conftest import Serve
from tests.server.workflows.test_compaction import THRESHOLD, app, look, looks, texts
from waystation import Agent
from waystation.apps import LlmEventSummarizer
from waystation.core.conversation import estimate
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, says


async def test_no_request_of_a_long_invocation_exceeds_the_threshold(serve: Serve) -> None:
    """After 300 tool calls of 1 kB each, every request has the user's message, and every event is kept."""
    requests: list[LlmRequest] = []

    def reply(request: LlmRequest) -> LlmResponse:
        requests.append(request)
        return looks(len(requests))[0] if len(requests) <= 300 else says("all read")

    agent = Agent(name="reader", model=FunctionModel(reply), tools=[look])
    writer = LlmEventSummarizer(FunctionModel(lambda _: says("pages were read")))
    async with serve(app(agent, writer), max_cached_workflows=10) as env:
        invocation = await env.client.start("reader", "read all")
        assert (await invocation.result()).text == "all read"
        events = (await invocation.log()).state.events
    assert len(requests) == 301
    assert max(estimate(request.contents) for request in requests) < THRESHOLD
    assert all("read all" in texts(request) for request in requests)
    answered = [answer["response"]["page"] for event in events for answer in event.function_responses()]
    assert answered == list(range(1, 301))
