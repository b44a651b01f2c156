"""Notifications go to real servers on this machine."""

from tests.unit.notices.conftest import other_receiver, receiver

__all__ = ["other_receiver", "receiver"]
