"""Exceptions are logged without secrets, and logging causes no failures."""

import json
import os
import subprocess
import sys

import pytest

from tests.paths import ROOT

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
    """A traceback shows no local variables, because they contain messages of users and models."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "ValueError: no" in done.stderr
    assert "4711" not in done.stderr


WITH_WARNING = """
import warnings
from waystation.logs import configure_logs

configure_logs("json")
warnings.warn("this may change")
"""


def test_warnings_are_json_like_other_logs() -> None:
    """Warnings are logged as JSON, because log collectors expect it; packages warn when an agent is imported."""
    done = subprocess.run([sys.executable, "-c", WITH_WARNING], cwd=ROOT, capture_output=True, text=True, check=True)
    [line] = [json.loads(line) for line in done.stderr.splitlines()]
    assert (line["level"], "UserWarning: this may change" in line["event"]) == ("warning", True)


WITH_INFO = """
import logging
import sys
from waystation.logs import configure_logs

configure_logs("json", *sys.argv[1:])
logging.getLogger("tools.pay").info("paid")
logging.getLogger("httpx").info("GET https://example.com/?key=sk-1")
"""


@pytest.mark.parametrize(("level", "events"), [((), []), (("info",), ["paid"]), (("error",), [])])
def test_the_logs_of_tools_are_shown_from_a_level_on(level: tuple[str, ...], events: list[str]) -> None:
    """Logs of tools are shown from the given level on.

    Logs of HTTP clients are left out, because URLs may contain secrets.
    """
    command = [sys.executable, "-c", WITH_INFO, *level]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == events


WITHOUT_READER = """
import structlog
from waystation.logs import configure_logs

configure_logs("json")
structlog.get_logger("x").info("tool_call.completed")
print("continued")
"""


def test_a_broken_pipe_of_the_log_causes_no_failure() -> None:
    """A call does not fail or retry if the log collector has ended."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-c", WITHOUT_READER], cwd=ROOT, stdout=subprocess.PIPE, stderr=write)
    finally:
        os.close(write)
    assert done.stdout == b"continued\n"
