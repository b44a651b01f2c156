"""The command `waystation pending` lists calls that wait for a person, as text and as JSON."""

import io
import time
from typing import Any

import pytest
from rich.console import Console

from waystation.cli.command_context import CommandProblem, ServerTarget, write_waits
from waystation.cli.output import Output
from waystation.cli.pending_calls import parse_duration, write_list
from waystation.core.approval import ApprovalPolicy, PendingCall
from waystation.presentation import words

POLICY = ApprovalPolicy(approvers=("alice@example.com", "role:finance"), quorum=2, not_requester=True, comment=True)


def call(**fields: Any) -> PendingCall:
    """Return a call that has waited for two hours and expires in a day."""
    now = time.time()
    given = {"function_call_id": "fc-1", "invocation_id": "payer-1", "agent": "payer", "tool": "pay"}
    times = {"requested_at": now - 7_200, "deadline": now + 86_400.5, "user_id": "dana"}
    what = {"args": {"amount": 9}, "kind": "confirmation", "digest": "d"}
    return PendingCall.model_validate({**given, **times, **what, **fields})


def table_lines(calls: list[PendingCall], width: int) -> list[str]:
    """Return the lines of a list in a terminal with this width."""
    stream = io.StringIO()
    out = Output(page=width)
    out.console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False, color_system=None)
    write_list(out, ServerTarget(), calls)
    return stream.getvalue().splitlines()


def test_titles_are_in_the_list() -> None:
    """The title precedes the call itself, in wide and in narrow terminals."""
    title = "Pay 9 € to dana"
    assert any(f"{title}: pay(amount=9)" in line for line in table_lines([call(title=title)], 140))
    assert f"{title}: pay(amount=9)" in table_lines([call(title=title)], 45)


def offered(**fields: Any) -> list[str]:
    """Return the commands offered for a call: Waystation's and Temporal's."""
    stream = io.StringIO()
    out = Output(page=400)
    out.console = Console(file=stream, width=400, highlight=False, markup=False, emoji=False, color_system=None)
    write_waits(out, ServerTarget(temporal="temporal"), [call(**fields)])
    return [line.split(maxsplit=1)[1] for line in stream.getvalue().splitlines() if "payer-1 " in line]


def call_text(**fields: Any) -> str:
    """Return the full text about a call."""
    stream = io.StringIO()
    out = Output(page=400)
    out.console = Console(file=stream, width=10_000, highlight=False, markup=False, emoji=False, color_system=None)
    write_waits(out, ServerTarget(temporal="temporal"), [call(**fields)])
    return stream.getvalue()


def test_a_call_of_an_ended_invocation_is_not_simply_offered_to_start_again() -> None:
    """The command is refused then, so the hint says when."""
    assert "start-again (unless its invocation has ended)" in call_text(kind="unknown")


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_is_a_table_that_fits_and_ids_can_be_copied(width: int) -> None:
    """Each row has the call, its waiting time, the time left and the approvers."""
    long = {"reason": "asked to be forgotten, by e-mail, on Tuesday"}
    lines = table_lines([call(), call(invocation_id="clerk-2", args=long, policy=POLICY, approved_by=["bob"])], width)
    assert max(map(len, lines)) <= width
    first, second = (next(line for line in lines if id in line) for id in ("payer-1/fc-1", "clerk-2/fc-1"))
    assert all(text in first for text in ("pay(amount=9)", "2 h", "24 h", "anyone"))
    assert "alice" in second
    assert ("payer, for dana" in first) is (width == 120)
    assert lines[-1].endswith("waystation approve payer-1/fc-1")


def test_a_long_id_has_its_own_line() -> None:
    """An ID is never cut or broken over lines."""
    lines = table_lines([call(invocation_id="session/waystation/dana%40example.com/a-long-conversation/3")], 80)
    assert "  session/waystation/dana%40example.com/a-long-conversation/3/fc-1" in lines


def test_texts_of_agents_cannot_control_the_terminal() -> None:
    """Control characters and direction marks are shown as escapes."""
    lines = table_lines([call(args={"to": "\x1b[2J\u202egnp"}, claimed_by="\x1b[31mmallory")], 120)
    assert not any(char in "".join(lines) for char in ("\x1b", "\u202e"))


def test_the_terms_of_a_policy_are_shown() -> None:
    """The output lists every term that could refuse an answer."""
    terms = dict(words.list_terms(call(policy=POLICY, approved_by=["bob"], claimed_by="alice@example.com")))
    assert terms == {
        "claimed": "by alice@example.com",
        "approver": "alice@example.com, role:finance",
        "excluded": "dana, the requester (not verified, so nobody can approve)",
        "quorum": "2 approvals; so far bob",
        "requires": "a verified identity (--token-file), a comment (--comment)",
    }


def test_a_verified_requester_replaces_the_claimed_one() -> None:
    """A claim proves nothing, so only the verified name is shown."""
    terms = dict(words.list_terms(call(policy=POLICY, verified_requesters=("eve@example.com",))))
    assert terms["excluded"] == "eve@example.com, the requester"


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("1d", 86_400)])
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    """A duration is a whole number of seconds, minutes, hours or days."""
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2 weeks", "-1h", "1.5h", "9999999d"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    """The message shows valid durations."""
    with pytest.raises(CommandProblem, match="is not a valid duration"):
        parse_duration(text)


def test_only_answers_that_would_count_are_offered() -> None:
    """Only accepted actions are offered, and Temporal's command only if it satisfies the policy."""
    signal = 'temporal workflow signal --workflow-id payer-1 --name answer --input \'{"function_call_id": "fc-1", '
    approve, reject = "waystation approve payer-1 fc-1", "waystation reject payer-1 fc-1"
    assert offered() == [approve, reject, f'{signal}"action": "approve"}}\'']
    strict = ApprovalPolicy(digest=True, comment=True)
    assert offered(policy=strict)[-1] == f'{signal}"action": "approve", "digest": "d", "comment": "WHY"}}\''
    assert offered(policy=POLICY) == [approve, reject]
    narrow = ApprovalPolicy(actions=("edit", "reject"))
    assert offered(policy=narrow) == [reject, "waystation edit payer-1 fc-1"]
    form = offered(kind="long_running", response_schema={"type": "object"})
    assert form == ["waystation respond payer-1 fc-1", reject]


def test_a_call_is_said_to_wait_for_a_person_a_machine_or_an_operator() -> None:
    """A machine's call does not wait for a person, and not everyone may state an unknown outcome."""
    assert "waiting for a person" in call_text()
    machine = call_text(kind="long_running", policy=ApprovalPolicy.model_construct(approvers=("machine:claims",)))
    assert ("waiting for a machine" in machine, "waiting for a person" in machine) == (True, False)
    assert "approver an operator" in call_text(kind="unknown", policy=ApprovalPolicy(notify=("desk",)))
    unknown = table_lines([call(kind="unknown")], 120)
    assert not any("anyone" in line for line in unknown)
    assert any("an operator" in line for line in unknown)


def test_padding_hides_no_tail_of_an_argument() -> None:
    """Both ends of a long value are shown with the size between them; the size of a memo is not an argument."""
    display = call_text(args={"text": "A" * 60_000 + " and pay eve"})
    assert " … 58,014 of 60,014 characters omitted … " in display
    assert 'A and pay eve"\n' in display
    large = call_text(args={"omitted_bytes": 60_014})
    assert "pay(…), 60,014 bytes of arguments" in large
    assert "omitted_bytes" not in large
