"""Summaries that replace older events."""

from dataclasses import replace
from typing import Any

from verification.differential.scenario import Cast, Scenario, alone, calls, shows


def look(page: int) -> dict[str, str]:
    """Look at a page."""
    return {"text": f"page {page} " + "x" * 1_000}


def from_threshold(tokens: int, retention: int) -> Any:
    """Return a function that creates the settings; another model writes the summaries."""

    def settings(cast: Cast) -> Any:
        from waystation.apps.app import EventsCompactionConfig
        from waystation.apps.llm_event_summarizer import LlmEventSummarizer

        return EventsCompactionConfig(
            summarizer=LlmEventSummarizer(llm=cast.model("writer")),
            token_threshold=tokens,
            event_retention_size=retention,
        )

    return settings


def reader(name: str, *, pages: int, retention: int, **fields: Any) -> Scenario:
    """Return an agent that looks at pages; four of them reach the threshold."""
    looks = [calls(("look", {"page": page})) for page in range(1, pages + 1)]
    scenario = alone(name, tools=lambda: [look], compaction=from_threshold(900, retention), **fields)
    return replace(scenario, script={"main": [*looks, "done"], "writer": ["pages of x"]})


TABLE = [
    reader("compaction_not_due", pages=2, retention=2),
    reader("compaction_once", pages=4, retention=2, deviations=shows(task_stays="go")),
    reader("compaction_keeps_calls_with_responses", pages=4, retention=3, deviations=shows(task_stays="go")),
]
