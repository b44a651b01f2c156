"""Where ADK has `google.adk.apps.base_events_summarizer`."""

import abc

from waystation.core import Event


class BaseEventsSummarizer(abc.ABC):
    """Writes the summary that replaces older events. It runs in the model activity and may run repeatedly."""

    @abc.abstractmethod
    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        """Return an event with the summary in `actions.compaction.compacted_content`, or None for no summary.

        The summary always replaces `events`; the time range in the returned event is ignored.

        Args:
            events: The events to summarize, oldest first, with genai contents. An earlier summary comes first.
        """
