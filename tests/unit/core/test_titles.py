"""Titles of calls, which approvers read first."""

from typing import Any

import pytest

from waystation.core import summary
from waystation.core.contract import Call, InvocationInput
from waystation.core.log import CallState, InvocationState
from waystation.core.summary import MAX_TITLE


def test_a_title_shows_arguments_in_place_of_their_names() -> None:
    """Formats numbers as the author chose, and shows the first items of lists."""
    args = {"amount": 48250.5, "payee": "Rose", "lines": ["tiles", "labor", "nails", "glue"]}
    title = summary.title("Pay {amount:,.2f} EUR to {payee} for {lines}", args)
    assert title == "Pay 48,250.50 EUR to Rose for tiles, labor, nails and 1 more"


@pytest.mark.parametrize(
    "template", [None, "", "{payee}", "{amount.real}", "{amount!r}", "{amount[0]}", "{0}", "{", "{amount:>9}"]
)
def test_without_a_usable_template_and_its_arguments_there_is_no_title(template: str | None) -> None:
    """Pages then show the call with its arguments."""
    assert summary.title(template, {"amount": 5, "payee": ""}) is None


@pytest.mark.parametrize(
    "value",
    [
        "{amount.__class__}",
        "%s {0} {} }} {{",
        "x" * 3_000_000,
        "line\nline\x1b[2J\u202e\u2028\x00",
        10**4_000,
        -(10.0**300),
        [["a"] * 1_000] * 1_000,
        {"a": {"b": "c"}},
    ],
)
def test_hostile_arguments_are_inserted_as_bounded_text(value: Any) -> None:
    """A title is one printable line of limited length, whatever the model passes."""
    title = summary.title("Pay {value:,.2f}", {"value": value})
    assert title is not None
    assert title.isprintable()
    assert len(title) <= MAX_TITLE


def test_braces_in_an_argument_stay_text() -> None:
    """Braces in an argument are not expanded, because they could display another argument, such as a secret."""
    assert summary.title("To {to}", {"to": "{password}", "password": "hunter2"}) == "To {password}"


def test_a_title_masks_secrets() -> None:
    """Titles mask secrets, because everyone with access to the namespace can read them."""
    assert summary.title("Log in with {password}", {"password": "hunter2"}) == "Log in with …"


def test_a_title_of_a_long_argument_shows_its_end() -> None:
    """The title shows the end of a long argument, where malicious content is often hidden."""
    title = summary.title("{to}", {"to": "a" * 5_000 + "@evil.example"})
    assert title is not None
    assert title.endswith("@evil.example")


def test_the_title_of_a_call_follows_its_current_arguments() -> None:
    """The title shows edited arguments, because a second approver must not read the old ones."""
    call = CallState(call=Call(id="fc-1", title="Pay {amount}"), args={"amount": 5})
    state = InvocationState(input=InvocationInput(agent="payer", message="pay"))
    assert state.pending_call(call).title == "Pay 5"
    call.args = {"amount": 6}
    assert state.pending_call(call).title == "Pay 6"
