"""Mirrors ADK's `google.adk.apps.base_events_summarizer` module."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.events import Event


class BaseEventsSummarizer(abc.ABC):
    """Writes the summary that replaces older events. It runs in the model activity, which may be retried."""

    @abc.abstractmethod
    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        """Return an event with the summary in `actions.compaction.compacted_content`, or None for no summary.

        The summary replaces all `events`, whatever time range the returned event contains.

        Args:
            events: The events to summarize, oldest first. If there is a previous summary, it is
                the first event.
        """
