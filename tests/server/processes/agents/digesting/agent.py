"""An agent that reads pages until they are summarized, and then thinks until the test opens a gate."""

import asyncio
from typing import Any

from tests.server.processes.ledger import ledger
from waystation.agents import Agent
from waystation.apps import App, EventsCompactionConfig, LlmEventSummarizer
from waystation.core.contract import text_of
from waystation.models import LlmRequest, LlmResponse
from waystation.testing.models import FunctionModel, calls, responses, says


async def digest(request: LlmRequest) -> LlmResponse:
    """Read on; once a summary is in the prompt, wait for the gate and report the prompt."""
    shown = [text for content in request.contents if (text := text_of(content))]
    if not any("pages were read" in text for text in shown):
        return calls(("read", {"page": len(responses(request)) + 1}))
    ledger().note("thinking", attempt=request.attempt, shown=shown)
    await asyncio.to_thread(ledger().wait, "thought")
    return says("; ".join(shown))


def summarize(request: LlmRequest) -> LlmResponse:
    """Write the same summary for every agent."""
    ledger().note("summarized")
    return says("pages were read")


def read(page: int) -> dict[str, Any]:
    """Read a page."""
    return {"page": page, "text": "x" * 1_000}


root_agent = Agent(name="digesting", model=FunctionModel(digest), tools=[read])

app = App(
    name="digesting",
    root_agent=root_agent,
    events_compaction_config=EventsCompactionConfig(
        token_threshold=1_000, event_retention_size=2, summarizer=LlmEventSummarizer(FunctionModel(summarize))
    ),
)
