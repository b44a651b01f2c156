"""A snapshot keeps everything that decides, and no content that is already in events."""

import json

from tests.unit.core.story import (
    answered,
    log_of,
    model_called,
    model_calls,
    model_replied,
    tool_returned,
    user_message,
)
from waystation.core.log import Log
from waystation.core.projection import Snapshot


def restored(log: Log) -> Log:
    """Return the log with which the next run starts, after its snapshot was encoded as JSON."""
    snapshot = Snapshot.model_validate_json(json.dumps(Snapshot.of(log).model_dump(mode="json")))
    assert log.state.input is not None
    return snapshot.restored(log.invocation_id, log.state.input)


def test_a_restored_state_equals_the_original_except_for_its_events() -> None:
    """Carries over every field, including fields that are added later, except those about the past."""
    log = log_of(user_message("pay"), model_calls("look", "pay", gated=True), answered("fc-2"), tool_returned("fc-1"))
    log.state.approvals.due.clear()
    restored_state = restored(log).state
    assert (restored_state.events_before, restored_state.events) == (len(log.state.events), [])
    assert (restored_state.session, restored_state.runs, restored_state.outcome, restored_state.budget_use) == (
        log.state.session, log.state.runs, log.state.outcome, log.state.budget_use
    )  # fmt: skip
    assert restored_state.pending() == log.state.pending()


def test_a_closed_call_is_kept_without_its_content() -> None:
    """A late answer is still refused, and the snapshot does not grow with the conversation."""
    secret = "x" * 10_000
    log = log_of(
        user_message("pay"),
        model_calls("pay", gated=True, args={"note": secret}),
        answered("fc-1", by="ann", comment=secret),
        tool_returned("fc-1", {"text": secret}),
        model_called(),
        model_replied("done"),
    )
    call = restored(log).state.calls["fc-1"]
    assert (call.closed, call.answered_by, call.digest) == (True, "ann", log.state.calls["fc-1"].digest)
    assert len(Snapshot.of(log).encode()) < 2_000
