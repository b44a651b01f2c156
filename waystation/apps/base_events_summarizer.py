"""Where ADK has `google.adk.apps.base_events_summarizer`."""

import abc

from waystation.core import Event


class BaseEventsSummarizer(abc.ABC):
    """What writes the summary that stands for older events. It runs in the model activity, and may run again."""

    @abc.abstractmethod
    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        """Return an event with the summary in `actions.compaction.compacted_content`, or None for no summary.

        Which events the summary stands for has been decided: they are the given ones, whatever range is returned.

        Args:
            events: Those to summarise, oldest first, contents in genai's types; an earlier summary is the first one.
        """
