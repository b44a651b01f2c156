"""Each hazard in docs/reference/hazards.md names tests that exist."""

import re

from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "hazards.md").read_text()


def test_every_named_test_exists() -> None:
    """A hazard whose test was removed or renamed would look guarded."""
    named = re.findall(r"`(test_\w+)`", PAGE)
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 30
    assert [name for name in named if f"def {name}(" not in written] == []


def test_every_hazard_names_a_test() -> None:
    """Each row has at least one test."""
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and not row.startswith("| hazard |")]
    assert [row for row in rows if "`test_" not in row] == []
