"""The same conversation gives the same events, state and model requests on google-adk and on Waystation."""

from collections.abc import Iterable

import pytest

from verification.differential.conftest import Oracle
from verification.differential.deviations import DEVIATIONS
from verification.differential.record import difference
from verification.differential.scenario import Json, Scenario
from verification.differential.subject import Subject
from verification.differential.tables import SCENARIOS

SHOWN_LINES = 40
ALWAYS = [name for name, deviation in DEVIATIONS.items() if deviation.always]


def expected(oracle: Oracle, scenario: Scenario, deviations: Iterable[str]) -> Json:
    """Return the record that Waystation must have with exactly these deviations."""
    names = list(deviations)
    adapting = [name for name in names if DEVIATIONS[name].adapts]
    whole = oracle.ask({"scenario": scenario.name, "deviations": adapting})
    for name in names:
        whole = DEVIATIONS[name].change(whole, scenario.deviations.get(name))
    return whole


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_scenario_runs_as_in_adk(oracle: Oracle, subject: Subject, name: str) -> None:
    """A scenario has every deviation that it names, and no other."""
    scenario = SCENARIOS[name]
    named = [*scenario.deviations, *ALWAYS]
    found = await subject.run(scenario)
    lines = difference(expected(oracle, scenario, named), found)
    assert not lines, "\n".join(lines[:SHOWN_LINES])
    for stale in scenario.deviations:
        rest = [other for other in named if other != stale]
        assert difference(expected(oracle, scenario, rest), found), f"The deviation {stale!r} does not show any more."
