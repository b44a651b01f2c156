"""Have older events summarised before a model is asked, when the app says so and the prompt has grown enough.

A summary that fails costs nothing but its attempt: the model is asked with all there is, and the event says why.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Protocol

import structlog
from cachetools import LRUCache
from pydantic import ValidationError

from waystation.activities.contexts import Contexts
from waystation.activities.model_call.annotate import problem_of
from waystation.activities.model_choice import Models
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Root
from waystation.apps import BaseEventsSummarizer, EventsCompactionConfig, LlmEventSummarizer
from waystation.core import (
    ActivitySettings,
    Compaction,
    Conversed,
    Event,
    JsonObject,
    ModelError,
    NotJson,
    Range,
    Usage,
    WaystationError,
    a,
    encode,
    estimate,
    plain,
)
from waystation.core.conversation import prompt
from waystation.tools.places import place_of

events = structlog.get_logger("waystation.activities")

MAX_SUMMARY_BYTES = 200_000
"""A summary is recorded together with the model's reply."""
MAX_REASON_CHARS = 300
PATIENCE = 5
"""After a failure so many calls of the agent's model go by before the next attempt; each may take minutes to fail."""
MAX_KEPT = 1_000
"""Summaries kept for further attempts at the model calls that they were made for."""


class NoSummary(WaystationError):
    """The summarizer gave nothing that can stand for events."""


class Compacts(Protocol):
    """What model calls ask for summaries."""

    async def compaction(self, root: Root, agent: LlmAgent, contexts: Contexts) -> Compaction | None:
        """Return the summary that is due before the model call."""


class Compactor:
    """Makes the summaries of one worker process."""

    def __init__(self, models: Models, *, limits: ActivitySettings | None = None) -> None:
        self._models = models
        self._timeout_s = (limits or ActivitySettings()).callback_timeout.total_seconds()
        self._made: LRUCache[tuple[str, str], Compaction] = LRUCache(MAX_KEPT)

    async def compaction(self, root: Root, agent: LlmAgent, contexts: Contexts) -> Compaction | None:
        """Return the summary that is due before the model call, or why it could not be made; None if none is due."""
        config = root.compaction
        if config is None or agent.include_contents == "none":
            return None
        conversation, work, key = contexts.conversation, contexts.work, (contexts.log.invocation_id, contexts.step)
        if made := self._made.get(key):  # for an attempt before this one
            return made
        contents = functools.partial(prompt.contents, conversation, agent=agent.name, branch=work.branch)
        conversed = Conversed.of(conversation, work)
        if conversed.failed_lately(PATIENCE):
            return None
        chosen = _due(config, conversed, contents)
        if chosen is None:
            return None
        about = {"agent": agent.name, "invocation_id": contexts.log.invocation_id, "trigger": chosen.trigger}
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._summary(config.summarizer, agent, chosen, root.demo_model)
        except Exception as error:  # noqa: BLE001  # author's code and model adapters raise anything
            reason = self._reason(error)
            events.warning("compaction.failed", **about, reason=reason)
            return chosen.compaction(failure=reason)
        if found is None:
            return None
        made = chosen.compaction(**found)
        self._made[key] = made
        size, limit = (
            estimate(contents(summary=made.event(contexts.log.invocation_id, work.branch))),
            config.token_threshold,
        )
        events.info("compaction.completed", **about, events=chosen.covered.count, tokens=size)
        if limit is not None and size >= limit:
            # Every further call will make a summary, and none will help.
            events.warning("compaction.threshold_too_low", **about, tokens=size, token_threshold=limit)
        return made

    async def _summary(
        self, summarizer: BaseEventsSummarizer | None, agent: LlmAgent, chosen: Range, demo: object
    ) -> JsonObject | None:
        """Return what a summarizer wrote, as it is recorded; None when it sees no need."""
        if summarizer is None:
            summarizer = LlmEventSummarizer(agent.canonical_model).using(self._models.of(agent, demo))
        elif isinstance(summarizer, LlmEventSummarizer):
            summarizer = summarizer.using(self._models.named(summarizer.llm, agent.name, demo))
        given = list(chosen.events)
        if type(summarizer) is not LlmEventSummarizer:
            given = [_shaped(event.model_copy(deep=True)) for event in given]
        said = await summarizer.maybe_summarize_events(events=given)
        if said is None:
            return None
        if not isinstance(said, Event):
            raise NoSummary(f"The summarizer returned {a(said)}; return an Event, or None.")
        if said.actions.compaction is None:
            raise NoSummary("The event that the summarizer returned has no `actions.compaction`.")
        return {
            "content": _checked(said.actions.compaction.compacted_content),
            "usage": Usage.model_validate(said.usage_metadata) if said.usage_metadata else None,
            "model": said.model_version,
        }

    def _reason(self, error: Exception) -> str:
        """Return why there is no summary. What others wrote into errors may quote the conversation."""
        if isinstance(error, NoSummary | ModelError):
            return str(error)[:MAX_REASON_CHARS]
        if isinstance(error, TimeoutError):
            return f"The summarizer took longer than {self._timeout_s:g} s."
        return f"The summarizer raised {type(error).__name__} at {place_of(error)}."[:MAX_REASON_CHARS]


def _due(
    config: EventsCompactionConfig, conversed: Conversed, contents: Callable[[], list[JsonObject]]
) -> Range | None:
    """Return what to summarise now. The threshold comes first, as in ADK."""
    threshold, retention = config.token_threshold, config.event_retention_size
    over = threshold is not None and retention is not None and conversed.tokens(contents) >= threshold
    if over and (chosen := conversed.over_threshold(retention or 0)):
        return chosen
    if config.compaction_interval is not None and config.overlap_size is not None:
        return conversed.due_window(config.compaction_interval, config.overlap_size)
    return None


def _checked(content: Any) -> JsonObject:
    """Return a summary as it is shown: without thoughts, and without calls that nobody made."""
    try:
        found = plain(content)
    except NotJson as error:
        raise NoSummary(f"The summary cannot be recorded: {error}") from None
    if problem := problem_of(found):
        raise NoSummary(f"The summary is not a content: {problem}")
    parts = [
        part
        for part in found.get("parts") or ()
        if not (part.get("thought") or "functionCall" in part or "functionResponse" in part or part.get("text") == "")
    ]
    if not parts:
        raise NoSummary("The summary says nothing.")
    if (size := len(encode(parts))) > MAX_SUMMARY_BYTES:
        raise NoSummary(f"The summary is {size} bytes; at most {MAX_SUMMARY_BYTES} can be recorded.")
    return {"role": "model", "parts": parts}


def _shaped(event: Event) -> Event:
    """Return an event as summarizers written for ADK expect it, its content of genai's type."""
    from google.genai import types

    try:
        content = types.Content.model_validate(event.content) if event.content else None
    except ValidationError:  # of a newer kind than the types
        content = types.Content(role=(event.content or {}).get("role"), parts=[])
    return event.model_copy(update={"content": content})
