"""Replay histories against the code at hand, and rebuild what they recorded."""

from waystation.replay.replayer import replay

__all__ = ["replay"]
