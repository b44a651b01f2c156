"""The documentation and the code have the same limits."""

import re
from datetime import timedelta

import pytest

from tests.documents import DOCS, section
from waystation import configuration
from waystation.activities import activity_attempt, call_modes
from waystation.activities.model_call import annotate
from waystation.core import payload as values
from waystation.core import scope_state, session_log
from waystation.core.approval import answer, policy, remembered
from waystation.core.budget import MAX_MODEL_CALLS
from waystation.core.contract import MAX_MEMO_CALLS, Settings
from waystation.core.ids import MAX_SESSION_ID_CHARS
from waystation.core.log import MAX_IGNORED_EVENTS, answers, decision
from waystation.core.log.call import DEFAULT_DEADLINE_S
from waystation.core.payload import MAX_VALUE_BYTES
from waystation.interfaces.ag_ui import MAX_INVOCATIONS
from waystation.storage import postgres
from waystation.storage.driver import INLINE_LIMIT
from waystation.tools.mcp_tool.mcp_session_manager import MAX_TOOLS, MAX_VALUES
from waystation.tools.openapi_tool.openapi_spec_parser.rest_api_tool import MAX_FILE_BYTES, MAX_RESPONSE_BYTES
from waystation.tools.outcome import MAX_RESULT_BYTES
from waystation.web.limits import Limits
from waystation.worker.main import parse_options
from waystation.worker.plugin import WORKER_OPTIONS
from waystation.workflows import continue_as_new

PAGE = (DOCS / "reference" / "limits.md").read_text()
WEB, SETTINGS = Limits(), Settings()
WORKER = parse_options(["--agents", "."], "worker")


def size(count: int) -> str:
    """Return a number of bytes as the page writes it."""
    return f"{count / 1_000_000:g} MB" if count >= 1_000_000 else f"{count / 1000:g} kB"


def duration(value: timedelta) -> str:
    """Return a duration as the page writes it."""
    seconds = value.total_seconds()
    unit, name = next((unit, name) for unit, name in ((86_400, "days"), (60, "min"), (1, "s")) if seconds >= unit)
    return f"{seconds / unit:g} {name}"


LIMITS = {
    "## Sizes": {
        "message to an invocation": size(INLINE_LIMIT),
        "message in a session": size(session_log.MAX_MESSAGE_BYTES),
        "model reply": size(MAX_VALUE_BYTES),
        "tool result, including media": size(MAX_RESULT_BYTES),
        "response of an OpenAPI service": f"{size(MAX_RESPONSE_BYTES)} of text; {size(MAX_FILE_BYTES)} otherwise",
        "response of an MCP server": f"{MAX_VALUES:,} values",
        "tool result, without": size(MAX_VALUE_BYTES),
        "result of a [quick call]": size(call_modes.MAX_QUICK_BYTES),
        "state written by one call": size(MAX_VALUE_BYTES),
        "input of a called agent": f"{size(MAX_VALUE_BYTES)}; {size(annotate.MAX_AGENT_INPUT_BYTES)}",
        "answer to a call": size(MAX_VALUE_BYTES),
        "result of an invocation": size(MAX_VALUE_BYTES),
        "state of a session": size(session_log.MAX_STATE_BYTES),
        "state of a user": size(scope_state.MAX_SCOPE_BYTES),
        "nesting of a value": f"{values.MAX_DEPTH} levels",
        "integer in a value": f"{values.MAX_INTEGER:,}",
        "ID of a session": f"{MAX_SESSION_ID_CHARS} characters",
        "names of a user and an app": f"{scope_state.MAX_ID_BYTES:,} characters",
        "token of an answer": f"{answer.MAX_TOKEN_CHARS:,} characters",
        "configuration file": size(configuration.MAX_FILE_BYTES),
        "form of the web": size(WEB.body_bytes),
        "webhook that starts": size(WEB.trigger_bytes),
    },
    "## Numbers": {
        "calls in one reply": str(annotate.MAX_CALLS),
        "quick calls in one": str(annotate.MAX_QUICK_CALLS),
        "model calls of": str(MAX_MODEL_CALLS),
        "levels of agents": str(annotate.MAX_DEPTH),
        "pending calls of an invocation |": f"none; its state and open calls: {size(continue_as_new.MAX_CARRIED)}",
        "pending calls of an invocation that lists": str(MAX_MEMO_CALLS),
        "answers of an invocation": str(decision.MAX_VERIFICATIONS),
        "approvers that": str(policy.MAX_QUORUM),
        "reminders and": str(policy.MAX_NOTICES),
        "remembered approvals": str(remembered.MAX_STANDING),
        "invocations that a thread": str(MAX_INVOCATIONS),
        "receipts of the answers": str(answers.MAX_RECEIPTS),
        "ignored answers": str(MAX_IGNORED_EVENTS),
        "messages queued": f"{session_log.MAX_QUEUED}, or {size(session_log.MAX_QUEUED_BYTES)}",
        "ended invocations": str(session_log.MAX_SHOWN_TURNS),
        "tools of an MCP server": f"{MAX_TOOLS:,}",
        "activities that a worker": str(SETTINGS.concurrent_activities),
        "invocations in a worker's cache": str(WORKER_OPTIONS["max_cached_workflows"]),
    },
    "## Times": {
        "wait for an answer": duration(timedelta(seconds=DEFAULT_DEADLINE_S)),
        "one reply of a model": duration(WORKER.model_timeout),
        "attempts at a model call": str(SETTINGS.workflow.model.retries.maximum_attempts),
        "one try of a tool": duration(SETTINGS.workflow.tool.timeout),
        "additional attempts": str(SETTINGS.workflow.tool.lost_worker_attempts),
        "quick call": duration(SETTINGS.workflow.tool.quick),
        "tool that blocks": duration(WORKER.event_loop_limit),
        "attempts at a call that blocks": str(activity_attempt.MAX_BLOCKED_ATTEMPTS),
        "start of a worker": duration(WORKER.wait),
        "[held]": duration(WORKER.hold),
        "transaction of a frozen": f"{postgres.LIMIT_S:g} s",
        "attempts of a tool to use": duration(SETTINGS.activity.store_retry),
        "processing of what": duration(WORKER.workflow_task_limit),
    },
    "## Rates": {
        "forms of a login": f"{WEB.posts} per minute",
        "forms from an address": f"{WEB.posts_of_address} per minute",
        "attempts to log in": f"{WEB.login_attempts} per minute",
        "event streams": f"{WEB.streams}; {WEB.streams_per_login} of a person; {WEB.program_streams} of the programs",
        "requests of": f"{WEB.visibility_per_s} per second",
        "connections": f"{WEB.connections}; {WEB.connections_per_address} from an address",
    },
    "## Histories and retention": {
        "history events": f"{continue_as_new.EVENTS:,}",
        "size of a history": size(continue_as_new.BYTES),
        "signals": f"{continue_as_new.SIGNALS:,}",
        "updates": f"{continue_as_new.UPDATES:,}",
        "invocations of a session": str(session_log.SessionInput.model_fields["cut_after"].default),
    },
}
OTHERS = ("calls and tokens of a model", "writes to the `app:` state", "lists of invocations", "requests to the server")
"""Rows about limits of the server, or of a file that users write."""


def rows(heading: str) -> list[str]:
    """Return the rows of the table below a heading, without the first bar."""
    table = re.findall(r"^\| (.*)", section(PAGE, heading), re.MULTILINE)
    return [row for row in table[1:] if not row.startswith(OTHERS)]


@pytest.mark.parametrize("heading", LIMITS)
def test_each_documented_limit_equals_that_of_the_code(heading: str) -> None:
    """Each row of the table has the value of a constant or a default."""
    limits, table = LIMITS[heading], rows(heading)
    assert len(table) == len(limits)
    for begin, limit in limits.items():
        [row] = [row for row in table if row.startswith(begin)]
        assert re.match(rf"{re.escape(limit)}\b", row.split(" | ")[1]), (row, limit)


def test_rates_are_per_minute() -> None:
    """The page gives rates of the web application per minute."""
    assert WEB.window_s == 60
