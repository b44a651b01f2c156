"""All scenarios, by name."""

from verification.differential.scenario import Scenario
from verification.differential.tables import (
    agent_tool,
    agents,
    arguments,
    auth,
    callbacks,
    calls,
    compaction,
    confirmation,
    conversations,
    long_running,
    planners,
    plugins,
    ready_made,
    requests,
    results,
    scopes,
    state,
    stores,
    toolsets,
)

TABLES = (
    calls.TABLE,
    arguments.TABLE,
    results.TABLE,
    confirmation.TABLE,
    confirmation.DYNAMIC,
    long_running.TABLE,
    agent_tool.TABLE,
    state.TABLE,
    agents.WORKFLOWS,
    agents.TRANSFERS,
    requests.TABLE,
    requests.TEMPLATED,
    requests.CONTENTS,
    requests.OUTPUT,
    callbacks.TOOLS,
    callbacks.MODELS,
    callbacks.ERRORS,
    callbacks.AGENTS,
    agents.STEPS,
    agents.WAITING,
    calls.GENERATORS,
    state.CONTEXT,
    callbacks.EVENTS,
    planners.TABLE,
    plugins.TABLE,
    compaction.TABLE,
    stores.ARTIFACTS,
    stores.MEMORY,
    ready_made.TABLE,
    toolsets.TOOLSETS,
    auth.TABLE,
    conversations.TABLE,
    scopes.TABLE,
)

SCENARIOS: dict[str, Scenario] = {}
for _scenario in (each for table in TABLES for each in table):
    if _scenario.name in SCENARIOS:
        raise ValueError(f"Two scenarios are named {_scenario.name!r}.")
    SCENARIOS[_scenario.name] = _scenario
