"""Names of google-adk that agents of Waystation use through the extra `adk`."""

import json
import os
import subprocess
from pathlib import Path

from tests.paths import ROOT
from tests.slow.differential.conftest import PYTHON


def test_names_of_google_adk_work_with_agents_of_waystation(tmp_path: Path) -> None:
    """They are google-adk's own: planners, tools, code executors, plugins and services. So may the agent be."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", ""), "PYTHONPATH": str(ROOT)}
    command = [str(PYTHON), "-W", "ignore", "-m", "tests.slow.adk_agents.extra_names"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    result = {"outcome": "OUTCOME_OK", "output": "Code execution result:\n42\n\n"}
    assert found["coded"] == ["It is 42.", [result], True]
    assert found["ran"] == ["Hello."]
    assert found["planned"] == [True, None, [["look", True], ["seen", None]], True, False]
    assert found["shown"] == [["example_tool", "look"], True]
    assert found["saved"] == [0, "hello", ["note.txt"]]
    assert found["remembered"] == ["I like tea"]
    assert found["modules"] == ["google.adk.tools.toolbox_toolset", "google.adk.tools.openapi_tool.auth.auth_helpers"]
    assert "slack_bolt" in found["missing"]
