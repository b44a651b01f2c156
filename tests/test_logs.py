"""What logs say of an exception."""

import subprocess
import sys

from tests.processes.workers import ROOT

PROGRAM = """
import logging
from waystation.logs import configure_logs

configure_logs("console")
said = "my account is 4711"
try:
    raise ValueError("no")
except ValueError:
    logging.getLogger("x").exception("tool.failed")
"""


def test_a_traceback_for_people_has_no_local_variables() -> None:
    """In those of the engine is what people and models said."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "ValueError: no" in done.stderr
    assert "4711" not in done.stderr
