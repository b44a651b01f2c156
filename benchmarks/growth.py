"""The history of an invocation: its size per step, early and late."""

import time
from collections.abc import Iterator, Sequence
from statistics import median

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from benchmarks.plan import Plan
from benchmarks.scenario import ONE, Scenario
from benchmarks.sides import sides
from benchmarks.table import Row, format_value
from waystation.client.agent_client import AgentClient
from waystation.core import MODEL, encode
from waystation.history import build_log

STEPS = Scenario(steps=203, size=1_000)
EARLY, LATE = 10, 200
LARGE = Scenario(steps=5_000, size=5_000)
SAMPLED_STEPS = (10, 200, 2_000, 5_000)


async def measure(plan: Plan) -> list[Row]:
    """Measure events and bytes."""
    async with sides(patience_s=0) as both:
        plan.report_progress("events of one tool call")
        floor, engine = [len((await both.history(await side.run(ONE))).events) for side in (both.floor, both.engine)]
        rows = [
            Row(
                name="events, one tool call",
                value=engine,
                unit="events",
                goal=24,
                floor=str(floor),
                engine=str(engine),
                note="three activities",
            )
        ]
        plan.report_progress(f"{STEPS.steps} steps of 1 kB")
        rows.extend(_per_step(await both.histories(await both.engine.run(STEPS))))
        large = Scenario(steps=300, size=LARGE.size) if plan.quick else LARGE
        plan.report_progress(f"{large.steps} tool calls of 5 kB")
        started = time.perf_counter()
        id = await both.engine.run(large)
        finished_s = time.perf_counter() - started
        histories = await both.histories(id)
        started = time.perf_counter()
        for history in histories:
            await both.engine.replayer().replay_workflow(history, raise_on_replay_failure=True)
        replayed_s = time.perf_counter() - started
        started = time.perf_counter()
        log = await AgentClient(both.client).invocation(id).log()
        projected_s = time.perf_counter() - started
        name = f"{large.steps:,} tool calls of 5 kB"
        events = [event for history in histories for event in history.events]
        paces = _paces(events)
        kilobytes = sum(event.ByteSize() for event in events) / 1e3
        all_steps = list(steps(events))
        for at in (number for number in SAMPLED_STEPS if number <= large.steps):
            near = all_steps[max(at - 3, 0) : at + 2]
            size = median(sum(event.ByteSize() for event in step) for step in near)
            rows.append(
                Row(
                    name=f"{name}: bytes of step {at:,}",
                    value=size,
                    unit="B",
                    goal=10_000,
                    engine=format_value(size, "B"),
                    note=f"{median(len(step) for step in near):g} events",
                )
            )
        rows += [
            Row(
                name=f"{name}: finish",
                value=finished_s,
                unit="s",
                fact=log.state.result().status == "completed" and len(log.state.calls) == large.steps,
                engine=format_value(finished_s / large.steps * 1e3, "ms each"),
                note=f"first tenth {format_value(paces[0], 'ms')} per step, last tenth {format_value(paces[1], 'ms')}",
            ),
            Row(name=f"{name}: runs", value=len(histories), unit="runs", note="each continues the previous one"),
            Row(
                name=f"{name}: events",
                value=len(events),
                unit="events",
                note=f"at most {max(len(history.events) for history in histories):,} in a run; the limit is 51,200",
            ),
            Row(name=f"{name}: bytes", value=kilobytes, unit="kB", note="the server's limit for a run is 50 MB"),
            Row(name=f"{name}: replay", value=replayed_s, unit="s", fact=True, note="it replays"),
            Row(name=f"{name}: read into a log", value=projected_s, unit="s"),
        ]
    return rows


def _per_step(histories: Sequence[WorkflowHistory]) -> Iterator[Row]:
    """Yield bytes per step: medians of five steps, because numbers in events grow longer."""
    recorded = [event for history in histories for event in history.events]
    bytes_of_steps = [sum(event.ByteSize() for event in step) for step in steps(recorded)]
    events = build_log(histories).state.events
    sizes_of_events = [
        len(encode(event.content)) for event in events[1:]
    ]  # calls and responses alternate after the user's message
    content = [call + response for call, response in zip(sizes_of_events[::2], sizes_of_events[1::2], strict=False)]
    early, late, own_content = (
        median(sizes[at - 3 : at + 2])
        for sizes, at in ((bytes_of_steps, EARLY), (bytes_of_steps, LATE), (content, LATE))
    )
    yield Row(
        name=f"bytes per step, step {LATE} to step {EARLY}",
        value=late / early,
        goal=1.1,
        engine=f"{format_value(late, 'B')} to {format_value(early, 'B')}",
        note="model and tool, 1 kB results",
    )
    yield Row(
        name=f"bytes of step {LATE}",
        value=late,
        unit="B",
        goal=round(2.2 * own_content + 2_000),
        engine=format_value(late, "B"),
        note=f"goal: 2.2 times its content of {format_value(own_content, 'B')}, and 2 kB",
    )


def steps(events: Sequence[HistoryEvent]) -> Iterator[list[HistoryEvent]]:
    """Yield the events of each step: from one scheduled model call to the next."""
    step: list[HistoryEvent] = []
    for event in events:
        if event.activity_task_scheduled_event_attributes.activity_type.name == MODEL.name:
            if step:
                yield step
            step = []
            step.append(event)
        elif step:
            step.append(event)


def _paces(events: Sequence[HistoryEvent]) -> tuple[float, float]:
    """Return the milliseconds per step in the first and the last tenth, by the server's clock."""
    times = [step[0].event_time.ToNanoseconds() / 1e6 for step in steps(events)]
    tenth = len(times) // 10
    return (times[tenth] - times[0]) / tenth, (times[-1] - times[-1 - tenth]) / tenth
