"""The same agents of google-adk give the same events, state and model requests there and through the adapter."""

import pytest

from verification.adk_agents.adk_scenarios import ADK_SCENARIOS
from verification.differential.conftest import Oracle
from verification.differential.deviations import DEVIATIONS, without_labels
from verification.differential.record import difference
from verification.differential.scenario import Json
from verification.differential.tables import SCENARIOS
from verification.differential.test_scenarios import ALWAYS, SHOWN_LINES, expected

OF_OUR_CLASSES = {
    "arguments-are-validated",
    "bound-arguments-are-hidden",
    "constraints-are-checked",
    "long-running-note",
    "parameter-descriptions",
    "ready-made-words",
    "short-validation-errors",
}
"""Deviations of Waystation's tools, which google-adk's own tools do not have."""
OTHER_ERRORS = {"ready_made_search_of_another_model"}
"""The text of google-adk's exception is not recorded, because such texts may quote the conversation."""


def with_calls_that_run_code(whole: Json) -> Json:
    """Turn executed code into a tool call, whose response is the code's result."""
    for event in whole["events"]:
        parts = event.get("content", {}).get("parts", [])
        if parts and "executableCode" in parts[-1]:
            call = {"id": "call-1", "name": "adk_run_code", "args": {"code": parts[-1]["executableCode"]["code"]}}
            parts.append({"functionCall": call})
            event.update(final=False, longRunningToolIds=[])
        elif parts and "codeExecutionResult" in parts[0]:
            result = parts[0].pop("codeExecutionResult")
            parts[0]["functionResponse"] = {"id": "call-1", "name": "adk_run_code", "response": result}
            event["content"]["role"] = "user"
    return whole


@pytest.mark.parametrize("name", ADK_SCENARIOS)
def test_a_part_of_google_adk_works_as_there(oracle: Oracle, adapted: Oracle, name: str) -> None:
    """Planners, code executors, plugins and changes of requests are google-adk's, and behave as there."""
    scenario, answer = ADK_SCENARIOS[name], without_labels(adapted.ask(name), None)
    whole = expected(oracle, scenario, [*scenario.deviations, *ALWAYS])
    lines = difference(with_calls_that_run_code(whole), answer)
    assert not lines, "\n".join(lines[:SHOWN_LINES])


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in OTHER_ERRORS])
def test_a_google_adk_agent_runs_as_in_adk(oracle: Oracle, adapted: Oracle, name: str) -> None:
    """A google-adk agent differs only in the deviations of the engine."""
    scenario = SCENARIOS[name]
    named = [*scenario.deviations, *ALWAYS]
    engine = [deviation for deviation in named if deviation not in OF_OUR_CLASSES]
    lines = difference(expected(oracle, scenario, engine), adapted.ask(name))
    assert not lines, "\n".join(lines[:SHOWN_LINES])


def test_deviations_of_waystations_classes_are_known() -> None:
    """Every deviation listed here exists."""
    assert DEVIATIONS.keys() >= OF_OUR_CLASSES
