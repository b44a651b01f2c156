"""Older events are summarised before the prompt outgrows its threshold; the log keeps them all."""

from typing import Any

from tests.conftest import Serve
from waystation import Agent, App
from waystation.apps import EventsCompactionConfig, LlmEventSummarizer
from waystation.core.compaction_range import estimate
from waystation.core.event import text_of
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, ScriptedModel, calls, says

THRESHOLD = 2_000


def look(page: int) -> dict[str, str]:
    """Look at a page."""
    return {"text": f"page {page} " + "x" * 1_000}


def reader(*, pages: int, requests: list[LlmRequest]) -> Agent:
    """An agent that looks at page after page; its model counts on its own how far it is."""

    def reply(request: LlmRequest) -> LlmResponse:
        requests.append(request)
        if len(requests) <= pages:
            return calls(("look", {"page": len(requests)}))
        return says("all read")

    return Agent(name="reader", model=FunctionModel(reply), tools=[look])


def app(agent: Agent, summarizer: Any, **fields: Any) -> App:
    """The agent, with a threshold."""
    fields = {"token_threshold": THRESHOLD, "event_retention_size": 4, **fields}
    return App(
        name="app", root_agent=agent, events_compaction_config=EventsCompactionConfig(summarizer=summarizer, **fields)
    )


async def test_no_request_of_a_long_invocation_exceeds_the_threshold(serve: Serve) -> None:
    """300 calls of a tool, 1 kB each; every request has the user's message and the newest calls."""
    requests: list[LlmRequest] = []
    writer = ScriptedModel(*[says(f"summary {n}") for n in range(1, 200)])
    served = app(reader(pages=300, requests=requests), LlmEventSummarizer(writer))
    async with serve(served, max_cached_workflows=10) as env:
        result = await env.client.run("reader", "read all")
    assert result.text == "all read"
    assert len(requests) == 301
    assert max(estimate(request.contents) for request in requests) < THRESHOLD
    assert all(any(text_of(content) == "read all" for content in request.contents) for request in requests)
