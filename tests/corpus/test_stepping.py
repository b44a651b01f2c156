"""The step debugger moves a cursor through a recording, also in a terminal."""

import asyncio
import pdb
from pathlib import Path
from types import FrameType

import pytest
from typer.testing import CliRunner

from tests.paths import HISTORIES
from tests.programs import Ran, command
from tests.terminals import in_terminal
from waystation.cli.program import app
from waystation.core.errors import NoSuchEvent
from waystation.core.log import (
    AnswerCounted,
    Body,
    CallLost,
    CallReturned,
    ChildReturned,
    DeadlinePassed,
    Log,
    ModelCalled,
)
from waystation.replay import Cursor, Recording
from waystation.replay.workflow_debugger import break_at


async def cursor_in(name: str) -> Cursor:
    """Return a cursor in a history of the corpus."""
    return Cursor(await Recording.read(HISTORIES / f"{name}.json", store=str(HISTORIES / "store")))


def body(walk: Cursor) -> Body | None:
    """Return the log entry at the cursor."""
    return walk.moment.entry.body if walk.moment.entry else None


async def debugged(name: str, *commands: str, options: tuple[str, ...] = ()) -> Ran:
    """Run the command on a history of the corpus with commands from standard input."""
    command_line = ["debug", str(HISTORIES / f"{name}.json"), *options]
    lines = "".join(f"{each}\n" for each in commands)
    result = await asyncio.to_thread(CliRunner().invoke, app, command_line, input=lines, catch_exceptions=False)
    return Ran(result.exit_code, result.stdout, result.stderr)


async def test_a_cursor_moves_from_event_to_event_and_back() -> None:
    """A cursor that is moved beyond the first or last event stays there."""
    here = await cursor_in("confirmation-approved")
    assert (here.moment.number, here.previous()) == (0, False)
    numbers = []
    while here.next():
        numbers.append(here.moment.number)
    assert numbers == [1, 2, 3, 4, 5, 6]
    back = []
    while here.previous():
        back.append(here.moment.number)
    assert back == [5, 4, 3, 2, 1, 0]
    here.go(4)
    assert here.moment.event == here.recording.events[3]
    with pytest.raises(NoSuchEvent):
        here.go(7)
    assert here.moment.number == 4


async def test_steps_include_entries_without_an_event() -> None:
    """Log entries without an event, such as a deadline, are positions after the event before."""
    here = await cursor_in("confirmation-expired")
    places = [(here.position.is_event, body(here))]
    while here.step():
        places.append((here.position.is_event, body(here)))
    assert any(isinstance(found, ModelCalled) and not made for made, found in places)
    assert any(isinstance(found, DeadlinePassed) for _, found in places)
    assert len([made for made, _ in places if made]) == here.moment.number
    count = 0
    while here.back():
        count += 1
    assert (count, here.moment.number) == (len(places) - 1, 0)


async def test_a_cursor_finds_waits_tools_and_state_changes() -> None:
    """Waits, tools and state changes are found in both directions."""
    here = await cursor_in("confirmation-approved")
    assert (here.next_wait(), here.moment.number, len(here.moment.pending)) == (True, 2, 1)
    assert (here.next_tool(), isinstance(body(here), CallReturned)) == (True, True)
    here.go(0)
    assert [(here.next_change(), dict(here.changes.added)) for _ in range(2)] == [
        *((True, {"seed": 1}), (True, {"notes": {"x": True}})),
    ]
    assert here.next_change() is False
    here.go()
    assert (here.next_wait(back=True), here.moment.pending) == (True, ())
    assert (here.next_wait(back=True), here.moment.number) == (True, 2)


@pytest.mark.parametrize("name", ["asks-for-confirmation", "parallel-tools", "called-agent", "needs-login"])
async def test_a_cursor_stops_once_per_tool_result(name: str) -> None:
    """A tool result with several events is one position."""
    here = await cursor_in(name)
    reports = [e for e in here.recording.log.entries if isinstance(e.body, CallReturned | CallLost | ChildReturned)]
    stops = []
    while here.next_tool():
        stops.append(here.moment.entry)
    assert stops == reports


async def test_a_cursor_searches_texts_and_entries() -> None:
    """The search ignores case, and includes entries without an event."""
    here = await cursor_in("confirmation-approved")
    assert (here.search("PAID."), here.moment.number) == (True, 6)
    assert here.search("paid.") is False
    assert (here.search("note(", back=True), here.moment.number) == (True, 2)
    expired = await cursor_in("confirmation-expired")
    assert expired.search("model call 1 starts")
    assert isinstance(body(expired), ModelCalled)


@pytest.mark.parametrize("name", ["parallel-tools", "continued", "budget-asks-approved", "branches-one-waits"])
async def test_every_position_of_a_history_has_a_display(name: str) -> None:
    """Displaying a position does not rebuild the log."""
    here = await cursor_in(name)
    displays = [here._repr_html_()]
    while here.step():
        displays.append(here._repr_html_())
    assert len(set(displays)) == len(displays)


async def test_piped_commands_step_through_a_file() -> None:
    """Each move prints changes, durations and the approver."""
    ran = await debugged("confirmation-approved", "n", "w", "t", "", "last", "q")
    screens = ran.out.split("(debug) ")
    assert ran.code == 0
    assert "before event 1 of 6" in screens[0]
    assert "event 1 of 6" in screens[1]
    assert ("waiting for approval" in screens[2], "later approved" in screens[2]) == (True, True)
    assert ("attempt 1" in screens[3], "ran " in screens[3], "input" in screens[3]) == (True, True, True)
    assert "event 5 of 6" in screens[4]
    assert "+  notes" in screens[4]
    assert "completed" in screens[5]


async def test_an_empty_line_repeats_the_latest_move() -> None:
    """An empty line repeats the last command that moved the cursor."""
    screens = (await debugged("many-steps", "t", "", "")).out.split("(debug) ")
    assert [f"event {number} of" in screens[index] for index, number in ((1, 3), (2, 5), (3, 7))] == [True] * 3


async def test_an_impossible_command_is_reported() -> None:
    """The error message has the reason, and the cursor stays."""
    ran = await debugged(
        "one-tool",
        "?",
        "g",
        "go",
        ":g",
        "g 99",
        "g x",
        "p",
        "xyz",
        "/nowhere",
        "i",
        "o",
        "m",
        "e",
        "h",
        "3",
        ":state",
        "?go",
    )
    for text in (
        *("has no event 99", "'x' is not an event number", "This is the beginning", "Unknown command 'xyz'"),
        *("'nowhere' was not found after this event", "calls no agent that has a recording", "already the outermost"),
        *("Enter an event number, for example: g 3", "Enter the text to search for, such as: /refund"),
        *("contents (1)", "previous event", '"seed": 1', "event 3 of 4", "event 1 of 4"),
    ):
        assert text in ran.out, text
    assert ran.code == 0


async def test_a_debugger_starts_at_the_given_event(tmp_path: Path) -> None:
    """The option `--at` selects the event, and `--agents` provides agents for prompts."""
    package = tmp_path / "stepped_clerks"
    package.mkdir()
    code = "from waystation import Agent\nroot_agent = Agent(name='clerk', model='m', instruction='Be brief.')\n"
    (package / "agent.py").write_text(code)
    ran = await debugged("one-tool", "m", options=("--at", "2", "--agents", str(tmp_path)))
    assert ("event 2 of 4" in ran.out, "Be brief." in ran.out, "model call 1" in ran.out) == (True, True, True)
    missing = await debugged("one-tool", options=("--at", "22"))
    assert missing.code == 6


@pytest.mark.slow
async def test_in_a_terminal_keys_act_at_once() -> None:
    """Keys need no Enter; commands with arguments are lines."""
    code, _ = await in_terminal(
        *("-m", "waystation.cli", "debug", str(HISTORIES / "confirmation-approved.json")),
        typed=[
            ("before event 1 of 6", b"n"),
            ("event 1 of 6", b"\x1b[C"),
            ("event 2 of 6", b"\x1b[D"),
            ("event 1 of 6", b"g 5\r"),
            ("event 5 of 6", b"/paid.\r"),
            ("event 6 of 6", b"q"),
        ],
    )
    assert code == 0


@pytest.mark.slow
async def test_pdb_stops_in_the_workflow_code_of_an_event() -> None:
    """The debugger stops just before the entry is applied, and quitting it continues the replay."""
    path = str(HISTORIES / "confirmation-approved.json")
    code, screen = await in_terminal(
        *("-m", "waystation.cli", "debug", path, "--at", "4", "--pdb"),
        typed=[
            ("(Pdb) ", b"p body.answer.action, self.log.state.event_count\r"),
            ("('approve', 3)", b"n\r"),
            ("workflows/log_writer.py", b"p self.log.state.event_count\r"),
            ("4", b"q\r"),
        ],
    )
    assert code == 0, screen
    assert "Just before event 4 of confirmation-approved" in screen
    assert "workflows/log_writer.py" in screen[: screen.index("('approve', 3)")]


async def test_another_debugger_receives_the_frame() -> None:
    """The debugger stops once, and the divergence of the code is returned."""
    recording = (await cursor_in("confirmation-approved")).recording
    frames: list[FrameType] = []

    class Noting(pdb.Pdb):
        def set_trace(self, frame: FrameType | None = None, **_: object) -> None:
            assert frame
            frames.append(frame)

    append = Log.append
    assert await break_at(recording.moment(4), Noting) is None
    assert Log.append is append
    (frame,) = frames
    assert isinstance(frame.f_locals["body"], AnswerCounted)
    assert frame.f_locals["self"].state.event_count == 6  # the replay has ended, so the frame has its final state


@pytest.mark.slow
async def test_leaving_pdb_returns_to_the_cursor() -> None:
    """The cursor has the same position as before."""
    code, screen = await in_terminal(
        *("-m", "waystation.cli", "debug", str(HISTORIES / "one-tool.json"), "--at", "3"),
        typed=[
            ("event 3 of 4", b":pdb\r"),
            ("(Pdb) ", b"p body.outcome.response\r"),
            ("{'sum': 3}", b"c\r"),
            ("(debug)", b"p"),
            ("event 2 of 4", b"q"),
        ],
    )
    assert code == 0, screen


async def test_pdb_needs_an_event_and_its_run() -> None:
    """The error names what is missing."""
    path = str(HISTORIES / "one-tool.json")
    for options, code, text in (
        ((path, "--pdb"), 2, "requires an event number; pass --at N"),
        ((path, "--pdb", "--at", "0"), 1, "nothing was applied before event 1"),
        ((path, "--pdb", "--at", "9"), 6, "has no event 9"),
    ):
        ran = await command("debug", *options)
        assert (ran.code, text in ran.err) == (code, True), options
    assert "--at N --pdb" in (await debugged("one-tool", "n", "pdb")).out
