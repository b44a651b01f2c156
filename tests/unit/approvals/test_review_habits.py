"""How people review calls, from the accounts of invocations."""

from typing import Any

from waystation.approvers.audit import ReviewHabits
from waystation.core.payload import JsonObject


def line(second: float, kind: str, **fields: Any) -> JsonObject:
    """A line of an account, at a second of a minute."""
    return {"time": f"2026-11-01T12:00:{second:06.3f}Z", "kind": kind, "call": "fc-1", **fields}


def answered(second: float, action: str, subject: str = "dana", **fields: Any) -> JsonObject:
    """A verified answer."""
    return line(second, "answered", action=action, verified={"subject": subject}, **fields)


def habits_of(*accounts: list[JsonObject]) -> list[JsonObject]:
    """The habits of all people in some accounts."""
    habits = ReviewHabits()
    for account in accounts:
        habits.add(account)
    return [habit.to_json() for habit in habits.list()]


def test_a_person_who_approves_without_reading_is_visible() -> None:
    """The time counts from when the person opened the call, and the wait from when it was requested."""
    requested = line(0, "requested", tool="pay")
    viewed = line(30, "viewed", action="view", verified={"subject": "dana"})
    hasty = [requested, viewed, answered(31, "approve", comment="ok")]
    careful = [requested, viewed, answered(50, "reject", comment="too much")]
    (habit,) = habits_of(hasty, hasty, careful)
    assert habit == {
        "approver": "dana",
        "tool": "pay",
        "verified": True,
        "answers": 3,
        "approvals": 2,
        "hasty": 2,
        "unopened": 0,
        "median_wait_s": 31.0,
        "most_frequent_comment": "ok",
        "repeated": 2,
    }


def test_people_are_kept_apart_and_unverified_names_are_marked() -> None:
    """Another person's view does not count, and claims and views are not answers."""
    account = [
        line(0, "requested", tool="pay"),
        line(1, "viewed", action="view", verified={"subject": "dana"}),
        line(2, "answered", action="claim", by="fay"),
        line(3, "answered", action="approve", by="fay"),
    ]
    (habit,) = habits_of(account)
    assert (habit["approver"], habit["answers"], habit["unopened"], habit["verified"]) == ("fay", 1, 1, False)
