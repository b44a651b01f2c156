"""`waystation events` names who answered a call."""

import pytest

from tests.paths import ROOT
from tests.programs import command


@pytest.mark.parametrize(
    ("history", "line", "before"),
    [("long-running-approved", "[fc-1] approved by dana: “fine”", "ask answers"), ("confirmation-approved", "", "")],
)
async def test_an_answer_has_the_name_of_its_approver(history: str, line: str, before: str) -> None:
    """The name of the approver follows the answer; an answer without a name has no such line."""
    out = (await command("events", str(ROOT / "tests" / "corpus" / f"{history}.json"))).out
    assert ("approved by" in out) is bool(line)
    assert line in out
    assert out.index(before) <= out.index(line)


async def test_a_name_that_an_event_has_is_not_repeated() -> None:
    """The name is not repeated if the policy records each approval as an event."""
    out = (await command("events", str(ROOT / "tests" / "corpus" / "approvals-of-two.json"))).out
    assert out.count("by ann, 1 of 2") == 1
    assert out.count("approved") == 2
