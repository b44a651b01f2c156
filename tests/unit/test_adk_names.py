"""The names of ADK: which of them exist here, and what errors say about the areas that Waystation lacks."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import waystation
from docs.adk_names import PAGE, find_state, parse_page
from waystation.adk_names import FROM_ADK, find_rule, import_name
from waystation.version import find_adk_problem

LISTED = parse_page(PAGE.read_text(encoding="utf-8"))
RULES = tomllib.loads((Path(waystation.__file__).parent / "adk_names.toml").read_text(encoding="utf-8"))
without_adk = pytest.mark.skipif(find_adk_problem() is None, reason="google-adk is installed")


def test_the_page_lists_the_state_of_each_name() -> None:
    """The page is up to date; run `python -m docs.adk_names` after changing public names or `adk_names.toml`."""
    assert len(LISTED) > 500
    assert {key: find_state(*key) for key in LISTED} == LISTED


def test_every_rule_matches_a_name() -> None:
    """A rule that matches no name of ADK is a mistake."""
    names = [f"{module}.{name}".removeprefix("google.adk.") for module, name in LISTED]
    rules = [*RULES["extra"]["names"], *RULES["here"]["names"], *RULES["differs"]]
    assert [rule for rule in rules if not any(f"{name}.".startswith(f"{rule}.") for name in names)] == []


@without_adk
def test_names_of_google_adk_name_the_extra() -> None:
    """The error names the extra for modules that exist here, for others, and for modules below either."""
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
        with pytest.raises(
            ImportError, match=r"is a name of google-adk\. .* pip install 'waystation\[adk\]'.* unmodified"
        ):
            exec(line)


@pytest.mark.parametrize(
    ("line", "area", "remedy"),
    [
        ("from waystation.sessions import VertexAiSessionService", "session databases", "Use DatabaseSessionService"),
        ("import waystation.sessions.vertex_ai_session_service", "session databases", "Use DatabaseSessionService"),
        ("from waystation.tools import transfer_to_agent", "tools", "Set `tool_context.actions.transfer_to_agent`"),
        ("from waystation.plugins import ToolResultClassifier", "plugins", "Import it from google.adk"),
        ("import waystation.evaluation.agent_evaluator", "evaluation", "compare recorded histories"),
        ("from waystation.agents.langgraph_agent import LangGraphAgent", "agents with a loop", "a function tool"),
        ("from waystation import Workflow", "graph workflows", "Combine SequentialAgent"),
    ],
)
def test_areas_that_are_lacking_are_named(line: str, area: str, remedy: str) -> None:
    """The error names the area and the alternative, and says that agents of google-adk run as they are."""
    with pytest.raises(ImportError, match=f"lacks ADK's {area}.*{remedy}.* run unmodified with: pip install"):
        exec(line)


def test_nothing_in_an_area_that_is_lacking_can_be_imported() -> None:
    """No module or name of such an area can be imported, because the area would hide it."""
    paths = [path for area in RULES["areas"].values() for path in area["paths"]]
    hidden = [*RULES["here"]["names"], *(f"{module}.{name}" for module, name in LISTED)]
    assert [name for name in hidden for path in paths if find_rule(name) not in (None, FROM_ADK)] == []


def test_other_unknown_names_are_ordinary_errors() -> None:
    """A misspelled name does not get the reason of an ADK name."""
    assert find_rule("tools.FunctonTool") is None
    with pytest.raises(ImportError, match="cannot import name 'FunctonTool'"):
        exec("from waystation.tools import FunctonTool")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'waystation\.tols'"):
        importlib.import_module("waystation.tols")


def test_importing_the_package_does_not_read_the_list() -> None:
    """The list is read when a name is missing, but not when a module is."""
    code = (
        "import sys, waystation.agents; from waystation import Agent; from waystation.core import ids; "
        "print('tomllib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
