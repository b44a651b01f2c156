"""Where author code raised, as logs and errors name it."""

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

from waystation.tools.function_tool import FunctionTool
from waystation.tools.places import find_author_line
from waystation.tools.tool_context import ToolContext


def own() -> None:
    """Raise here."""
    raise ValueError("here")


def library() -> None:
    """Raise in a library."""
    json.loads("fine")


def leaving() -> None:
    """Raise what is turned into an ordinary exception."""
    raise SystemExit(3)


async def wrong(tool_context: ToolContext) -> None:
    """Raise in a method of the context."""
    await tool_context.load_artifact(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [own, library, leaving, wrong])
async def test_it_is_the_authors_last_line(function: Callable[..., Any]) -> None:
    """Not the line of Python, of a package or of ours at which it was noticed."""
    with pytest.raises(Exception, match=r"\w") as raised:
        await FunctionTool(function).run_async(args={}, tool_context=ToolContext())
    line = inspect.getsourcelines(function)[1] + 2
    assert find_author_line(raised.value) == f"{__file__}:{line}"


def test_what_was_never_raised_has_no_place() -> None:
    """Such as an exception that a tool returns."""
    assert find_author_line(ValueError("x")) is None
