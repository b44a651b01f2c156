"""The engine against the floor, and its peers beside them: time, CPU, histories and replay of the same work."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.comparison import Comparison, Plan, Sample, SideProcess, at_once, count_events, in_turns
from benchmarks.engine import memory_mb
from benchmarks.side import APPROVE, FIVE, FIVE_QUICK, ONE, PUBLISHED, QUICK, Scenario
from benchmarks.table import Row, ratio, ratios

IN_A_SAMPLE = 8
"""A single invocation is too short to measure."""
IN_FLIGHT = 50
LONG = Scenario(steps=25)

WORKER_CPU = "worker CPU per invocation"
WORKER_MEMORY = "worker memory after that"
EVENTS = "events of one tool call"
BYTES = "bytes of one tool call"
WORKFLOW_TASKS = "workflow tasks of one tool call"
ACTIVITIES = "activities of one tool call"


async def one(both: Comparison, plan: Plan) -> list[Row]:
    """Measure one tool call, one invocation at a time."""
    samples = await both.in_turns(plan.pairs, lambda side: side.run(ONE, IN_A_SAMPLE))
    return list(_rows("one tool call", both, samples, goal=1.12, aim=1.05))


async def five(both: Comparison, plan: Plan) -> list[Row]:
    """Measure five parallel tool calls, one invocation at a time."""
    samples = await both.in_turns(plan.pairs, lambda side: side.run(FIVE, IN_A_SAMPLE))
    return list(_rows("five parallel tool calls", both, samples, goal=1.15, aim=1.05))


async def quick(both: Comparison, plan: Plan) -> list[Row]:
    """Measure a quick tool of the engine against an ordinary activity of the floor."""

    async def measure(side: SideProcess) -> Sample:
        return await side.run(QUICK if side is both.engine else ONE, IN_A_SAMPLE)

    samples = await in_turns([both.floor, both.engine], plan.pairs, measure)
    note = "floor: an ordinary activity"
    return list(_rows("one quick tool call", both, samples, goal=0.90, aim=0.80, note=note))


async def approval(both: Comparison, plan: Plan) -> list[Row]:
    """Measure the time from an answer to the result."""
    samples = await both.in_turns(plan.pairs, lambda side: side.approve(APPROVE, IN_A_SAMPLE), warm_up=1)
    rows = list(_rows("answer to result, by update", both, samples, goal=1.15, aim=1.05, note="floor: by signal"))

    async def published(side: SideProcess) -> Sample:
        return await side.approve(PUBLISHED if side is both.floor else APPROVE, IN_A_SAMPLE)

    samples = await in_turns([both.floor, both.engine], plan.pairs, published, warm_up=1)
    note = "floor: by update, and its pending calls are search attributes as the engine's are"
    return [*rows, *_rows("… against a published call", both, samples, note=note)]


async def rate(both: Comparison, plan: Plan) -> list[Row]:
    """Measure many invocations at the same time, and the workers' memory afterwards."""
    memory: dict[SideProcess, list[float]] = {side: [] for side in (both.floor, both.engine, *both.peers)}

    async def measure(side: SideProcess) -> Sample:
        sample = await side.run(ONE, 100, in_flight=IN_FLIGHT)
        memory[side].append(memory_mb(side.worker_pids))
        return sample

    samples = await both.in_turns(plan.pairs, measure, warm_up=1)
    note = f"one tool call, {IN_FLIGHT} in flight"
    floor_mb, engine_mb = (memory[side][-plan.pairs :] for side in (both.floor, both.engine))
    return [
        *_rows("invocations per second", both, samples, of="rate", goal=0.90, aim=1.0, at_least=True, note=note),
        *_rows(WORKER_CPU, both, samples, of="worker_cpu_ms", goal=1.30, aim=1.25, note=note),
        ratio(WORKER_MEMORY, floor_mb, engine_mb, unit_of_sides="MB", goal=1.6, aim=1.5),
    ]


async def histories(both: Comparison, plan: Plan) -> list[Row]:
    """Count the events and bytes of histories."""
    counts: dict[tuple[SideProcess, Scenario], dict[str, int]] = {}
    for side in (both.floor, both.engine):
        for scenario in (ONE, FIVE, QUICK, FIVE_QUICK, APPROVE):
            sample = await (side.approve(scenario, 1) if scenario is APPROVE else side.run(scenario, 1))
            counts[side, scenario] = count_events(await both.history(sample.ids[0]))

    def count(name: str, scenario: Scenario, what: str, **fields: Any) -> Row:
        floor, engine = counts[both.floor, scenario][what], counts[both.engine, scenario][what]
        if what == "bytes":
            return ratio(name, [floor], [engine], unit_of_sides="B", exact=True, **fields)
        return Row(name=name, samples=[engine], exact=True, unit=what, floor=floor, engine=engine, **fields)

    return [
        count(EVENTS, ONE, "events"),
        count(BYTES, ONE, "bytes", goal=1.15, aim=1.0),
        count(WORKFLOW_TASKS, ONE, "workflow tasks"),
        count(ACTIVITIES, ONE, "activities"),
        count("events of five parallel tool calls", FIVE, "events"),
        count("bytes of five parallel tool calls", FIVE, "bytes"),
        count("events of one quick tool call", QUICK, "events", goal=18),
        count("events of five parallel quick tool calls", FIVE_QUICK, "events", goal=22),
        count("events of an approval", APPROVE, "events", goal=32),
        count("bytes of an approval", APPROVE, "bytes", goal=1.35, aim=1.2),
    ]


async def replay(both: Comparison, plan: Plan) -> list[Row]:
    """Measure the CPU time of a replay."""
    rows: list[Row] = []
    no_goals: dict[str, Any] = {}
    for scenario, times, goals in ((ONE, 100, {"goal": 1.25, "aim": 1.2}), (LONG, 20, no_goals)):
        ids = {side: (await side.run(scenario, 1)).ids[0] for side in (both.floor, both.engine)}
        tasks = {count_events(await both.history(id))["workflow tasks"] for id in ids.values()}
        assert len(tasks) == 1, f"The sides replay different numbers of workflow tasks: {tasks}."

        async def measure(side: SideProcess, ids: Mapping[SideProcess, str] = ids, times: int = times) -> Sample:
            return await side.replay(ids[side], times)

        samples = await at_once([*ids], plan.pairs, measure)
        note = f"CPU time; {tasks.pop()} workflow tasks each, at the same time"
        calls = "one tool call" if scenario.steps == 1 else f"{scenario.steps} tool calls"
        rows += _rows(f"replay of {calls}", both, samples, of="cpu_ms", note=note, **goals)
    return rows


async def workers(both: Comparison, plan: Plan) -> list[Row]:
    """Compare two workers on one task queue with one worker."""
    rows = []
    for module in ("benchmarks.engine", "benchmarks.floor"):
        pair = [SideProcess(module, both.server.address, workers=count) for count in (1, 2)]
        try:
            for side in pair:
                await side.ready()
            samples = await at_once(pair, plan.pairs, lambda side: side.run(ONE, 100, in_flight=IN_FLIGHT // 2))
        finally:
            for side in pair:
                side.end()
        single, double = ([sample.worker_cpu_ms for sample in samples[side]] for side in pair)
        of_engine = module == "benchmarks.engine"
        rows.append(
            Row(
                name="two workers on a queue: CPU per invocation, to one worker" if of_engine else "… of the floor",
                samples=ratios(single, double),
                goal=1.05 if of_engine else None,
                note=f"{median(double):.1f} ms to {median(single):.1f} ms, {IN_FLIGHT} in flight, at the same time",
            )
        )
    return rows


def _rows(
    name: str,
    both: Comparison,
    samples: dict[SideProcess, list[Sample]],
    *,
    of: str = "time_ms",
    note: str = "",
    **goals: Any,
) -> Iterator[Row]:
    """Yield the row of the engine and one for each peer, all compared with the floor."""

    def values(side: SideProcess, of: str) -> Sequence[float]:
        return [getattr(sample, of) for sample in samples[side]]

    for side in samples:
        if side is not both.floor:
            yield ratio(
                name if side is both.engine else f"… {side.name}",
                values(both.floor, of),
                values(side, of),
                unit_of_sides="/s" if of == "rate" else "ms",
                cpu=ratios(values(both.floor, "cpu_ms"), values(side, "cpu_ms")) if of == "time_ms" else (),
                note=note if side is both.engine else "",
                **(goals if side is both.engine else {}),
            )
