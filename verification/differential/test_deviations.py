"""The table of deviations is complete, documented and used."""

from collections import Counter

from tests.paths import ROOT
from verification.differential.deviations import DEVIATIONS
from verification.differential.tables import SCENARIOS

DOCUMENTED = (ROOT / "docs" / "reference" / "adk.md").read_text()


def test_a_deviation_has_its_row_in_the_documentation() -> None:
    """Each deviation has one row, which its text identifies."""
    rows = {name: deviation.row for name, deviation in DEVIATIONS.items()}
    assert {name: row for name, row in rows.items() if f"\n| {row}" not in DOCUMENTED} == {}


def test_every_deviation_is_shown_by_some_scenario() -> None:
    """Every deviation occurs in a scenario, which proves it."""
    shown = Counter(deviation for scenario in SCENARIOS.values() for deviation in scenario.deviations)
    always = {name for name, deviation in DEVIATIONS.items() if deviation.always}
    assert set(shown) | always == set(DEVIATIONS)


def test_the_number_of_scenarios_has_a_minimum() -> None:
    """Tables of scenarios cannot shrink by accident."""
    assert len(SCENARIOS) >= 120
