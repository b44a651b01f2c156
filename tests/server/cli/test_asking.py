"""The interactive forms of the answering commands show the call and ask for missing fields, on a server."""

import asyncio
import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.server.approvals.asking import asker, payer
from tests.server.conftest import Serve, empty_server
from tests.server.workflows.outside import Till, until, until_waiting, waiting
from waystation.cli import pending_calls
from waystation.cli.command_context import Problem, Target
from waystation.cli.output import Output
from waystation.cli.terminal_input import Person
from waystation.core import ACTIONS, Action, JsonObject, PendingCall


class Types(Person):
    """A person who types the lines of the test, and whose editor is a function."""

    def __init__(self, *lines: str, editor: Callable[[str], str] | None = None) -> None:
        self.prompts: list[str] = []
        self.defaults: list[str] = []
        self._lines, self._editor = iter(lines), editor

    def ask(self, prompt: str, default: str = "") -> str:
        """Return the next line."""
        self.prompts.append(prompt)
        self.defaults.append(default)
        return next(self._lines) or default

    def edit(self, text: str) -> str | None:
        """Return the edited text."""
        return self._editor(text) if self._editor else None


def output() -> tuple[Output, io.StringIO]:
    """Return a terminal and the stream of its output."""
    stream = io.StringIO()
    out = Output(page=80)
    out.console = Console(file=stream, width=80, highlight=False, markup=False, emoji=False, color_system=None)
    return out, stream


def filled(person: Person, displayed: PendingCall, action: Action, **fields: Any) -> tuple[JsonObject, str]:
    """Return the fields of the answer, and the output."""
    out, stream = output()
    return pending_calls.ask_for_missing(person, out, displayed, ACTIONS[action], fields), stream.getvalue()


def test_the_whole_call_is_shown_with_its_policy_and_digest() -> None:
    """The output shows all arguments except secrets, the requester, the approvers and the deadline."""
    out, stream = output()
    pending_calls.show_call(out, call(args={"reason": "x" * 300, "api_key": "plum"}, policy=POLICY, digest="84d6209c"))
    output_text = stream.getvalue()
    assert "x" * 300 in output_text.replace("\n", "")
    assert "plum" not in output_text
    for text in ("fc-1 of payer-1", "payer, for dana", "alice@example.com, role:finance", "84d6209c", "in 24 hours"):
        assert text in output_text


def test_edited_arguments_are_shown_as_a_diff_before_they_are_sent() -> None:
    """Arguments from an editor that are not valid JSON can be edited again."""
    left = iter(['{"amount": 1', '{"amount": 1}'])
    person = Types("y", "because", "y", editor=lambda _: next(left))
    fields, written = filled(person, call(), "edit")
    assert fields == {"args": {"amount": 1}, "comment": "because"}
    assert "is not valid JSON" in written
    assert [line for line in written.splitlines() if line[:1] in "+-"] == [
        *("--- asked", "+++ edited", '-  "amount": 9', '+  "amount": 1')
    ]
    assert person.prompts[-1] == "Send 'edit'? [y/N]"


def test_without_an_editor_each_argument_is_requested() -> None:
    """Strings are typed unquoted and other values as JSON; an empty line keeps the value."""
    person = Types("", "two", "2", "", "y")
    fields, written = filled(person, call(args={"to": "dana", "amount": 9}), "edit")
    assert fields["args"] == {"to": "dana", "amount": 2}
    assert "'two' is not valid JSON" in written


def test_secrets_are_not_shown_where_arguments_are_edited() -> None:
    """Secrets are neither offered as defaults nor shown in the diff; an empty line keeps them."""
    person = Types("", "2", "", "y")
    fields, written = filled(person, call(args={"api_key": "plum", "amount": 9}), "edit")
    assert fields["args"] == {"api_key": "plum", "amount": 2}
    assert "plum" not in written + "".join(person.defaults)


def test_unchanged_arguments_are_not_sent_as_an_edit() -> None:
    """The message names the command that sends unchanged arguments."""
    with pytest.raises(Problem, match="To run the call with them, use `approve`"):
        filled(Types("", editor=lambda text: text), call(), "edit")


def test_a_response_is_requested_by_the_fields_of_its_schema() -> None:
    """Prompts name the type of a field; optional fields can be omitted, and invalid input is requested again."""
    schema = {
        "properties": {
            "decision": {"enum": ["yes", "no"], "description": "whether"},
            "limit": {"type": "integer"},
            "note": {"type": "string"},
        },
        "required": ["decision", "limit"],
    }
    person = Types("maybe", "yes", "many", "50", "", "", "y")
    fields, _ = filled(person, call(kind="long_running", response_schema=schema), "respond")
    assert fields["response"] == {"decision": "yes", "limit": 50}
    assert person.prompts[0] == "  decision (whether; one of yes, no)"


def test_an_invalid_field_is_reported_with_an_example() -> None:
    """This includes valid JSON of another type, which the server would refuse."""
    fields = {"granted": {"type": "boolean"}, "seats": {"type": "integer"}, "guests": {"type": "array"}}
    schema = {"properties": fields, "required": list(fields)}
    person = Types("yes", "1", "true", "true", "3", "dana", '["dana"]', "", "y")
    answer_fields, written = filled(person, call(kind="long_running", response_schema=schema), "respond")
    assert answer_fields["response"] == {"granted": True, "seats": 3, "guests": ["dana"]}
    assert person.prompts[0] == "  granted (true or false)"
    assert written.count("is not of type boolean; enter true or false.") == 2
    assert "'true' is not of type integer; enter a whole number, such as 12." in written
    assert '\'dana\' is not of type array; enter JSON, such as ["one", "two"].' in written


def test_a_response_without_a_schema_is_requested_as_json() -> None:
    """A response without a schema must be a JSON object."""
    person = Types("done", '{"status": "done"}', "", "y")
    fields, written = filled(person, call(kind="long_running"), "respond")
    assert fields["response"] == {"status": "done"}
    assert "is not valid JSON" in written


def test_a_required_comment_is_requested_again() -> None:
    """Answers that decide a call need the comment, but not claims or progress."""
    fields, _ = filled(Types("", "", "fine", "y"), call(policy=POLICY), "approve")
    assert fields["comment"] == "fine"
    assert filled(Types("", "y"), call(policy=POLICY), "claim")[0]["comment"] is None


@pytest.mark.parametrize("line", ["", "n", "no", "maybe"])
def test_nothing_is_sent_without_a_clear_yes(line: str) -> None:
    """The message says that nothing was sent."""
    with pytest.raises(Problem, match=r"Nothing was sent\."):
        filled(Types("", line), call(), "approve")


@pytest.mark.parametrize("line", ["", "0", "3", "-1", "first"])
def test_a_number_outside_the_list_is_refused(line: str) -> None:
    """A number outside the list is refused instead of guessed."""
    out, _ = output()
    with pytest.raises(Problem, match="is not a number from 1"):
        pending_calls.choose(Types(line), out, Target(), [call(), call(invocation_id="other")])


async def typed(
    folder: Path, address: str, *arguments: str, lines: dict[str, str], ahead: str = "", interrupted_at: str = ""
) -> tuple[int, str]:
    """Run a command in a terminal, and type each line when its prompt appears. Return the exit code and the output.

    `ahead` is typed before the command starts; at the prompt `interrupted_at` it receives the signal of Ctrl-C. The
    editor is a program that writes other arguments.
    """
    editor = folder / "editor"
    editor.write_text('#!/bin/sh\necho \'{"amount": 1}\' > "$1"\n')
    editor.chmod(0o755)
    parent, child = pty.openpty()
    os.write(parent, ahead.encode())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "waystation.cli", "--address", address, *arguments),
        stdin=child,
        stdout=child,
        stderr=child,
        cwd=folder,
        env={**os.environ, "EDITOR": str(editor), "VISUAL": "", "PYTHONPATH": str(ROOT), "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(child)
    screen, left = b"", dict(lines)
    while True:
        try:
            screen += await asyncio.to_thread(os.read, parent, 65_536)
        except OSError:  # the program has ended
            break
        if interrupted_at and interrupted_at.encode() in screen:
            interrupted_at = ""
            process.send_signal(signal.SIGINT)
        for prompt in [prompt for prompt in left if prompt.encode() in screen]:
            os.write(parent, f"{left.pop(prompt)}\n".encode())
    os.close(parent)
    return await process.wait(), screen.decode()


async def test_in_a_terminal_a_call_is_chosen_displayed_and_approved(serve: Serve, tmp_path: Path) -> None:
    """Runs the real command in a real terminal without an ID."""
    till = Till()
    # Calls of other tests, if they still wait, would be listed on pages.
    async with empty_server() as server, serve(payer(till.pay), asker(), server=server) as env:
        paid, question = await env.client.start("payer", "go"), await env.client.start("asker", "go")
        await waiting(paid, "fc-1")
        await waiting(question, "fc-1")

        async def listed() -> list[str]:
            listed_ids = [each.invocation_id for each in await env.client.approvals.pending()]
            return listed_ids if len(listed_ids) == 2 else []

        which = str((await until(listed, "both calls")).index(paid.id) + 1)
        lines = {"Which call": which, "Comment (optional)": "fine", "Send 'approve'?": "y"}
        code, screen = await typed(tmp_path, env.server.address, "approve", lines=lines)
        assert code == 0, screen
        assert "digest" in screen
        await paid.result()
        answer = (await paid.log()).state.calls["fc-1"].answer
        assert answer is not None
        assert (answer.comment, bool(answer.digest), till.paid) == ("fine", True, [5])
        code, screen = await typed(tmp_path, env.server.address, "approve", question.id, lines={})
        assert (code, "approved ask" in screen) == (0, True)
        await question.result()


@pytest.mark.slow
@pytest.mark.parametrize("question", ["Comment (optional)", "Send 'edit'?"])
async def test_an_interrupted_command_sends_nothing(serve: Serve, tmp_path: Path, question: str) -> None:
    """The command stops at once, even if the person keeps typing."""
    async with serve(payer(Till().pay), verify=False) as env:
        invocation = await until_waiting(env.client.start("payer", "go"), "fc-1")
        lines = {"Comment (optional)": "fine", "Send 'edit'?": "y"}
        call = f"{invocation.id}/fc-1"
        code, screen = await typed(tmp_path, env.server.address, "edit", call, lines=lines, interrupted_at=question)
        assert (code, "Interrupted. Nothing was sent." in screen) == (130, True), screen
        assert (await invocation.log()).state.calls["fc-1"].answer is None
        await invocation.handle.terminate()


@pytest.mark.slow
async def test_input_before_a_question_does_not_answer_it(serve: Serve, tmp_path: Path) -> None:
    """The person has not read the question."""
    async with serve(payer(Till().pay), verify=False) as env:
        invocation = await until_waiting(env.client.start("payer", "go"), "fc-1")
        lines = {"Comment (optional)": "", "Send 'edit'?": "n"}
        call = f"{invocation.id}/fc-1"
        code, screen = await typed(tmp_path, env.server.address, "edit", call, lines=lines, ahead="fine\ny\ny\n")
        assert code != 0, screen
        assert (await invocation.log()).state.calls["fc-1"].answer is None
        await invocation.handle.terminate()


@pytest.mark.slow
async def test_in_a_terminal_arguments_are_edited_in_the_users_editor(serve: Serve, tmp_path: Path) -> None:
    """The tool runs with the edited arguments after the person confirms the diff."""
    till = Till()
    async with serve(payer(till.pay)) as env:
        invocation = await until_waiting(env.client.start("payer", "go"), "fc-1")
        lines = {"Comment (optional)": "less", "Send 'edit'?": "y"}
        code, screen = await typed(tmp_path, env.server.address, "edit", f"{invocation.id}/fc-1", lines=lines)
        assert (code, '+  "amount": 1' in screen) == (0, True), screen
        await invocation.result()
        assert till.paid == [1]
