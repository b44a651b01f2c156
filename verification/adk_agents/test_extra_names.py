"""Names of google-adk that agents of Waystation use through the extra `adk`, and policies on its tools."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.paths import ROOT
from verification.differential.conftest import PYTHON


def found_by(module: str, folder: Path) -> Any:
    """Run a module in the environment with google-adk and Waystation, and return the JSON in its last line."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", ""), "PYTHONPATH": str(ROOT)}
    command = [str(PYTHON), "-W", "ignore", "-m", f"verification.adk_agents.{module}"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_names_of_google_adk_work_with_agents_of_waystation(tmp_path: Path) -> None:
    """Planners, tools, code executors, plugins and services of google-adk work with agents of either package."""
    found = found_by("extra_names", tmp_path)
    result = {"outcome": "OUTCOME_OK", "output": "Code execution result:\n42\n\n"}
    assert found["coded"] == ["It is 42.", [result], True]
    assert found["ran"] == ["Hello."]
    assert found["planned"] == [True, None, [["look", True], ["seen", None]], True, False]
    assert found["shown"] == [["example_tool", "look"], True]
    assert found["saved"] == [0, "hello", ["note.txt"]]
    assert found["remembered"] == ["I like tea"]
    assert found["modules"] == ["google.adk.tools.toolbox_toolset", "google.adk.tools.openapi_tool.auth.auth_helpers"]
    assert "slack_bolt" in found["missing"]


def test_a_policy_on_a_tool_of_google_adk_asks_or_the_tool_does_not_load(tmp_path: Path) -> None:
    """A policy alone gates each call, and a rule beside it decides. A policy on a tool that cannot ask is a mistake."""
    found = found_by("tool_policies", tmp_path)
    refused = {name: found.pop(name) for name, result in [*found.items()] if isinstance(result, str)}
    every, large, never = [True, True], [False, True], [False, False]
    assert found == {
        **{name: [every, "declared"] for name in ("alone", "generator", "always", "own class", "of the class")},
        **{name: [large, "declared"] for name in ("rule", "rule as an attribute", "own class with a rule")},
        "long-running": [never, "declared"],
        "toolset": [every, "toolset:Listed"],
        "toolset with prefix": [large, "toolset:bank"],
    }
    assert {name: "approval" in problem for name, problem in refused.items()} == dict.fromkeys(
        ("agent", "of the provider", "policy of a toolset", "policy of a function"), True
    )
