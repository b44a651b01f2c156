"""The conformance suite of MCP, with its own client, against the handlers of the interface."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

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
PROTOCOL = {
    ("2025-11-25", "server-initialize"): 2,
    ("2025-11-25", "ping"): 2,
    ("2025-11-25", "tools-list"): 3,
    ("2025-11-25", "dns-rebinding-protection"): 2,
    ("2026-07-28", "tools-list"): 4,
    ("2026-07-28", "dns-rebinding-protection"): 2,
    ("2026-07-28", "http-header-validation"): 14,
    ("2026-07-28", "server-sse-multiple-streams"): 1,
    ("2026-07-28", "input-required-result-unsupported-methods"): 2,
}
"""The scenarios of the revisions that need no fixtures, each with the number of its checks. Those that are missing need
prompts, resources, sampling, or tools with a certain content, which the interface does not offer."""
NODE = Path(sys.executable).with_name("node")
SUITE = ROOT / ".node" / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"


async def run_scenario(url: str, folder: Path, scenario: str, *options: str) -> list[dict[str, str]]:
    """Run a scenario, and return its checks."""
    command = [str(NODE), str(SUITE), "server", "--url", url, "--scenario", scenario, "-o", str(folder), *options]
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


@pytest.mark.slow
async def test_the_suite_for_the_protocol_passes(serve: Serve, tmp_path: Path) -> None:
    """All checks of each scenario succeed, except that some only inform."""
    found = {}
    async with serve(*make_agents(), verify=False) as env, conformance_site(env.client) as url:
        for revision, scenario in PROTOCOL:
            checks = await run_scenario(url, tmp_path / revision, scenario, "--spec-version", revision)
            found[revision, scenario] = Counter(check["status"] for check in checks if check["status"] != "INFO")
    assert found == {key: Counter(SUCCESS=count) for key, count in PROTOCOL.items()}
