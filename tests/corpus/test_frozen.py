"""Histories that a release has frozen never change, so every later version is tested with them."""

import pytest

from tests.corpus.freeze import find_faults, freeze, read_frozen, read_kept
from tests.paths import ROOT

UNRELEASED = "# Changelog\n\n## 0.1.0 (unreleased)\n"
RELEASED = "# Changelog\n\n## 0.1.0 (2026-11-28)\n"
NEXT = "# Changelog\n\n## 0.2.0 (unreleased)\n\n## 0.1.0 (2026-11-28)\n"
KEPT = {"a.json": "1", "b.json": "2"}


def test_frozen_histories_are_unchanged_and_releases_have_frozen_theirs() -> None:
    """The frozen histories are unchanged, because a changed history could not show that a later version replays it."""
    assert find_faults((ROOT / "CHANGELOG.md").read_text(), read_frozen(), read_kept()) == []


@pytest.mark.parametrize(
    ("changelog", "frozen"),
    [
        pytest.param(UNRELEASED, {}, id="nothing is released"),
        pytest.param(RELEASED, KEPT, id="everything is frozen"),
        pytest.param(NEXT, {"a.json": "1"}, id="one history was recorded after the release"),
    ],
)
def test_histories_may_change_until_they_are_frozen(changelog: str, frozen: dict[str, str]) -> None:
    """Histories that were recorded after a release are frozen at the next release."""
    assert find_faults(changelog, frozen, KEPT) == []


@pytest.mark.parametrize("changelog", [RELEASED, NEXT])
def test_a_release_without_frozen_histories_is_a_fault(changelog: str) -> None:
    """A released version without frozen histories is reported, because freezing is a step of each release."""
    [fault] = find_faults(changelog, {}, KEPT)
    assert "Version 0.1.0 is released, but no history is frozen." in fault


def test_a_release_that_omits_a_history_is_a_fault() -> None:
    """A release is reported if it lacks a history that was recorded between the freeze and the tag."""
    [fault] = find_faults(RELEASED, {"a.json": "1"}, KEPT)
    assert fault.startswith("b.json is not frozen.")


@pytest.mark.parametrize("now", [{"a.json": "other"}, {}], ids=["changed", "removed"])
def test_a_frozen_history_that_changes_is_a_fault(now: dict[str, str]) -> None:
    """A changed frozen history is reported even before the next release."""
    assert find_faults(NEXT, {"a.json": "1"}, now) == ["a.json is frozen, and has changed or is missing."]


def test_freezing_again_keeps_the_first_digest() -> None:
    """Freezing a changed history keeps its first digest; a new digest would hide the change."""
    assert freeze({"a.json": "1"}, {"a.json": "other", "b.json": "2"}) == KEPT
