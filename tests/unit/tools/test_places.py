"""Logs and errors name the line of author code that raised."""

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
    """Raise an exception that is converted to an ordinary one."""
    raise SystemExit(3)


async def wrong(tool_context: ToolContext) -> None:
    """Raise in a method of the context."""
    await tool_context.load_artifact(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [own, library, leaving, wrong])
async def test_the_line_is_the_authors_last_one(function: Callable[..., Any]) -> None:
    """The line is in author code, and not in Python, a package or Waystation."""
    with pytest.raises(Exception, match=r"\w") as raised:
        await FunctionTool(function).run_async(args={}, tool_context=ToolContext())
    line = inspect.getsourcelines(function)[1] + 2
    assert find_author_line(raised.value) == f"{__file__}:{line}"


def test_an_exception_that_was_not_raised_has_no_line() -> None:
    """An exception that a tool returns, for example, has no line."""
    assert find_author_line(ValueError("x")) is None
