from waystation.core.contract import ToolConfirmation
from waystation.events.event import Event
from waystation.events.event_actions import EventActions, EventCompaction

__all__ = ["Event", "EventActions", "EventCompaction", "ToolConfirmation"]
