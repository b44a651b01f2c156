"""What a snapshot keeps of a log: everything that decides, and no content that is in events already."""

import json

from tests.unit.core.story import answered, asked_model, called, log_of, replied, returned, said
from waystation.core import Log, Snapshot


def restored(log: Log) -> Log:
    """Return the log that a next run starts with, after its snapshot has crossed as JSON."""
    snapshot = Snapshot.model_validate_json(json.dumps(Snapshot.of(log).model_dump(mode="json")))
    assert log.state.input is not None
    return snapshot.restored(log.invocation_id, log.state.input)


def test_a_restored_state_equals_the_original_but_for_its_events() -> None:
    """Every field is carried over unless it describes the past; a field that is added is carried over, too."""
    log = log_of(said("pay"), called("look", "pay", gated=True), answered("fc-2"), returned("fc-1"))
    log.state.approvals.due.clear()
    again = restored(log).state
    assert (again.events_before, again.events) == (len(log.state.events), [])
    assert (again.session, again.runs, again.outcome, again.budget_use) == (
        log.state.session, log.state.runs, log.state.outcome, log.state.budget_use
    )  # fmt: skip
    assert again.pending() == log.state.pending()


def test_a_closed_call_is_kept_without_its_content() -> None:
    """A late answer is still refused with the first one, and the snapshot does not grow with what was said."""
    secret = "x" * 10_000
    log = log_of(
        said("pay"),
        called("pay", gated=True, args={"note": secret}),
        answered("fc-1", by="ann", comment=secret),
        returned("fc-1", {"text": secret}),
        asked_model(),
        replied("done"),
    )
    again = restored(log).state.calls["fc-1"]
    assert (again.closed, again.answered_by, again.digest) == (True, "ann", log.state.calls["fc-1"].digest)
    assert len(Snapshot.of(log).encode()) < 2_000
