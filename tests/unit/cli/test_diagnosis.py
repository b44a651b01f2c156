"""The command `waystation doctor` finds faults and names the commands that correct them."""

from collections.abc import Mapping
from typing import Any

import pytest

from waystation.cli.diagnosis import Observations, Poller, SettingsFile, diagnose
from waystation.core.contract import SEARCH_ATTRIBUTES

NOW = 1_000_000.0
ATTRIBUTES = dict.fromkeys(SEARCH_ATTRIBUTES, True)


def polling(**fields: Any) -> list[Poller]:
    """Return a worker that polls for workflows and activities."""
    usual = {"identity": "1@host", "build": "0.1.0", "seen_at": NOW - 10}
    return [Poller(**{**usual, "kind": kind, **fields}) for kind in ("workflows", "activities")]


def settings_file(check: str, **fields: Any) -> SettingsFile:
    """Return a file with keys or settings."""
    return SettingsFile(**{"check": check, "file": f"/{check}", "problem": None, "fix": f"create {check}", **fields})


HEALTHY: Mapping[str, Any] = {
    "now": NOW,
    "address": "temporal.example.com:7233",
    "is_local": False,
    "tls": True,
    "namespace": "default",
    "task_queue": "waystation",
    "server_version": "1.32.0",
    "version": "0.1.0",
    "retention_s": 604_800.0,
    "search_attributes": ATTRIBUTES,
    "pollers": polling(),
    "current_deployments": {"workflows": None, "activities": None},
    "backlogs": {"workflows": (0, 0.0), "activities": (3, 1.0)},
    "unpolled_queues": {},
    "newest_start": NOW - 60,
    "folder": "/folder",
    "store": "file:///store",
    "free_bytes": 1 << 40,
    "files": [settings_file("keys"), settings_file("channels")],
    "agents": {},
    "checked_agents": 2,
}
FAULTS: list[tuple[str, Mapping[str, Any], str, str]] = [
    ("old server", {"server_version": "1.28.1"}, "server", "install Temporal 1.29"),
    ("no TLS", {"tls": False}, "server", "TEMPORAL_TLS"),
    ("no namespace", {"namespace_problem": "not found"}, "namespace", "operator namespace create default"),
    ("short retention", {"retention_s": 3_600.0}, "namespace", "--retention"),
    (
        "missing attribute",
        {"search_attributes": {name: True for name in SEARCH_ATTRIBUTES if name != "WaystationStatus"}},
        "search attributes",
        "waystation setup",
    ),
    (
        "attribute of another type",
        {"search_attributes": {**ATTRIBUTES, "WaystationAgent": False}},
        "search attributes",
        "search-attribute remove --name WaystationAgent",
    ),
    (
        "unknown attributes",
        {"search_attributes": {}, "search_attributes_problem": "Request unauthorized."},
        "search attributes",
        "read access to the namespace",
    ),
    ("no worker", {"pollers": []}, "workers for workflows", "waystation worker"),
    ("only workflows", {"pollers": polling()[:1]}, "workers for activities", "waystation worker"),
    ("only activities", {"pollers": polling()[1:]}, "workers for workflows", "waystation worker"),
    ("worker that ended", {"pollers": polling(seen_at=NOW - 300)}, "workers for activities", "waystation worker"),
    (
        "deployment without a current version",
        {"pollers": polling(deployment="prod", build="7")},
        "workers for workflows",
        "set-current-version --deployment-name prod --build-id 7",
    ),
    (
        "backlog of workflows",
        {"backlogs": {"workflows": (9, 300.0)}},
        "backlog of workflows",
        "--only workflows",
    ),
    ("backlog of activities", {"backlogs": {"activities": (9, 300.0)}}, "backlog of activities", "more machines"),
    ("queue without workers", {"unpolled_queues": {"old": 4}}, "task queues", "--task-queue old"),
    ("other version", {"pollers": polling(build="0.3.0")}, "versions", "waystation==0.3.0"),
    ("killed worker", {"pollers": polling(seen_at=NOW - 75)}, "workers for workflows", "waystation worker"),
    ("unsupported google-adk", {"adk_problem": "google-adk 3 is not supported"}, "versions", "waystation[adk]"),
    ("slow clock", {"pollers": polling(seen_at=NOW + 30)}, "clock", "timedatectl"),
    ("slow clock without workers", {"pollers": polling(), "newest_start": NOW + 30}, "clock", "timedatectl"),
    ("fast clock", {"clock_ahead_s": 300.0, "pollers": polling(seen_at=NOW - 310)}, "clock", "timedatectl"),
    ("store that fails", {"store_problem": "access denied"}, "store", "WAYSTATION_STORE"),
    ("another store", {"store_differences": ["--store is the store 1"]}, "stores of workers", "--memory"),
    ("other store that fails", {"other_stores": {"--memory": "no route"}}, "store --memory", "correct --memory"),
    ("full disk", {"free_bytes": 1 << 20}, "store", "waystation store prune"),
    ("broken keys", {"files": [settings_file("keys", problem="not a key set")]}, "keys", "create keys"),
    (
        "broken identity file",
        {"files": [settings_file("identity", problem="no issuer")]},
        "identity",
        "create identity",
    ),
    ("broken channels", {"files": [settings_file("channels", problem="no address")]}, "channels", "create channels"),
    ("agent without a model key", {"agents": {"a.py": "no credentials"}}, "agents", "waystation worker check"),
    ("failing workflow tasks", {"failing_tasks": ["refund-8"]}, "workflow tasks", "waystation replay refund-8"),
    ("worker without a codec", {"undecrypted": {("q", "ship"): "refund-7"}}, "decryption", "data_converter()"),
    ("held invocation", {"held": [("refund-9", "refund-9 since 8:00")]}, "held", "waystation retry refund-9"),
]


def test_an_installation_without_faults_passes() -> None:
    """All checks pass, and none suggests a command."""
    findings = list(diagnose(Observations(**HEALTHY)))
    assert [finding for finding in findings if not finding.ok or finding.fix] == []
    assert len(findings) >= 10


@pytest.mark.parametrize(("fault", "check", "fix"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_a_fault_is_found(fault: Mapping[str, Any], check: str, fix: str) -> None:
    """Only checks that concern the fault fail, and their findings name the command that corrects it."""
    problems = [finding for finding in diagnose(Observations(**{**HEALTHY, **fault})) if not finding.ok]
    assert check in [finding.check for finding in problems]
    assert all(finding.fix for finding in problems)
    assert fix in next(str(finding.fix) for finding in problems if finding.check == check)
    assert len(problems) <= 2


def test_differing_stores_are_not_reported_as_compared() -> None:
    """Differing stores are reported as a problem only, without a line that they were compared."""
    observations = Observations(**{**HEALTHY, "store_differences": ["--artifacts is an empty store"]})
    assert [finding.ok for finding in diagnose(observations) if "stores" in finding.check] == [False]


def test_a_fast_clock_ends_no_worker() -> None:
    """The ages of polls follow the server's clock, so a fast local clock does not make workers look dead."""
    observations = Observations(**{**HEALTHY, "clock_ahead_s": 300.0, "pollers": polling(seen_at=NOW - 310)})
    assert [finding.check for finding in diagnose(observations) if not finding.ok] == ["clock"]
