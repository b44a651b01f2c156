"""The names of ADK: which of them exist here, and what errors say about the others."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import waystation
from docs.adk_names import PAGE, find_state, parse_page
from waystation.adk_names import find_rule, import_name
from waystation.version import find_adk_problem

LISTED = parse_page(PAGE.read_text(encoding="utf-8"))
RULES = tomllib.loads((Path(waystation.__file__).parent / "adk_names.toml").read_text(encoding="utf-8"))
without_adk = pytest.mark.skipif(find_adk_problem() is None, reason="google-adk is installed")


def test_the_page_lists_the_state_of_each_name() -> None:
    """Run `python -m docs.adk_names` after changing public names or `adk_names.toml`."""
    assert len(LISTED) > 1_300
    assert {key: find_state(*key) for key in LISTED} == LISTED


def test_every_rule_matches_a_name() -> None:
    """A rule that matches no name of ADK is a mistake."""
    names = [f"{module}.{name}".removeprefix("google.adk.") for module, name in LISTED]
    rules = [*RULES["refused"], *RULES["extra"]["names"], *RULES["here"]["names"], *RULES["differs"]]
    assert [rule for rule in rules if not any(f"{name}.".startswith(f"{rule}.") for name in names)] == []


@without_adk
def test_names_of_google_adk_name_the_extra() -> None:
    """Covers modules that exist here, modules that do not, and modules below these."""
    for module, name in (
        ("planners", "PlanReActPlanner"),
        ("models.anthropic_llm", "ClaudeRequest"),
        ("errors", "NotFound"),
    ):
        with pytest.raises((ImportError, AttributeError)):
            import_name(f"waystation.{module}", name)
    for line in (
        "from waystation.planners import PlanReActPlanner",
        "from waystation.models.anthropic_llm import ClaudeRequest",
        "from waystation.tools import ExampleTool",
        "from waystation.code_executors import UnsafeLocalCodeExecutor",
        "from waystation.plugins import LoggingPlugin",
        "from waystation.tools.bigquery.config import WriteMode",
        "import waystation.tools.toolbox_toolset",
    ):
        with pytest.raises(ImportError, match=r"is a name of google-adk\. .* pip install 'waystation\[adk\]'"):
            exec(line)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("from waystation.sessions import VertexAiSessionService", "Use DatabaseSessionService"),
        ("from waystation.tools import transfer_to_agent", "Set `tool_context.actions.transfer_to_agent`"),
        ("from waystation.plugins import ToolResultClassifier", "Import it from google.adk"),
        ("import waystation.evaluation.agent_evaluator", "compare recorded histories"),
        ("from waystation import Workflow", "combine SequentialAgent"),
    ],
)
def test_refused_names_have_a_reason(line: str, remedy: str) -> None:
    """The error names what to use instead."""
    with pytest.raises(ImportError, match=remedy):
        exec(line)


def test_refused_names_in_modules_that_exist_are_import_errors() -> None:
    """No name that is listed as refused can be imported."""
    importable = []
    for (module, name), state in LISTED.items():
        path = "waystation" if module == "google.adk" else f"waystation.{module}"
        try:
            if state == "refused" and hasattr(importlib.import_module(path), name):
                importable.append((module, name))
        except ImportError:
            continue
    assert importable == []


def test_other_unknown_names_are_ordinary_errors() -> None:
    """A misspelled name does not get the reason of an ADK name."""
    assert find_rule("tools.FunctonTool") is None
    with pytest.raises(ImportError, match="cannot import name 'FunctonTool'"):
        exec("from waystation.tools import FunctonTool")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'waystation\.tols'"):
        importlib.import_module("waystation.tols")


def test_importing_the_package_does_not_read_the_list() -> None:
    """Reads the list when a name is missing, but not when a module is."""
    code = (
        "import sys, waystation.agents; from waystation import Agent; from waystation.core import ids; "
        "print('tomllib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
