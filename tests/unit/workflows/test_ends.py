"""Announcing the end of an invocation."""

from typing import Any

import pytest

from tests.unit.core.story import log_of, user_message
from waystation.core.log import Cancel, Finish
from waystation.workflows import outgoing_events as module
from waystation.workflows.log_writer import LogWriter
from waystation.workflows.outgoing_events import OutgoingEvents


async def test_a_cancellation_replaces_the_end_that_is_being_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may arrive while the delivery starts. The same end is announced once."""
    log, sent = log_of(user_message("go")), list[Any]()
    events = OutgoingEvents(LogWriter(log), lambda: None)
    monkeypatch.setattr(module, "now", lambda: 5.0)
    monkeypatch.setattr(events, "send", lambda: sent.append(log.state.outgoing.pop()) if log.state.outgoing else None)
    log.state.endpoints = {"ended": ("billing",)}
    for step in (Finish(), Finish(), Cancel()):
        await events.announce_end(step)
    assert [event.status for event in sent] == ["completed", "cancelled"]
