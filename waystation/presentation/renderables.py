"""The rich renderable of anything that is read from a recording."""

from rich.console import RenderableType

from waystation.presentation import recording_views as views
from waystation.presentation.rerun_view import rerun
from waystation.replay.difference import MomentDifference, PromptDifference, RecordingDifference
from waystation.replay.displayable import Displayable
from waystation.replay.prompt import Prompt
from waystation.replay.recording import Moment, Recording
from waystation.replay.rerun_result import Rerun


def render(value: Displayable) -> RenderableType:
    """Return what rich prints of `value`."""
    match value:
        case Recording():
            return views.recording(value)
        case Moment():
            return views.moment(value)
        case Prompt():
            return views.prompt(value)
        case MomentDifference():
            return views.moment_difference(value)
        case PromptDifference():
            return views.prompt_difference(value)
        case RecordingDifference():
            context = views.CONTEXT if len(value.pairs) > views.MAX_EVENTS else None
            return views.recording_difference(value, context=context)
        case Rerun():
            return rerun(value)
    raise TypeError(f"{type(value).__name__} has no view.")
