"""`waystation events` names who answered a call."""

import pytest

from tests.paths import ROOT
from tests.programs import command


@pytest.mark.parametrize(
    ("history", "line", "before"),
    [("long-running-approved", "[fc-1] approved by dana: “fine”", "ask answers"), ("confirmation-approved", "", "")],
)
async def test_an_answer_has_the_name_of_its_approver(history: str, line: str, before: str) -> None:
    """The name follows the answer, and an answer without a name has no such line."""
    out = (await command("events", str(ROOT / "tests" / "corpus" / f"{history}.json"))).out
    assert ("approved by" in out) is bool(line)
    assert line in out
    assert out.index(before) <= out.index(line)


async def test_a_name_that_an_event_has_is_not_repeated() -> None:
    """If the policy of a call has each approval recorded as an event, the answer does not name the approver again."""
    out = (await command("events", str(ROOT / "tests" / "corpus" / "approvals-of-two.json"))).out
    assert out.count("by ann, 1 of 2") == 1
    assert out.count("approved") == 2
