"""The text that people see, whatever models, tools and users wrote."""

import io
import json
import os
import subprocess
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from tests.conftest import SetZone
from waystation.cli.command_context import ServerTarget, quote, write_waits
from waystation.cli.output import Output
from waystation.core.approval import PendingCall, default_hint
from waystation.core.contract import Covered, Event, EventActions, EventCompaction
from waystation.core.payload import JsonObject
from waystation.presentation import terminal as render

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\x08\x9b31m\u202egnp.exe\u2028[bold]x[/bold] :smile:\x7f"
UTF8 = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
NOW = 1_737_000_000.0
STEERING = set("\x1b\x07\r\x08\x9b\u202e\u2028\x7f")


def event(parts: list[JsonObject], **fields: object) -> Event:
    """Return an event of an agent."""
    values = {"id": "i/e1", "invocation_id": "i", "author": "agent", "timestamp": NOW, **fields}
    return Event.model_validate({**values, "content": {"role": "model", "parts": parts}})


def rendered(*events: Event, width: int = 80, terminal: bool = True) -> str:
    """Return the output for a terminal with this width, without colors."""
    stream = io.StringIO()
    out = Output(page=width if terminal else None, now=lambda: NOW)
    out.console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False, color_system=None)
    for one in events:
        out.event(one)
    return stream.getvalue()


@given(st.text())
def test_control_characters_are_escaped(text: str) -> None:
    """Hostile text becomes one line of printable characters; printable text is unchanged."""
    made = render.escape(text)
    assert all(char.isprintable() or char in "\u200d" or char.isspace() for char in made)
    assert len(made.splitlines()) <= 1
    if text.isprintable():
        assert made == text


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)
    )
)
def test_escaped_json_is_the_same_json(value: object) -> None:
    """Escapes stand inside strings, so the JSON reads back unchanged."""
    made = render.format_json(value)
    assert json.loads(made) == value
    assert made.isprintable()


@pytest.mark.parametrize(
    "hostile",
    [
        event([{"text": HOSTILE}]),
        event([{"text": HOSTILE, "thought": True}]),
        event([{"functionCall": {"id": HOSTILE, "name": HOSTILE, "args": {HOSTILE: HOSTILE}}}]),
        event([{"functionResponse": {"id": HOSTILE, "name": HOSTILE, "response": {HOSTILE: HOSTILE}}}]),
        event([{HOSTILE: 1}]),
        event([], error_code=HOSTILE, error_message=HOSTILE),
        event([], author=HOSTILE, actions=EventActions(state_delta={HOSTILE: HOSTILE}, removed_keys=(HOSTILE,))),
        event([], actions=EventActions(transfer_to_agent=HOSTILE)),
        event([], custom_metadata={"ignored_answer": {"reason": HOSTILE, "message": HOSTILE, "by": HOSTILE}}),
    ],
    ids=["text", "thought", "call", "response", "other part", "error", "state", "transfer", "ignored answer"],
)
def test_hostile_events_are_shown_escaped_and_without_markup(hostile: Event) -> None:
    """Text is escaped at every place of an event."""
    sent = rendered(hostile)
    assert not STEERING & set(sent)
    assert "😄" not in sent


def test_hostile_pending_calls_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """Text is escaped in the commands too, which are quoted for the shell."""
    call = PendingCall(
        function_call_id="fc-1",
        invocation_id="it's; rm -rf $HOME",
        agent=HOSTILE,
        tool=HOSTILE,
        args={HOSTILE: HOSTILE},
        kind="confirmation",
        digest="d",
        hint=HOSTILE,
        interim={HOSTILE: HOSTILE},
        requested_at=0,
        deadline=0,
        user_id=HOSTILE,
    )
    write_waits(Output(), ServerTarget(), [call])
    sent = capsys.readouterr().out
    assert not STEERING & set(sent)
    assert "--workflow-id 'it'\"'\"'s; rm -rf $HOME'" in sent


def test_all_arguments_of_a_pending_call_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """All arguments except secrets are shown; arguments that the line of the call shows whole are not repeated."""
    reason = "the roof, which was damaged by the storm of last week, and the shed"
    args: JsonObject = {"amount": 250, "reason": reason, "to": {"name": "Mueller", "api_key": "hunter2"}}
    call = PendingCall(
        function_call_id="fc-1",
        invocation_id="i",
        agent="payer",
        tool="pay",
        args=args,
        kind="confirmation",
        digest="d",
        hint=default_hint("pay"),
        requested_at=0,
        deadline=0,
        user_id="ann",
    )
    write_waits(Output(), ServerTarget(), [call])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("  with", "  hint"))]
    assert lines == [
        f'  with     reason = "{reason}"',
        '  with     to = {"name": "Mueller", "api_key": "…"}',
    ]


def test_texts_are_wrapped_beneath_their_beginning() -> None:
    """In a terminal, continuation lines start below the text, not below the time."""
    lines = rendered(event([{"text": "word " * 30}]), width=60).splitlines()
    assert len(lines) == 4
    assert lines[0][10:].startswith("agent: word")
    assert all(line.startswith(" " * 10 + "word") and len(line) <= 60 for line in lines[1:])


def test_texts_keep_their_lines() -> None:
    """A text with several lines keeps its line breaks."""
    lines = rendered(event([{"text": "one\ntwo\r\n\tthree\n"}])).splitlines()
    assert [line[10:] for line in lines] == ["agent: one", "two", "    three"]


def test_texts_are_wrapped_only_in_terminals() -> None:
    """Output that is not a terminal has whole lines, because programs read it."""
    assert rendered(event([{"text": "word " * 30}]), width=60, terminal=False).count("\n") == 1


def test_secrets_in_arguments_are_not_shown() -> None:
    """Secrets are hidden as in the Web UI; the history contains them."""
    sent = rendered(event([{"functionCall": {"id": "fc-1", "name": "login", "args": {"password": "hunter2"}}}]))
    assert "hunter2" not in sent


def test_a_long_response_is_clipped() -> None:
    """A long response is clipped, except with `--json`."""
    sent = rendered(event([{"functionResponse": {"name": "f", "response": {"r": "x" * 5000}}}]))
    assert len(sent) < 500
    assert "…" in sent


def test_a_confirmation_reads_as_a_question_and_its_answer() -> None:
    """The output does not look like a call of ADK's internal function."""
    args = {"originalFunctionCall": {"name": "pay", "args": {}}, "toolConfirmation": {"hint": "Really?"}}
    request = event([{"functionCall": {"id": "fc-1-confirmation", "name": "adk_request_confirmation", "args": args}}])
    response = {"id": "fc-1-confirmation", "name": "adk_request_confirmation", "response": {"confirmed": False}}
    refused = event([{"functionResponse": response}])
    sent = rendered(request, refused)
    assert "agent needs a confirmation for pay: Really?" in sent
    assert "the call [fc-1] was rejected" in sent
    assert "user" not in sent
    assert "adk_" not in sent


def test_approvers_and_failed_notifications_are_shown() -> None:
    """The output names approvers and failed notifications, because the agent's response names nobody."""
    who = {"function_call_id": "fc-1", "by": "dana", "verified": {"subject": "dana"}}
    notes: list[JsonObject] = [
        {"approval": {**who, "action": "approve", "approved_by": ["dana"], "needed": 2, "comment": "fine\n"}},
        {"approval": {**who, "action": "edit"}},
        {"approval": {"function_call_id": "fc-2", "action": "standing", "origin": "i/fc-1"}},
        {"not_notified": {"function_call_id": "fc-1", "occasion": "asked", "channels": {"desk": "Status500"}}},
    ]
    sent = rendered(*(event([], custom_metadata=each) for each in notes))
    assert "[fc-1] approved by dana (identity verified), 1 of 2: “fine\\n”" in sent
    assert "[fc-1] approved with other arguments by dana (identity verified)" in sent
    assert "[fc-2] runs without asking, as remembered from i/fc-1" in sent
    assert "[fc-1] notification failed: desk (Status500)" in sent


def test_a_summary_is_one_line() -> None:
    """The line has the number of summarized events, or the reason why there is no summary."""
    content = {"role": "model", "parts": [{"text": "The user\nasked."}]}
    actions = EventActions(
        compaction=EventCompaction(start_timestamp=1.0, end_timestamp=2.0, compacted_content=content)
    )
    made = event([], actions=actions, covered=Covered(first="i/e1", last="i/e24", count=24))
    assert "summary of 24 events: The user asked." in rendered(made)
    failed = event([{"text": "hm"}], custom_metadata={"compaction_failed": {"reason": "It was late."}})
    assert "older events were not summarized: It was late." in rendered(failed)


def test_an_unusable_reply_is_one_line_with_the_reason() -> None:
    """The line says that the model is called again."""
    note = {"code": "MALFORMED_FUNCTION_CALL", "message": "It was\nprint(pay).", "remedy": "report"}
    assert "the model is asked again: It was" in rendered(event([], custom_metadata={"unusable_reply": note}))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/St_Johns"])
def test_times_of_other_days_have_their_date(set_zone: SetZone, zone: str) -> None:
    """A day begins at local midnight."""
    set_zone(zone)
    midnight = datetime(2026, 11, 1).timestamp()  # noqa: DTZ001 (of the local zone)
    assert render.format_time(midnight - 1, now=midnight) == "2026-10-31 23:59:59"
    assert render.format_time(midnight, now=midnight) == "00:00:00"
    assert render.format_time(midnight, now=midnight - 1) == "2026-11-01 00:00:00"


def test_repeated_times_differ_by_their_zone(set_zone: SetZone) -> None:
    """Two moments with the same local time, at the end of daylight saving time, show their zones."""
    set_zone("Europe/Berlin")
    second = datetime(2026, 10, 25, 1, 30, tzinfo=UTC).timestamp()
    assert render.format_time(second - 3_600, now=second, zone=True) == "02:30:00 CEST"
    assert render.format_time(second, now=second, zone=True) == "02:30:00 CET"


def test_deadlines_show_the_remaining_time() -> None:
    """The remaining time has a unit that fits its length."""
    assert [render.format_deadline(1e9, 1e9 - left).rsplit(", ")[-1] for left in (30 * 86_400, 7_200, 600, 30, -1)] == [
        "in 30 days",
        "in 2 hours",
        "in 10 minutes",
        "in 30 s",
        "which has passed",
    ]


def test_colors_are_the_only_escapes_in_a_terminal() -> None:
    """The colors come from rich; the text contains no escapes."""
    stream = io.StringIO()
    out = Output(page=80)
    out.console = Console(file=stream, width=80, force_terminal=True, color_system="standard", markup=False)
    out.event(event([{"text": HOSTILE}]))
    plain = Text.from_ansi(stream.getvalue()).plain
    assert r"\x1b[2J" in plain
    assert "\x1b[2J" not in stream.getvalue()


def test_a_command_to_copy_is_safe_and_has_the_same_meaning() -> None:
    """A copied command is quoted safely, because anyone can choose the ID of an invocation."""
    for word in (HOSTILE, "it's\x1b[31m \\x1b", "\u202e1"):
        made = quote(word)
        assert made.isprintable()
        read = subprocess.run(["bash", "-c", f"printf %s {made}"], capture_output=True, check=True, env=UTF8)
        assert read.stdout.decode() == word
    assert quote("meals-1") == "meals-1"


@pytest.mark.parametrize("text", [f"{HOSTILE}\ntwo", Text(f"{HOSTILE}\ntwo", "red")], ids=type)
def test_lines_are_escaped_where_they_are_written(text: str | Text, capsys: pytest.CaptureFixture[str]) -> None:
    """Output escapes text even if the caller has not."""
    out = Output()
    out.line(text)
    out.remark(str(text))
    for sent in capsys.readouterr():
        assert not STEERING & set(sent)
        assert sent.splitlines()[1] == "two"


def test_a_long_text_is_cut_to_its_beginning() -> None:
    """The output names the length; a state is cut in the same way."""
    assert rendered(event([{"text": "x" * 10_000}]), terminal=False).endswith("x… (10,000 characters)\n")
    assert len(rendered(event([{"text": "x" * 10_000}]), terminal=False)) < 4_100
    assert render.format_state({"a": {"b": ["y" * 5_000, 1]}}).count("y") == 4_000
