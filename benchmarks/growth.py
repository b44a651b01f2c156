"""What an invocation leaves in history, and whether that stays the same for each step however many came before."""

import time
from collections.abc import Iterator, Sequence
from statistics import median

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from benchmarks.plan import Plan
from benchmarks.scenario import ONE, Scenario
from benchmarks.sides import sides
from benchmarks.table import Row, shown
from waystation.client.agent_client import AgentClient
from waystation.core import MODEL, encode
from waystation.history import log_of

STEPS = Scenario(steps=203, size=1_000)
EARLY, LATE = 10, 200
LARGE = Scenario(steps=5_000, size=5_000)
LOOKED_AT = (10, 200, 2_000, 5_000)


async def measure(plan: Plan) -> list[Row]:
    """Return events and bytes."""
    async with sides(patience_s=0) as both:
        plan.tell("events of one tool call")
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
        plan.tell(f"{STEPS.steps} steps of 1 kB")
        rows.extend(_per_step(await both.histories(await both.engine.run(STEPS))))
        large = Scenario(steps=300, size=LARGE.size) if plan.quick else LARGE
        plan.tell(f"{large.steps} tool calls of 5 kB")
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
        taken = list(steps(events))
        for at in (number for number in LOOKED_AT if number <= large.steps):
            near = taken[max(at - 3, 0) : at + 2]
            size = median(sum(event.ByteSize() for event in step) for step in near)
            rows.append(
                Row(
                    name=f"{name}: bytes of step {at:,}",
                    value=size,
                    unit="B",
                    goal=10_000,
                    engine=shown(size, "B"),
                    note=f"{median(len(step) for step in near):g} events",
                )
            )
        rows += [
            Row(
                name=f"{name}: finish",
                value=finished_s,
                unit="s",
                fact=log.state.result().status == "completed" and len(log.state.calls) == large.steps,
                engine=shown(finished_s / large.steps * 1e3, "ms each"),
                note=f"first tenth of the steps {shown(paces[0], 'ms')} each, last tenth {shown(paces[1], 'ms')}",
            ),
            Row(name=f"{name}: runs", value=len(histories), unit="runs", note="each continues the one before"),
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
    """Yield bytes per step. Medians of five steps: numbers in events take more bytes as they grow longer."""
    recorded = [event for history in histories for event in history.events]
    written = [sum(event.ByteSize() for event in step) for step in steps(recorded)]
    events = log_of(histories).state.events
    said = [len(encode(event.content)) for event in events[1:]]  # call and response by turns, after the user's message
    content = [call + response for call, response in zip(said[::2], said[1::2], strict=False)]
    early, late, born = (
        median(sizes[at - 3 : at + 2]) for sizes, at in ((written, EARLY), (written, LATE), (content, LATE))
    )
    yield Row(
        name=f"bytes per step, step {LATE} to step {EARLY}",
        value=late / early,
        goal=1.1,
        engine=f"{shown(late, 'B')} to {shown(early, 'B')}",
        note="model and tool, 1 kB results",
    )
    yield Row(
        name=f"bytes of step {LATE}",
        value=late,
        unit="B",
        goal=round(2.2 * born + 2_000),
        engine=shown(late, "B"),
        note=f"goal: 2.2 times its content of {shown(born, 'B')}, and 2 kB",
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
    """Return the milliseconds of a step in the first and in the last tenth, by the server's clock."""
    times = [step[0].event_time.ToNanoseconds() / 1e6 for step in steps(events)]
    tenth = len(times) // 10
    return (times[tenth] - times[0]) / tenth, (times[-1] - times[-1 - tenth]) / tenth
