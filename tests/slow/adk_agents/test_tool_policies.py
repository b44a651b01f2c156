"""Policies that authors set on tools of google-adk."""

import json
import os
import subprocess
from pathlib import Path

from tests.paths import ROOT
from tests.slow.differential.conftest import PYTHON


def test_a_policy_on_a_tool_of_google_adk_asks_or_the_tool_does_not_load(tmp_path: Path) -> None:
    """A policy alone asks at each call, and a rule beside it decides. A tool that cannot ask is a mistake."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", ""), "PYTHONPATH": str(ROOT)}
    command = [str(PYTHON), "-W", "ignore", "-m", "tests.slow.adk_agents.tool_policies"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
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
