"""What a snapshot has of a log: everything, or there is a reason."""

from dataclasses import fields

from waystation.core.log import Log
from waystation.core.snapshot import _PLAIN, _PRIVATE, KeptWork
from waystation.core.work import Work

RESTORED = {
    "entries_before", "events_before", "_state", "calls", "works", "active", "_shares", "_ask", "_scope_writes",
    "input",
}  # fmt: skip
"""Carried in a form of its own."""
EMPTY = {"entries", "events"}
"""What is left behind."""
AT_REST = {"submitted", "occasions", "_asked", "unwanted", "failure", "concluded", "cancelled", "ended"}
"""Has nothing to say at a moment at which a run may be cut."""
GIVEN = {"invocation_id", "_timed"}


def test_every_part_of_a_log_is_carried_over_or_named_here() -> None:
    """Whoever adds a field to a log decides what becomes of it when the run is continued as new."""
    carried = {*_PLAIN, *_PRIVATE.values(), *RESTORED, *EMPTY, *AT_REST, *GIVEN}
    assert set(vars(Log("i"))) == carried


def test_every_part_of_a_work_is_carried_over_or_named_here() -> None:
    """The same for an agent at work."""
    at_rest = {"children", "over", "in_flight", "phase_in_flight", "wrapping"}
    assert {field.name for field in fields(Work)} == {*KeptWork.model_fields, *at_rest}
