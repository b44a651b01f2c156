"""CrewAI's tools, by the real crewai."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT
from waystation.tools.crewai_tool import CrewaiTool

PYTHON = ROOT / ".venv-crewai" / "bin" / "python"


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What `subject.py` prints in the environment that has crewai."""
    if not PYTHON.exists():
        pytest.skip("`make test-full` creates the environment that has crewai")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "CREWAI_DISABLE_TELEMETRY": "true",
        "OTEL_SDK_DISABLED": "true",
    }
    command = [str(PYTHON), "-m", "tests.slow.crewai.subject"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_a_tool_is_declared_by_its_own_schema(told: dict[str, Any]) -> None:
    """Spaces in the name become underscores, as in ADK."""
    assert (told["declared"]["name"], told["declared"]["parametersJsonSchema"]) == (
        "weather_forecast",
        {
            "type": "object",
            "properties": {
                "city": {"title": "City", "type": "string", "description": "Where."},
                "days": {"title": "Days", "type": "integer", "default": 1},
            },
            "required": ["city"],
        },
    )
    assert "Tell the weather." in told["declared"]["description"]


def test_another_name_and_description_may_be_given(told: dict[str, Any]) -> None:
    """For a tool whose own ones do not suit the agent."""
    assert (told["renamed"]["name"], told["renamed"]["description"]) == ("fetch", "Fetch a page.")


def test_a_tool_is_run_with_the_arguments_it_knows(told: dict[str, Any]) -> None:
    """Coerced by its schema, with its defaults; a dictionary is the response itself."""
    assert told["ran"] == {"result": "Bern: sun for 3 days"}
    assert told["defaults"] == {"result": "Bern: sun for 1 days"}
    assert told["dictionary"] == {"text": "page of x"}
    assert told["asynchronous"] == {"result": "y"}


def test_arguments_that_do_not_fit_are_answered(told: dict[str, Any]) -> None:
    """As for any function."""
    assert "mandatory input parameters are not present:\ncity\n" in told["missing"]["error"]
    assert "Parameter 'days': expected type 'int', validation error" in told["wrong"]["error"]


def test_a_tool_that_raises_is_one_that_raises(told: dict[str, Any]) -> None:
    """What becomes of it is up to `on_error`, as for any tool."""
    assert told["raised"] == "LookupError: nothing there"


@pytest.mark.parametrize(
    ("given", "said"),
    [(print, "'builtin_function_or_method' is not a CrewAI tool"), (Path, "Path is a class; wrap an instance")],
)
def test_what_is_no_tool_of_crewai_is_refused(given: object, said: str) -> None:
    """Also the class of one, where its parentheses were forgotten."""
    with pytest.raises(ValueError, match=said):
        CrewaiTool(given, name="it")
