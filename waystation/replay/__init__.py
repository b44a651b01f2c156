"""Replay histories against the code at hand, and rebuild what they recorded."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from waystation.replay.difference import (
    Changes,
    MomentDifference,
    Pair,
    PromptDifference,
    RecordingDifference,
    difference,
)
from waystation.replay.divergence import Part
from waystation.replay.gate import gate
from waystation.replay.moment import Moment
from waystation.replay.prompt import Prompt, prompt_at
from waystation.replay.recording import Recording
from waystation.replay.redaction import redact
from waystation.replay.replayer import Divergence, divergence_of, replay
from waystation.replay.reports import Report, report
from waystation.replay.verdict import Finding, GateReport
from waystation.replay.walk import Walk

if TYPE_CHECKING:
    from waystation.replay.rerun import Workshop, rerun_model, rerun_tool
    from waystation.replay.rerun_result import ModelRerun, ToolRerun

__all__ = [
    "Changes",
    "Divergence",
    "Finding",
    "GateReport",
    "ModelRerun",
    "Moment",
    "MomentDifference",
    "Pair",
    "Part",
    "Prompt",
    "PromptDifference",
    "Recording",
    "RecordingDifference",
    "Report",
    "ToolRerun",
    "Walk",
    "Workshop",
    "difference",
    "divergence_of",
    "gate",
    "prompt_at",
    "redact",
    "replay",
    "report",
    "rerun_model",
    "rerun_tool",
]

_WITH_AGENTS = {
    "ModelRerun": "rerun_result",
    "ToolRerun": "rerun_result",
    "Workshop": "rerun",
    "rerun_model": "rerun",
    "rerun_tool": "rerun",
}
"""What loads all that a worker loads, and so only when it is asked for; with its module."""


def __getattr__(name: str) -> Any:
    if name in _WITH_AGENTS:
        return getattr(import_module(f"{__name__}.{_WITH_AGENTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
