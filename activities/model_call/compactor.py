"""Summarize older events before a model call, if the app configures compaction and the prompt is long enough.

If summarizing fails, the model is called with all events, and the reason is recorded with the reply.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from cachetools import LRUCache

from waystation.activities.contexts import Contexts
from waystation.activities.model_call.annotate import find_content_problem
from waystation.activities.model_call.conversion import content_to_json
from waystation.activities.model_choice import Models
from waystation.agents.llm_agent import LlmAgent
from waystation.apps import BaseEventsSummarizer, EventsCompactionConfig, LlmEventSummarizer
from waystation.apps.registry import Root
from waystation.core.budget import Usage
from waystation.core.contract import ActivitySettings, Compaction
from waystation.core.conversation import ConversationView, SummaryRange, estimate, prompt
from waystation.core.errors import BudgetExhausted, ModelError, NotJson, RateLimited, WaystationError
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject, encode
from waystation.events.lazy_list import LazyList
from waystation.tools.places import find_author_line

if TYPE_CHECKING:
    from waystation.activities.model_call.metered_model import Meter, Meters

events = structlog.get_logger("waystation.activities")

MAX_SUMMARY_BYTES = 200_000
"""Maximum size of a summary, because the summary is recorded together with the model's reply. A larger summary is
discarded, and counts as failed."""
MAX_REASON_CHARS = 300
PATIENCE = 5
"""How many of the agent's model calls must follow a failed summary before the next attempt, which may take minutes to
fail."""
MAX_KEPT = 1_000
"""Maximum number of summaries in the LRU cache. A retried model call reuses the summary from its previous attempt."""


class NoSummary(WaystationError):
    """The summarizer did not return a usable summary.

    Fix the summarizer. The conversation continues without a summary.
    """


class SummarizesEvents(Protocol):
    """Provides summaries of older events to model calls."""

    async def compaction(self, root: Root, agent: LlmAgent, contexts: Contexts) -> Compaction | None:
        """Return a summary, or the reason why summarizing failed, if a summary is due before the model call.

        Otherwise return None.
        """


class Compactor:
    """Creates and caches the summaries of one worker process."""

    def __init__(
        self, models: Models, *, limits: ActivitySettings | None = None, meters: "Meters | None" = None
    ) -> None:
        self._models, self._meters = models, meters
        self._timeout_s = (limits or ActivitySettings()).callback_timeout.total_seconds()
        self._made: LRUCache[tuple[str, str], Compaction] = LRUCache(MAX_KEPT)

    async def compaction(self, root: Root, agent: LlmAgent, contexts: Contexts) -> Compaction | None:
        """Return a summary, or the reason why summarizing failed, if a summary is due before the model call.

        Return None if none is due, if an attempt failed recently, or if the summarizer returned None.
        """
        config = root.compaction
        if config is None or agent.include_contents == "none":
            return None
        conversation, work, key = contexts.conversation, contexts.work, (contexts.log.invocation_id, contexts.step)
        if cached := self._made.get(key):  # by an earlier attempt
            return cached
        contents = functools.partial(prompt.contents, conversation, agent=agent.name, branch=work.branch)
        conversed = ConversationView.of(conversation, work)
        if conversed.failed_lately(PATIENCE):
            return None
        due_range = _find_due_range(config, conversed, contents)
        if due_range is None:
            return None
        about = {"agent": agent.name, "invocation_id": contexts.log.invocation_id, "trigger": due_range.trigger}
        meter = self._meters.of(contexts, "summary") if self._meters else None
        try:
            async with asyncio.timeout(self._timeout_s):
                summary = await self._summarize(config.summarizer, agent, due_range, root.demo_model, meter)
        except (BudgetExhausted, RateLimited):  # the model call would have to wait, too
            raise
        except Exception as error:  # noqa: BLE001  # user code and model adapters raise anything
            reason = self._reason(error)
            events.warning("compaction.failed", **about, reason=reason)
            return due_range.compaction(failure=reason)
        if summary is None:
            return None
        compaction = due_range.compaction(**summary)
        self._made[key] = compaction
        size, limit = (
            estimate(contents(summary=compaction.event(contexts.log.invocation_id, work.branch))),
            config.token_threshold,
        )
        events.info("compaction.completed", **about, events=due_range.covered.count, tokens=size)
        if limit is not None and size >= limit:
            # Even with the summary, the prompt is not below the threshold, so every later call will summarize again.
            events.warning("compaction.threshold_too_low", **about, tokens=size, token_threshold=limit)
        return compaction

    async def _summarize(
        self,
        summarizer: BaseEventsSummarizer | None,
        agent: LlmAgent,
        due_range: SummaryRange,
        demo: object,
        meter: "Meter | None",
    ) -> JsonObject | None:
        """Return the fields of a new summary, or None if the summarizer did not return one."""
        wrap = meter.wrap if meter else lambda model: model
        if summarizer is None:
            summarizer = LlmEventSummarizer(agent.declared_model).using(wrap(self._models.of(agent, demo)))
        elif isinstance(summarizer, LlmEventSummarizer):
            summarizer = summarizer.using(wrap(self._models.named(summarizer.llm, agent.name, demo)))
        from waystation.events import Event  # loads google-genai, which takes long

        event = await summarizer.maybe_summarize_events(events=LazyList(due_range.events, Event.from_recorded))
        if event is None:
            return None
        if not isinstance(event, Event):
            raise NoSummary(f"The summarizer returned {with_article(event)}; return an Event, or None.")
        if event.actions.compaction is None:
            raise NoSummary("The event that the summarizer returned has no `actions.compaction`.")
        return {
            "content": _clean_summary(event.actions.compaction.compacted_content),
            "usage": Usage.from_genai(event.usage_metadata),
            "model": event.model_version,
        }

    def _reason(self, error: Exception) -> str:
        """Return the reason for a failed summary, without error messages that may quote the conversation."""
        if isinstance(error, NoSummary | ModelError):
            return str(error)[:MAX_REASON_CHARS]
        if isinstance(error, TimeoutError):
            return f"The summarizer took longer than {self._timeout_s:g} s."
        return f"The summarizer raised {type(error).__name__} at {find_author_line(error)}."[:MAX_REASON_CHARS]


def _find_due_range(
    config: EventsCompactionConfig, conversed: ConversationView, contents: Callable[[], list[JsonObject]]
) -> SummaryRange | None:
    """Return the events to summarize now, or None. As in ADK, the token threshold is checked first."""
    threshold, retention = config.token_threshold, config.event_retention_size
    is_over = threshold is not None and retention is not None and conversed.tokens(contents) >= threshold
    if is_over and (due_range := conversed.over_threshold(retention or 0)):
        return due_range
    if config.compaction_interval is not None and config.overlap_size is not None:
        return conversed.due_window(config.compaction_interval, config.overlap_size)
    return None


def _clean_summary(content: Any) -> JsonObject:
    """Return the content of a summary without thoughts, function calls, function responses and empty text.

    Raises:
        NoSummary: The content is not valid, is too large, or has no other parts.
    """
    try:
        summary = content_to_json(content)
    except NotJson as error:
        raise NoSummary(f"The summary cannot be recorded: {error}") from None
    if problem := find_content_problem(summary):
        raise NoSummary(f"The summary is not a valid content: {problem}")
    parts = [
        part
        for part in summary.get("parts") or ()
        if not (part.get("thought") or "functionCall" in part or "functionResponse" in part or part.get("text") == "")
    ]
    if not parts:
        raise NoSummary("The summary has no text.")
    if (size := len(encode(parts))) > MAX_SUMMARY_BYTES:
        raise NoSummary(f"The summary is {size} bytes; at most {MAX_SUMMARY_BYTES} can be recorded.")
    return {"role": "model", "parts": parts}
