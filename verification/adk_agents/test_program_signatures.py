"""The signatures of the classes that ADK programs use."""

import json
import os
import subprocess

from tests.paths import ROOT
from verification.differential.conftest import PYTHON


def test_runners_and_services_have_the_signatures_of_google_adk() -> None:
    """Every public method of google-adk's classes exists, with the same parameters, kinds and defaults."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", ""), "PYTHONPATH": str(ROOT)}
    command = [str(PYTHON), "-W", "ignore", "-m", "verification.adk_agents.program_signatures"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
