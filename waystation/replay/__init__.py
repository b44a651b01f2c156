"""Replay histories against the code at hand, and rebuild what they recorded."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports
from waystation.replay.difference import (
    Changes,
    MomentDifference,
    Pair,
    PromptDifference,
    RecordingDifference,
    difference,
)
from waystation.replay.divergence import Divergence, Part
from waystation.replay.gate import Finding, GateReport, gate
from waystation.replay.prompt import Prompt
from waystation.replay.prompt_lookup import prompt_at
from waystation.replay.recording import Moment, Recording
from waystation.replay.redaction import redact
from waystation.replay.replayer import divergence_of, replay

if TYPE_CHECKING:
    from waystation.presentation.cursor import Walk as Walk
    from waystation.presentation.report import Report as Report
    from waystation.presentation.report import report as report
    from waystation.replay.activity_replay import Workshop, rerun_model, rerun_tool
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

_EXPORTS = {
    # These load all that a worker loads.
    "waystation.replay.activity_replay": "Workshop rerun_model rerun_tool",
    "waystation.replay.rerun_result": "ModelRerun ToolRerun",
    # These are a layer above this package.
    "waystation.presentation.cursor": "Walk",
    "waystation.presentation.report": "Report report",
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
