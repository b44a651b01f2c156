"""Instruction templates, to the letter of ADK's rules. Source: adk-semantics 9.3."""

import pytest

from activities.contexts import Contexts
from activities.instructions import InstructionFailed, filled_in
from tools.services import NO_SERVICES
from waystation.core.log import Log
from waystation.core.payload import JsonObject

STATE: JsonObject = {"name": "Ann", "n": 3, "none": None, "user:lang": "de", "app:v": 1, "temp:x": [1], "a b": "no"}


def contexts() -> Contexts:
    """Return contexts of an agent named `guide` over some state."""
    return Contexts(Log("i-1"), "guide", None, STATE, NO_SERVICES)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Hello {name}, {n} of {user:lang}, {app:v}, {temp:x}.", "Hello Ann, 3 of de, 1, [1]."),
        ("{ name }{{name}}{{{name}}}", "AnnAnnAnn"),
        ("{none}{missing?}{none?}", ""),
        ('{"a": 1} {a b} {a.b} {sys:x} {} {1}', '{"a": 1} {a b} {a.b} {sys:x} {} {1}'),
        (r"${name} \{name}", r"${name} \{name}"),
        ("no template", "no template"),
    ],
    ids=["scopes", "braces", "optional", "no-names", "escaped", "none"],
)
async def test_names_are_filled_in_and_what_is_none_is_left(template: str, text: str) -> None:
    """Values are inserted by `str()`."""
    assert await filled_in(template, contexts()) == text


@pytest.mark.parametrize(
    ("template", "kind", "problem"),
    [
        ("{missing}", "KeyError", "\"Context variable not found: `missing` in agent 'guide'.\""),
        ("{user:missing}", "KeyError", "\"Context variable not found: `user:missing` in agent 'guide'.\""),
        ("{artifact.a.txt}", "ValueError", "Artifact service is not initialized."),
    ],
)
async def test_a_name_that_names_nothing_is_an_error(template: str, kind: str, problem: str) -> None:
    """The texts are ADK's."""
    with pytest.raises(InstructionFailed) as failed:
        await filled_in(template, contexts())
    assert (failed.value.kind, str(failed.value)) == (kind, problem)
