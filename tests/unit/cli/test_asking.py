"""The interactive forms of the answering commands show the call and ask for missing fields."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tests.unit.cli.test_pending import POLICY, call
from waystation.cli import pending_calls
from waystation.cli.command_context import CommandProblem, ServerTarget
from waystation.cli.output import Output
from waystation.cli.terminal_input import TerminalUser
from waystation.core.actions import ACTIONS, Action
from waystation.core.approval import PendingCall
from waystation.core.payload import JsonObject


class Types(TerminalUser):
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


def filled(person: TerminalUser, displayed: PendingCall, action: Action, **fields: Any) -> tuple[JsonObject, str]:
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
    with pytest.raises(CommandProblem, match="To run the call with them, use `approve`"):
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
    """Invalid fields include valid JSON of another type, which the server would refuse."""
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
    with pytest.raises(CommandProblem, match=r"Nothing was sent\."):
        filled(Types("", line), call(), "approve")


@pytest.mark.parametrize("line", ["", "0", "3", "-1", "first"])
def test_a_number_outside_the_list_is_refused(line: str) -> None:
    """A number outside the list is refused instead of guessed."""
    out, _ = output()
    with pytest.raises(CommandProblem, match="is not a number from 1"):
        pending_calls.choose(Types(line), out, ServerTarget(), [call(), call(invocation_id="other")])


def test_a_long_list_is_shown_page_by_page() -> None:
    """Enter shows the next calls; a number of an earlier page still counts, and one that was not shown does not."""
    many = [call(invocation_id=f"payer-{number}") for number in range(1, 46)]
    for lines, number in ((["", "", "45"], 45), (["", "3"], 3), (["20"], 20)):
        out, stream = output()
        assert pending_calls.choose(Types(*lines), out, ServerTarget(), many) == many[number - 1]
        assert stream.getvalue().count("payer-") == min(45, 20 * len(lines))
    person = Types("21")
    with pytest.raises(CommandProblem, match="'21' is not a number from 1 to 20"):
        pending_calls.choose(person, output()[0], ServerTarget(), many)
    assert person.prompts == ["Which call (1 to 20, or Enter for 25 more)"]
