"""The conformance suite of MCP, with its own client, against the handlers of the interface."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.paths import ROOT
from tests.server.conftest import Serve
from tests.server.interfaces.conformance import conformance_site, make_agents

TASKS = {
    "tasks-lifecycle": 9,
    "tasks-capability-negotiation": 5,
    "tasks-wire-fields": 4,
    "tasks-request-state-removal": 3,
    "tasks-mrtr-input": 4,
    "tasks-request-headers": 5,
    "tasks-dispatch-and-envelope": 9,
    "tasks-status-notifications": 0,
    "tasks-required-task-error": 3,
    "tasks-mrtr-composition": 2,
}
"""The scenarios of the extension, each with the number of its checks."""
REVISIONS = ("2025-11-25", "2026-07-28")
OTHERS = {"2026-07-28": ("http-header-validation",)}
"""Scenarios that a revision does not require, because the suite's own server does not pass them."""
SKIPPED = {("2026-07-28", "server-stateless"): 5}
"""The checks of subscriptions, which the suite skips for a server without this capability."""
NODE = Path(sys.executable).with_name("node")
SUITE = ROOT / ".node" / "node_modules" / "@modelcontextprotocol" / "conformance"


async def run_scenario(url: str, folder: Path, scenario: str, *options: str) -> list[dict[str, str]]:
    """Run a scenario, and return its checks."""
    command = [
        str(NODE),
        str(SUITE / "dist" / "index.js"),
        "server",
        "--url",
        url,
        "--scenario",
        scenario,
        "-o",
        str(folder),
        *options,
    ]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, _ = await process.communicate()
    return read_checks(folder, scenario, out.decode())


def read_checks(folder: Path, scenario: str, out: str) -> list[dict[str, str]]:
    """Return the checks that the suite has written for a scenario."""
    files = sorted(folder.glob(f"server-{scenario}-*/checks.json"))
    assert files, out
    checks: list[dict[str, str]] = json.loads(files[-1].read_text())
    return checks


@pytest.mark.slow
async def test_the_suite_for_tasks_passes(serve: Serve, tmp_path: Path) -> None:
    """All checks of the extension succeed. The suite skips the one for notifications, which the extension may omit."""
    async with serve(*make_agents(), verify=False) as env, conformance_site(env.client) as url:
        checks = {scenario: await run_scenario(url, tmp_path, scenario) for scenario in TASKS}
    assert {scenario: Counter(check["status"] for check in found) for scenario, found in checks.items()} == {
        scenario: Counter({"SUCCESS": count} if count else {"SKIPPED": 1}) for scenario, count in TASKS.items()
    }


def read_requirements(revision: str) -> list[str]:
    """Return the scenarios that a revision requires of servers."""
    found: list[str] = yaml.safe_load((SUITE / "requirements" / f"{revision}.yaml").read_text())["server"]
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*capability is deprecated as of 2026-07-28")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_suite_for_a_revision_passes(serve: Serve, tmp_path: Path, revision: str) -> None:
    """All checks of each scenario that the revision requires succeed, except that some only inform."""
    scenarios = [*read_requirements(revision), *OTHERS.get(revision, ())]
    failed, counts = {}, {}
    async with serve(*make_agents(), verify=False) as env, conformance_site(env.client) as url:
        for scenario in scenarios:
            checks = await run_scenario(url, tmp_path, scenario, "--spec-version", revision)
            counts[scenario] = Counter(check["status"] for check in checks if check["status"] != "INFO")
            if counts[scenario] - Counter(SUCCESS=100, SKIPPED=SKIPPED.get((revision, scenario), 0)):
                failed[scenario] = checks
    assert failed == {}
    assert all(count["SUCCESS"] for count in counts.values())
    assert len(counts) >= 30
