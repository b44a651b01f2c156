"""Draw the events of one run of chaos. The same seed always gives the same plan."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Channel = Literal["update", "signal", "web", "cli"]
Verdict = Literal["approve", "reject"]
Cause = Literal["model", "store"]

AGENTS = ("payer", "clerk")
WORKERS = 3
PAYMENTS = 2
"""Number of calls that wait for a person in each invocation."""
CHANNELS: tuple[Channel, ...] = get_args(Channel)
WEIGHTS = (10, 7, 4, 1)
"""The weight of each channel. Each answer from the command line starts a process, which takes seconds."""
MOST_ANSWERS = 4
"""Maximum number of answers to one call: duplicates and opposites."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """The number of invocations, answers and faults of one run."""

    kills: int = 100
    answers: int = 200
    outage_s: float = 20.0
    """Minimum duration of each outage. The steps during an outage are spread over it."""


SHORT = Size(kills=5, answers=24, outage_s=1.0)


@dataclass(frozen=True, kw_only=True)
class Script:
    """An invocation: its agent, its message, and the calls that wait for a person."""

    agent: str
    message: str
    call_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SendAnswer:
    """Answer a call as soon as it is pending."""

    invocation: int
    call_id: str
    channel: Channel
    verdict: Verdict
    tag: str
    """Identifies the answer in histories."""


@dataclass(frozen=True)
class EndWorker:
    """Kill a worker, or ask it to stop. Another one replaces it."""

    worker: int
    kill: bool


@dataclass(frozen=True)
class RestartServer:
    """Kill the server, or ask it to stop, and start it again with the same database."""

    kill: bool


@dataclass(frozen=True)
class Outage:
    """The model or the store fails from here on, or works again."""

    cause: Cause
    begins: bool


Step: TypeAlias = SendAnswer | EndWorker | RestartServer | Outage


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The invocations and events of one run, in this order."""

    seed: int
    size: Size
    scripts: tuple[Script, ...]
    steps: tuple[Step, ...]


def draw_plan(seed: int, size: Size) -> Plan:
    """Draw a plan. It depends only on the arguments."""
    draw = random.Random(f"chaos-{seed}")
    answers = _draw_answers(draw, size.answers)
    scripts = tuple(_draw_script(draw, number) for number in range(answers[-1].invocation + 1))
    answers = [_name_call(answer, scripts) for answer in answers]
    steps: list[Step] = [*answers]
    steps += [EndWorker(draw.randrange(WORKERS), kill=True) for _ in range(size.kills)]
    steps += [EndWorker(draw.randrange(WORKERS), kill=False) for _ in range(max(1, size.kills // 4))]
    steps += [RestartServer(kill=number % 4 < 3) for number in range(max(1, size.kills // 15))]
    draw.shuffle(steps)
    for cause in get_args(Cause):
        begin, end = _draw_outage(draw, steps)
        steps.insert(end, Outage(cause, begins=False))
        steps.insert(begin, Outage(cause, begins=True))
    return Plan(seed=seed, size=size, scripts=scripts, steps=tuple(steps))


def find_end(steps: Sequence[Step], begin: int) -> int:
    """Return the index of the step that ends the outage that begins at this index."""
    outage = steps[begin]
    assert isinstance(outage, Outage)
    return steps.index(Outage(outage.cause, begins=False), begin)


def is_fault(step: Step) -> bool:
    """Return whether a step causes a fault, rather than being an answer or the end of an outage."""
    return not isinstance(step, SendAnswer) and step not in [Outage(cause, begins=False) for cause in get_args(Cause)]


def _draw_outage(draw: random.Random, steps: Sequence[Step]) -> tuple[int, int]:
    """Draw the steps during an outage, among them at least one answer and one end of a worker.

    Hardly any call is pending during the first quarter.
    """
    begin = draw.randrange(len(steps) // 4, len(steps))
    end = min(begin + draw.randint(2, max(2, len(steps) // 4)), len(steps))
    while not {SendAnswer, EndWorker} <= {type(step) for step in steps[begin:end]}:
        begin, end = (begin, end + 1) if end < len(steps) else (begin - 1, end)
    return begin, end


def _draw_answers(draw: random.Random, count: int) -> list[SendAnswer]:
    """Draw answers to one payment after another, each with the number of the payment instead of the ID of its call."""
    answers: list[SendAnswer] = []
    payment = 0
    while len(answers) < count or payment % PAYMENTS:
        for _ in range(draw.randint(1, MOST_ANSWERS)):
            (channel,) = draw.choices(CHANNELS, WEIGHTS)
            answers.append(
                SendAnswer(
                    invocation=payment // PAYMENTS,
                    call_id=str(payment % PAYMENTS),
                    channel=channel,
                    verdict=draw.choice(("approve", "approve", "reject")),
                    tag=f"{channel}-{len(answers)}",
                )
            )
        payment += 1
    return answers


def _draw_script(draw: random.Random, number: int) -> Script:
    """Draw an invocation. Every tenth one has a tool that blocks the event loop of its worker."""
    batches: list[list[tuple[str, dict[str, object]]]] = [[("fetch", {})]]
    if number % 10 == 1:
        batches.append([("hang", {})])
    first = len(batches) + 1
    batches += [[("pay", {"amount": draw.randint(1, 1_000)})] for _ in range(PAYMENTS)]
    calls = tuple(f"fc-{first + index}" for index in range(PAYMENTS))
    return Script(agent=draw.choice(AGENTS), message=json.dumps(batches), call_ids=calls)


def _name_call(answer: SendAnswer, scripts: tuple[Script, ...]) -> SendAnswer:
    call_id = scripts[answer.invocation].call_ids[int(answer.call_id)]
    return SendAnswer(**{**vars(answer), "call_id": call_id})
