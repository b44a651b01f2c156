"""Instruction templates follow ADK's rules exactly. Source: adk-semantics 9.3."""

import json
from dataclasses import replace
from typing import Any

import pytest

from waystation.activities.contexts import Contexts
from waystation.activities.model_call.request import InstructionFailed, build_instructions, fill_in
from waystation.agents import Agent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.artifacts import InMemoryArtifactService
from waystation.core.contract import AgentSpec
from waystation.core.conversation import Conversation
from waystation.core.errors import StoreFailed
from waystation.core.log import AgentRun, Log
from waystation.core.payload import JsonObject
from waystation.tools.services import Services

STATE: JsonObject = {"name": "Ann", "n": 3, "none": None, "user:lang": "de", "app:v": 1, "temp:x": [1], "a b": "no"}


def contexts() -> Contexts:
    """Return contexts of an agent named `guide` over some state."""
    run = AgentRun(0, AgentSpec(name="guide"), None, None, entered_at=0)
    return Contexts(Conversation(Log("i-1")), run, STATE)


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
async def test_names_are_replaced_and_other_text_is_kept(template: str, text: str) -> None:
    """Values are inserted with `str()`, and invalid names stay unchanged."""
    assert await fill_in(template, contexts()) == text


@pytest.mark.parametrize(
    ("template", "kind", "problem"),
    [
        ("{missing}", "KeyError", "\"Context variable not found: `missing` in agent 'guide'.\""),
        ("{user:missing}", "KeyError", "\"Context variable not found: `user:missing` in agent 'guide'.\""),
        ("{artifact.a.txt}", "ValueError", "Artifact service is not initialized."),
    ],
)
async def test_an_unknown_name_is_an_error(template: str, kind: str, problem: str) -> None:
    """An unknown name raises ADK's error."""
    with pytest.raises(InstructionFailed) as failed:
        await fill_in(template, contexts())
    assert (failed.value.kind, str(failed.value)) == (kind, problem)


class BrokenArtifacts(InMemoryArtifactService):
    """An artifact service that raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def load_artifact(self, **_: Any) -> None:
        """Raise."""
        raise self._error


@pytest.mark.parametrize(
    ("error", "raised"), [(KeyError("secret"), InstructionFailed), (StoreFailed("s3://a", "timeout"), StoreFailed)]
)
async def test_an_artifact_service_that_raises_ends_the_attempt(error: Exception, raised: type[Exception]) -> None:
    """As in ADK, the error is permanent, unless the service reports a failure of its store. No message is quoted."""
    broken = replace(contexts(), services=Services(artifacts=BrokenArtifacts(error)))
    with pytest.raises(raised) as failed:
        await fill_in("{artifact.a.txt}", broken)
    assert "secret" not in str(failed.value)


def weather(context: ReadonlyContext) -> str:
    """Raise an error in a library function."""
    return str(json.loads("fine"))


async def weather_soon(context: ReadonlyContext) -> str:
    """Raise an error when awaited."""
    return weather(context)


@pytest.mark.parametrize("provider", [weather, weather_soon])
async def test_the_error_of_a_function_names_its_line(provider: Any) -> None:
    """The error names the line of the function, not that of a library, and omits the exception's text."""
    with pytest.raises(InstructionFailed) as failed:
        await build_instructions(Agent(name="guide", instruction=provider), contexts(), set_response=False)
    line = weather.__code__.co_firstlineno + 2
    assert str(failed.value) == (
        f"The function that is the `instruction` of 'guide' raised JSONDecodeError at {__file__}:{line}."
    )


@pytest.mark.parametrize(("value", "type_name"), [(None, "None"), (3, "an int"), (["text"], "a list")])
async def test_a_function_that_does_not_return_text_is_refused(value: Any, type_name: str) -> None:
    """A function must return text, because None would otherwise become an instruction."""
    agent = Agent(name="guide", global_instruction=lambda context: value)
    with pytest.raises(InstructionFailed) as failed:
        await build_instructions(agent, contexts(), set_response=False)
    assert (failed.value.kind, str(failed.value)) == (
        "TypeError",
        f"The function that is the `global_instruction` of 'guide' returned {type_name}; return text.",
    )
