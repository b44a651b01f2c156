"""The figures of chaos count every kind of damage."""

import asyncio
from pathlib import Path

import pytest

from tests.server.processes.ledger import Ledger
from tests.unit.core.story import answered, log_of, model_called, model_calls, tool_lost, tool_returned, user_message
from verification.chaos.answering import Outcome
from verification.chaos.chaos_plan import SendAnswer
from verification.chaos.report import Figures, check_answers, check_effects, counted_if_hung, format_table
from waystation.core.log import AnswerIgnored, Body, Log

KEY = "inv/fc-1"


def approved_call(*more: AnswerIgnored) -> Log:
    """Return the log of a payment that the answer `update-0` approved."""
    approval = answered("fc-1", by="update-0", comment="update-0")
    return log_of(
        user_message("pay"), model_calls("pay", gated=True), approval, list(more), tool_returned("fc-1", {"paid": 5})
    )


def sent(tag: str) -> SendAnswer:
    """Return an answer with this tag."""
    return SendAnswer(invocation=0, call_id="fc-1", channel="update", verdict="approve", tag=tag)


@pytest.mark.parametrize(
    ("tag", "outcome", "counted_as"),
    [
        ("update-0", "accepted", "answers_accepted"),
        ("update-0", "refused", "answers_accepted"),  # sent again, because the first confirmation was lost
        ("update-1", "refused", "answers_refused"),
        ("update-1", "accepted", "answers_lost"),
        ("update-1", "unknown", "answers_lost"),
        ("signal-1", "sent", "answers_lost"),
        ("signal-2", "sent", "answers_refused"),
    ],
)
def test_an_answer_is_accepted_refused_or_lost(tag: str, outcome: Outcome, counted_as: str) -> None:
    """The history decides. An acknowledged answer that it does not contain is lost."""
    figures = Figures()
    check_answers(
        approved_call(AnswerIgnored("AlreadyAnswered", "", "fc-1", "signal-2")), [(sent(tag), outcome)], figures
    )
    assert (figures.answers_sent, getattr(figures, counted_as)) == (1, 1)
    assert figures.answers_accepted + figures.answers_refused + figures.answers_lost == 1
    assert bool(figures.problems) == (counted_as == "answers_lost")


@pytest.mark.parametrize(
    ("lines", "problems"),
    [
        (["paying", "paid"], {}),
        (["paying", "paying", "paid"], {"effects_doubled": 1}),
        (["paying"], {"effects_lost": 1}),
        ([], {"effects_lost": 1}),
    ],
)
def test_effects_are_counted_in_the_ledger(tmp_path: Path, lines: list[str], problems: dict[str, int]) -> None:
    """A payment was made once, twice, or not at all although the model was informed of it."""
    figures, ledger = Figures(), Ledger(tmp_path)
    for line in lines:
        ledger.note(line, key=KEY)
    check_effects(ledger, {KEY: True}, [approved_call()], figures)
    assert figures.problems == problems


@pytest.mark.parametrize(
    ("end", "problems"),
    [
        (tool_lost("fc-1"), {}),
        (tool_lost("fc-1", "schedule_to_start"), {"effects_lost": 1}),
        ([], {"effects_lost": 1}),
    ],
)
def test_an_approved_payment_that_never_began_is_lost_unless_reported_as_unknown(
    tmp_path: Path, end: Body | list[Body], problems: dict[str, int]
) -> None:
    """A worker may be killed between receiving the call and paying, but the model must then be informed of it."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True), answered("fc-1"), end, model_called())
    figures = Figures()
    check_effects(Ledger(tmp_path), {KEY: True}, [log], figures)
    assert figures.problems == problems


async def test_a_hung_step_is_a_problem() -> None:
    """A hung step is left after the limit, so that the run still ends with figures."""
    figures = Figures()
    async with counted_if_hung(figures, "a step", limit_s=0.01):
        await asyncio.Event().wait()
    assert figures.problems == {"steps_hung": 1}
    assert figures.details == ["Not finished within 0.01 s: a step"]


async def test_a_timeout_within_a_step_is_not_a_hung_step() -> None:
    """A timeout that the code of a step raises is not a hung step."""
    figures = Figures()
    with pytest.raises(TimeoutError):
        async with counted_if_hung(figures, "a step"):
            raise TimeoutError
    assert figures.problems == {}


@pytest.mark.parametrize("approved", [{}, {KEY: False}])
def test_an_effect_without_an_approval_is_a_problem(tmp_path: Path, approved: dict[str, bool]) -> None:
    """An effect of a rejected or unanswered call is a problem."""
    figures, ledger = Figures(), Ledger(tmp_path)
    ledger.note("paying", key=KEY)
    check_effects(ledger, approved, [], figures)
    assert figures.problems == {"effects_not_approved": 1}


def test_the_table_has_a_column_for_each_seed_and_their_sum() -> None:
    """A row shows one figure of all runs."""
    table = format_table({1: Figures(workers_killed=3), 2: Figures(workers_killed=4)}).splitlines()
    assert table[0] == "|  | seed 1 | seed 2 | sum |"
    assert "| workers killed | 3 | 4 | 7 |" in table
