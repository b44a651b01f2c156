"""What authors and clients import."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import waystation

SOURCE = ast.parse(Path(waystation.__file__).read_text())
ROOT = Path(waystation.__file__).parent

# Each line as an author has it after replacing `google.adk` by `waystation`.
ADK_IMPORTS = [
    "from waystation.agents import Agent, BaseAgent, LlmAgent",
    "from waystation.agents.llm_agent import Agent, LlmAgent",
    "from waystation.agents.callback_context import CallbackContext",
    "from waystation.events import Event, EventActions",
    "from waystation.events.event import Event",
    "from waystation.events.event_actions import EventActions",
    "from waystation.models import BaseLlm, LlmRequest, LlmResponse",
    "from waystation.tools import AgentTool, BaseTool, FunctionTool, LongRunningFunctionTool, ToolContext",
    "from waystation.tools.agent_tool import AgentTool",
    "from waystation.tools.base_tool import BaseTool",
    "from waystation.tools.function_tool import FunctionTool",
    "from waystation.tools.long_running_tool import LongRunningFunctionTool",
    "from waystation.tools.tool_context import ToolContext",
]


@pytest.mark.parametrize("name", waystation.__all__)
def test_every_public_name_exists_and_is_the_one_of_its_module(name: str) -> None:
    """What `__getattr__` finds is what type checkers were promised."""
    promised = {
        alias.name: node.module for node in ast.walk(SOURCE) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    module = promised[name]
    assert module is not None
    assert getattr(waystation, name) is getattr(importlib.import_module(module), name)


def test_the_lists_of_public_names_agree() -> None:
    """`__all__`, the table of modules and the imports for type checkers."""
    assert waystation.__all__ == sorted(set(waystation.__all__))
    assert set(waystation._MODULE_OF) == set(waystation.__all__)
    assert set(waystation.__all__) <= set(dir(waystation))


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As for any module, so that `hasattr` and the import system work."""
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        _ = waystation.Agnet  # type: ignore[attr-defined]  # which is the point
    with pytest.raises(ImportError):
        exec("from waystation import Agnet")


@pytest.mark.parametrize("line", ADK_IMPORTS)
def test_imports_of_adk_work_under_our_name(line: str) -> None:
    """And give the objects of the flat list."""
    found: dict[str, object] = {}
    exec(line, found)
    for name in found.keys() - {"__builtins__"}:
        assert found[name] is getattr(waystation, name)


def test_everything_can_be_imported_at_once() -> None:
    """In a process of its own, where nothing is loaded yet."""
    subprocess.run([sys.executable, "-c", "from waystation import *; Agent, AgentClient"], check=True, cwd=ROOT.parent)
