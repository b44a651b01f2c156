"""The pages about hazards and threats name existing tests."""

import re

import pytest

from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "hazards.md").read_text()
THREATS = (ROOT / "docs" / "explanation" / "threat-model.md").read_text()


@pytest.mark.parametrize("page", [PAGE, THREATS], ids=["hazards", "threats"])
def test_every_named_test_exists(page: str) -> None:
    """Every named test exists; a hazard without its test would look guarded."""
    named = re.findall(r"`(test_\w+)`", page)
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 30
    assert [name for name in named if f"def {name}(" not in written] == []


def test_every_hazard_names_a_test() -> None:
    """Each row of the hazards has at least one test."""
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and not row.startswith("| hazard |")]
    assert [row for row in rows if "`test_" not in row] == []


def test_every_denial_of_the_threat_model_names_a_test() -> None:
    """Each denial to an attacker is followed by its tests, except the lock, which uv enforces."""
    rows = [row for row in THREATS.splitlines() if row.startswith("| ")]
    denials = [(row, after) for row, after in zip(rows, [*rows[1:], ""], strict=True) if row.startswith("| cannot |")]
    assert len(denials) > 20
    assert [row for row, after in denials if "`test_" not in after and "requirements.lock" not in row] == []


def test_untested_denials_are_in_the_last_section() -> None:
    """Denials without a test are in the last section."""
    assert "`test_" not in THREATS.partition("## Not yet tested")[2]
