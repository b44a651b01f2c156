"""All scenarios, by name."""

from tests.differential.scenario import Scenario
from tests.differential.tables import agent_tool, arguments, calls, confirmation, long_running, results, state

TABLES = (
    calls.TABLE,
    arguments.TABLE,
    results.TABLE,
    confirmation.TABLE,
    long_running.TABLE,
    agent_tool.TABLE,
    state.TABLE,
)

SCENARIOS: dict[str, Scenario] = {}
for _scenario in (each for table in TABLES for each in table):
    if _scenario.name in SCENARIOS:
        raise ValueError(f"Two scenarios are named {_scenario.name!r}.")
    SCENARIOS[_scenario.name] = _scenario
