"""The engine against the floor: time, CPU and replay of the same work."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from statistics import median

from temporalio.client import WorkflowHistory

from benchmarks.plan import Plan
from benchmarks.scenario import FIVE, ONE, Scenario
from benchmarks.sides import Side, Sides, duration_ms, sides
from benchmarks.table import Row, ratio

IN_A_SAMPLE = 8
"""The median of this many consecutive invocations is one sample; a single one is too short to detect disturbances."""
IN_FLIGHT = 50
REPLAYS = 20
FINDABLE = "it publishes pending calls in search attributes and removes them after the answer, like the engine"
LONG = Scenario(steps=25)


async def measure(plan: Plan) -> list[Row]:
    """Measure the ratios."""
    turns = 4 if plan.quick else 12
    async with sides(patience_s=plan.patience_s) as both:
        for side in (both.floor, both.engine):
            for scenario in (ONE, FIVE):
                for _ in range(IN_A_SAMPLE):
                    await side.run(scenario)
        plan.report_progress("one tool call")
        rows = [await _time(both, ONE, turns, goal=1.20, aim=1.11)]
        plan.report_progress("five parallel tool calls")
        rows.append(await _time(both, FIVE, turns, goal=1.15))
        plan.report_progress("approve to result")
        rows.extend(await _approve(both, turns))
        plan.report_progress("worker CPU")
        rows.extend(await _cpu(both, turns // 2, 100))
        plan.report_progress("replay")
        rows.append(await _replay(both, ONE, turns))
        rows.append(await _replay(both, LONG, turns))
        plan.note_disturbances(both.machine)
    return rows


async def _time(both: Sides, scenario: Scenario, turns: int, goal: float, aim: float | None = None) -> Row:
    async def sample(side: Side) -> float:
        return median([await duration_ms(side.run(scenario)) for _ in range(IN_A_SAMPLE)])

    floor, engine = await both.in_turns(turns, sample)
    name = "one tool call" if scenario.calls == 1 else f"{scenario.calls} parallel tool calls"
    return ratio(name, floor, engine, goal=goal, aim=aim, note="start to result, one at a time")


async def _approve(both: Sides, turns: int) -> list[Row]:
    async def once(side: Side) -> float:
        waiting = await side.start_waiting()
        # The server finishes its work on the new invocation first; it is not part of the answer.
        await asyncio.sleep(0.05)
        return await duration_ms(side.approve(waiting))

    async def sample(side: Side) -> float:
        return median([await once(side) for _ in range(IN_A_SAMPLE)])

    floor, findable, engine = await both.in_turns(turns, sample, findable=True)
    return [
        ratio("approve to result", floor, engine, goal=1.10, note="signal, tool, model, result"),
        ratio("… against a hand-written one with search attributes", findable, engine, note=FINDABLE),
    ]


async def _cpu(both: Sides, turns: int, invocations: int) -> list[Row]:
    rates: dict[Side, list[float]] = {both.floor: [], both.engine: []}

    async def sample(side: Side) -> float:
        waiting = iter(range(invocations))

        async def work() -> None:
            for _ in waiting:
                await side.run(ONE)

        before, started = both.workers[side].cpu_s(), time.perf_counter()
        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        rates[side].append(invocations / (time.perf_counter() - started))
        return (both.workers[side].cpu_s() - before) / invocations * 1e3

    floor, engine = await both.in_turns(turns, sample)
    note = f"one tool call, {IN_FLIGHT} in flight"
    memory = {side: both.workers[side].memory_mb() for side in (both.floor, both.engine)}
    rate = {side: [median(rates[side])] for side in rates}
    return [
        ratio("worker CPU per invocation", floor, engine, goal=1.6, note=note),
        ratio("invocations per second", rate[both.floor], rate[both.engine], unit="/s", note=note),
        ratio("worker memory after that", [memory[both.floor]], [memory[both.engine]], unit="MB"),
    ]


async def _replay(both: Sides, scenario: Scenario, turns: int) -> Row:
    histories = {side: await both.history(await side.run(scenario)) for side in (both.floor, both.engine)}
    counts = {side: count_activations(history) for side, history in histories.items()}
    assert counts[both.floor] == counts[both.engine], counts

    async def sample(side: Side) -> float:
        async def copies() -> AsyncIterator[WorkflowHistory]:
            for number in range(REPLAYS):
                yield dataclasses.replace(histories[side], workflow_id=f"{histories[side].workflow_id}-{number}")

        started = time.perf_counter()
        results = await side.replayer().replay_workflows(copies(), raise_on_replay_failure=True)
        assert not results.replay_failures
        return (time.perf_counter() - started) / REPLAYS * 1e3

    for side in (both.floor, both.engine):
        await sample(side)
    floor, engine = await both.in_turns(turns, sample)
    calls = "1 tool call" if scenario.steps == 1 else f"{scenario.steps} tool calls"
    return ratio(f"replay of {calls}", floor, engine, goal=2.0, note=f"{counts[both.engine]} activations each")


def count_activations(history: WorkflowHistory) -> int:
    """Count the workflow tasks of a history."""
    return sum(event.HasField("workflow_task_completed_event_attributes") for event in history.events)
