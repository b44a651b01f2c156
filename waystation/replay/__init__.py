"""Replay histories against the code at hand, and rebuild what they recorded."""

from waystation.replay.difference import (
    Changes,
    MomentDifference,
    Pair,
    PromptDifference,
    RecordingDifference,
    difference,
)
from waystation.replay.moment import Moment
from waystation.replay.prompt import Prompt, prompt_at
from waystation.replay.recording import Recording
from waystation.replay.replayer import replay

__all__ = [
    "Changes",
    "Moment",
    "MomentDifference",
    "Pair",
    "Prompt",
    "PromptDifference",
    "Recording",
    "RecordingDifference",
    "difference",
    "prompt_at",
    "replay",
]
