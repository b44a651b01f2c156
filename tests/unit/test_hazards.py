"""What docs/reference/hazards.md says is shown by tests, is."""

import re

from tests.paths import ROOT


def test_every_test_that_is_named_exists() -> None:
    """A hazard whose test is gone, or has another name by now, would look guarded."""
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reference" / "hazards.md").read_text())
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 30
    assert [name for name in named if f"def {name}(" not in written] == []


def test_every_hazard_names_a_test() -> None:
    """One in each row at least."""
    rows = [
        row for row in (ROOT / "docs" / "reference" / "hazards.md").read_text().splitlines() if row.startswith("| ")
    ][1:]
    assert [row for row in rows if "`test_" not in row] == []
