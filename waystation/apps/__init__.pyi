# Names outside `__all__` are for the engine.
from waystation.apps.app import App, EventsCompactionConfig, ResumabilityConfig
from waystation.apps.base_events_summarizer import BaseEventsSummarizer
from waystation.apps.llm_event_summarizer import LlmEventSummarizer
from waystation.apps.registry import Problem as Problem
from waystation.apps.registry import Registry as Registry
from waystation.apps.registry import Root as Root
from waystation.apps.registry import authoring_problems as authoring_problems
from waystation.apps.registry import discover as discover

__all__ = ["App", "BaseEventsSummarizer", "EventsCompactionConfig", "LlmEventSummarizer", "ResumabilityConfig"]
