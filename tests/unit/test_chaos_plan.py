"""Chaos plans are reproducible and complete."""

from collections import defaultdict

import pytest

from verification.chaos.chaos_plan import (
    CHANNELS,
    SHORT,
    EndWorker,
    Outage,
    Plan,
    RestartServer,
    SendAnswer,
    Size,
    draw_plan,
    find_end,
)

SEEDS = range(20)


def answers(plan: Plan) -> list[SendAnswer]:
    """Return the answers of a plan."""
    return [step for step in plan.steps if isinstance(step, SendAnswer)]


def test_the_same_seed_gives_the_same_plan() -> None:
    """A run that found a fault can be repeated with its seed; another seed gives another plan."""
    assert draw_plan(7, SHORT) == draw_plan(7, SHORT)
    assert draw_plan(7, SHORT).steps != draw_plan(8, SHORT).steps


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_has_the_requested_kills_and_answers(seed: int) -> None:
    """Stops and restarts of the server are additional, and every answer has its own tag."""
    plan = draw_plan(seed, Size(kills=30, answers=100))
    ends = [step.kill for step in plan.steps if isinstance(step, EndWorker)]
    assert (ends.count(True), ends.count(False)) == (30, 7)
    assert [step.kill for step in plan.steps if isinstance(step, RestartServer)].count(True) == 2
    assert 100 <= len(answers(plan)) == len({answer.tag for answer in answers(plan)}) <= 107


@pytest.mark.parametrize("seed", SEEDS)
def test_every_pending_call_is_answered(seed: int) -> None:
    """Every pending call gets an answer, because its invocation would wait forever, which would look like a fault."""
    plan = draw_plan(seed, SHORT)
    waiting = {(number, call) for number, script in enumerate(plan.scripts) for call in script.call_ids}
    assert {(answer.invocation, answer.call_id) for answer in answers(plan)} == waiting


@pytest.mark.parametrize("seed", SEEDS)
def test_every_outage_ends(seed: int) -> None:
    """Each cause of an outage fails once and works again later."""
    outages = [step for step in draw_plan(seed, SHORT).steps if isinstance(step, Outage)]
    for cause in ("model", "store"):
        assert [step.begins for step in outages if step.cause == cause] == [True, False]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [SHORT, Size(kills=20, answers=60), Size(kills=0, answers=1)])
def test_workers_end_and_answers_are_sent_during_an_outage(seed: int, size: Size) -> None:
    """Kills and answers fall into outages, because simultaneous faults are harder to survive."""
    steps = draw_plan(seed, size).steps
    for begin in (index for index, step in enumerate(steps) if isinstance(step, Outage) and step.begins):
        during = {type(step) for step in steps[begin : find_end(steps, begin)]}
        assert {EndWorker, SendAnswer} <= during


def test_a_long_plan_uses_every_channel_and_has_duplicates_and_opposites() -> None:
    """Some calls receive the same answer twice, and some receive opposite answers."""
    plan = draw_plan(1, Size())
    verdicts = defaultdict[tuple[int, str], list[str]](list)
    for answer in answers(plan):
        verdicts[answer.invocation, answer.call_id].append(answer.verdict)
    assert {answer.channel for answer in answers(plan)} == set(CHANNELS)
    assert any(len(given) > len(set(given)) for given in verdicts.values())
    assert any(len(set(given)) == 2 for given in verdicts.values())
