"""The packages in `examples`, found as a worker finds them."""

from collections.abc import Sequence

import pytest

from tests.paths import EXAMPLES
from waystation.apps.registry import Registry, discover
from waystation.core.contract import Event, text_of
from waystation.core.payload import JsonObject


@pytest.fixture(scope="session")
def examples() -> Registry:
    """Return all packages; none has a mistake."""
    registry, problems = discover([EXAMPLES])
    assert [str(problem) for problem in problems] == []
    return registry


def called(events: Sequence[Event]) -> list[tuple[str, JsonObject]]:
    """Return the calls of models, each a name and its arguments."""
    return [(call["name"], call["args"]) for event in events for call in event.function_calls()]


def answered(events: Sequence[Event]) -> list[JsonObject]:
    """Return the answers of tools and people, in the order of the events."""
    return [response["response"] for event in events for response in event.function_responses()]


def texts(events: Sequence[Event]) -> list[str]:
    """Return the texts of agents."""
    return [text for event in events if event.author != "user" and (text := text_of(event.content))]
