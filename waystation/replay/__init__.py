"""Replay histories against the code at hand, and rebuild what they recorded."""

from waystation.replay.recording import Recording
from waystation.replay.replayer import replay

__all__ = ["Recording", "replay"]
