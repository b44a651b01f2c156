from waystation.replay.activity_replay import Workshop, rerun_model, rerun_tool
from waystation.replay.changes import Changes
from waystation.replay.comparison import (
    ModelRerun,
    MomentDifference,
    Pair,
    PromptDifference,
    RecordingDifference,
    ToolRerun,
    difference,
)
from waystation.replay.cursor import Cursor
from waystation.replay.cursor import Cursor as Walk
from waystation.replay.deployment_gate import Finding, GateReport, gate
from waystation.replay.divergence import Divergence, Part
from waystation.replay.invocation_report import Report, report
from waystation.replay.model_prompt import Prompt
from waystation.replay.prompt_lookup import prompt_at
from waystation.replay.recording import Moment, Recording
from waystation.replay.redaction import redact
from waystation.replay.replayer import divergence_of, replay

__all__ = [
    "Changes",
    "Cursor",
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
