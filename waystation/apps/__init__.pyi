from waystation.apps.app import App, EventsCompactionConfig, ResumabilityConfig
from waystation.apps.base_events_summarizer import BaseEventsSummarizer
from waystation.apps.llm_event_summarizer import LlmEventSummarizer

__all__ = ["App", "BaseEventsSummarizer", "EventsCompactionConfig", "LlmEventSummarizer", "ResumabilityConfig"]
