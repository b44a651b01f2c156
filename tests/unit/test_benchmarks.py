"""The benchmarks compare with an independent baseline, and their verdicts follow from their samples."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import floor
from benchmarks.__main__ import find_peers
from benchmarks.actions import parse_actions
from benchmarks.capacity import ACTIONS_LIMIT, Costs, Load, estimate
from benchmarks.side import ONE, Scenario
from benchmarks.table import Row, ratio
from tests.paths import ROOT
from waystation.core.contract import Settings
from waystation.worker import WORKER_OPTIONS


def test_the_floor_loads_nothing_of_the_engine() -> None:
    """The floor does not load the engine, whose memory and start would bring the ratio close to 1."""
    code = "import sys, benchmarks.side, benchmarks.floor; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    engine = {"waystation", "workflows", "activities", "tools", "structlog", "google.genai", "httpx"}
    assert engine & set(loaded.split()) == set()


def test_the_floor_is_tuned_like_the_engine() -> None:
    """The floor has the engine's worker options, so the ratio does not measure a difference of options."""
    options = {**WORKER_OPTIONS, "max_concurrent_activities": Settings().concurrent_activities}
    assert options == floor.WORKER_OPTIONS


def test_a_scenario_is_parsed_from_a_padded_message() -> None:
    """The padding makes messages of a session as long as those of people."""
    assert Scenario.parse(f"{ONE.text()} ".ljust(200, "x")) == ONE


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        ([1.0, 1.01, 1.02, 1.03], "met, aim too"),
        ([1.06, 1.07, 1.08, 1.09], "met"),
        ([1.0, 1.1, 1.2, 1.3], "undecided"),
        ([1.2, 1.21, 1.22, 1.23], "not met"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side_of_the_goal(samples: list[float], verdict: str) -> None:
    """The goal is met only by the whole interval, and not by the median alone."""
    assert Row(name="a ratio", samples=samples, goal=1.12, aim=1.05).verdict == verdict


def test_one_sample_has_no_verdict() -> None:
    """One sample has no interval."""
    assert Row(name="a ratio", samples=[1.0], goal=1.12).verdict == "one sample"


@pytest.mark.parametrize(("sample", "verdict"), [(18, "met"), (19, "not met")])
def test_a_count_needs_only_one_sample(sample: float, verdict: str) -> None:
    """A count is the same in each run."""
    assert Row(name="events", samples=[sample], exact=True, goal=18).verdict == verdict


def test_google_adk_is_found_in_its_environment(tmp_path: Path) -> None:
    """The environment's interpreter is found without being named."""
    assert find_peers(tmp_path) == {}
    python = tmp_path / ".venv-adk" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert find_peers(tmp_path) == {"google_adk": str(python)}


@pytest.mark.parametrize(
    ("samples", "verdict"), [([0.95, 0.96], "met"), ([0.8, 0.96], "undecided"), ([0.8, 0.8], "not met")]
)
def test_a_rate_must_be_at_least_its_goal(samples: list[float], verdict: str) -> None:
    """A rate is met if it is at least its goal, because more invocations per second are better."""
    assert Row(name="a rate", samples=samples, goal=0.9, aim=1.0, at_least=True).verdict == verdict


def test_a_ratio_is_the_median_of_the_pairs() -> None:
    """The median of the pairs ignores a disturbance that slows both sides of a pair."""
    row = ratio("a ratio", [10.0, 100.0, 10.0], [11.0, 110.0, 12.0])
    assert row.value == pytest.approx(1.1)
    assert (row.floor, row.engine) == (10.0, 12.0)


COSTS = Costs(
    worker_cpu_ms=12,
    worker_mb=112,
    waiting_kb=100,
    events=23,
    bytes=5_000,
    workflow_tasks=4,
    activities=3,
    actions=5,
    actions_per_streamed_second=2,
)


def test_capacity_follows_from_the_cost_of_the_load() -> None:
    """100 invocations per second of 12 ms each need 1.2 cores: two workers at 60% of a core, and a spare one."""
    capacity = estimate(COSTS, Load(per_second=100, retention_days=2))
    assert (capacity.workers, capacity.worker_mb) == (3, 112)
    assert (capacity.events_per_second, capacity.workflow_tasks_per_second) == (2_300, 400)
    assert capacity.history_gb_per_day == pytest.approx(43.2)
    assert capacity.history_gb_kept == pytest.approx(86.4)


def test_actions_are_those_of_calls_and_of_streamed_text() -> None:
    """Ten invocations per second with two tool calls each and 20 s of text reach the limit of a cloud namespace."""
    capacity = estimate(COSTS, Load(per_second=10, calls=2, streamed_s=20))
    assert capacity.actions_per_second == ACTIONS_LIMIT
    assert capacity.million_actions_per_day == pytest.approx(43.2)


def test_actions_are_read_from_the_metrics_of_a_server() -> None:
    """Actions of the server's own namespace are not billed."""
    series = [
        ("grpc_StartWorkflowExecution", "temporal_system", "2"),
        ("grpc_StartWorkflowExecution", "default", "1e+06"),
        ("command_ScheduleActivityTask", "default", "3"),
    ]
    lines = [f'action{{action_type="{kind}",namespace="{name}",operation="x"}} {count}' for kind, name, count in series]
    assert parse_actions("\n".join(["# TYPE action counter", *lines, 'actions{namespace="default"} 7'])) == {
        "StartWorkflowExecution": 1_000_000,
        "ScheduleActivityTask": 3,
    }


@pytest.mark.parametrize(("waiting", "worker_mb"), [(300, 122), (50_000, 132)])
def test_waiting_calls_need_memory_only_in_the_cache(waiting: int, worker_mb: float) -> None:
    """Three workers cache 100 of 300 calls each, and never more than 200."""
    assert estimate(COSTS, Load(per_second=100, waiting=waiting)).worker_mb == worker_mb
