"""Differences between two records."""

import pytest

from verification.differential.record import difference, renumbered


@pytest.mark.parametrize(
    ("expected", "found", "lines"),
    [
        ({"a": [1, {"b": "x"}]}, {"a": [1, {"b": "x"}]}, []),
        ({"a": 1}, {"a": 1.0}, ["a: expected 1, found 1.0"]),
        ({"a": 1}, {"a": True}, ["a: expected 1, found true"]),
        ({"a": None}, {}, ["a: lacks null"]),
        ({}, {"a": []}, ["a: has [] besides"]),
        ({"a": [1, 2]}, {"a": [2]}, ["a[0]: expected 1, found 2", "a[1]: lacks 2"]),
        ({"a": [1]}, {"a": [1, 2]}, ["a[1]: has 2 besides"]),
    ],
)
def test_values_types_and_lengths_count(expected: object, found: object, lines: list[str]) -> None:
    """Every difference is reported with its place."""
    assert difference(expected, found) == lines


def test_ids_are_numbered_by_first_appearance() -> None:
    """IDs in events are numbered as ids, keys and text; in requests only generated IDs are."""
    call = {"functionCall": {"id": "fc-7", "name": "f"}}
    event = {"content": {"parts": [call]}, "actions": {"asked": {"fc-7": "see fc-7"}}, "longRunningToolIds": ["fc-7"]}
    request = {"contents": [{"parts": [{"text": "fc-7 of m-1"}]}]}
    assert renumbered({"events": [event], "requests": {"main": [request]}}) == {
        "events": [
            {
                "content": {"parts": [{"functionCall": {"id": "call-1", "name": "f"}}]},
                "actions": {"asked": {"call-1": "see call-1"}},
                "longRunningToolIds": ["call-1"],
            }
        ],
        "requests": {"main": [{"contents": [{"parts": [{"text": "call-1 of m-1"}]}]}]},
    }
