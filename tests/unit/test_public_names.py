"""The public names that authors and clients import."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import waystation

SOURCE = ast.parse(Path(waystation.__file__ + "i").read_text())
ROOT = Path(waystation.__file__ + "i").parent
# `rglob` does not follow the links at the top level.
STUBS = sorted({*ROOT.glob("__init__.pyi"), *ROOT.glob("*/__init__.pyi"), *ROOT.glob("*/*/__init__.pyi")})

# Each line of an author after replacing `google.adk` by `waystation`.
ADK_IMPORTS = [
    "from waystation.agents import Agent, BaseAgent, LlmAgent",
    "from waystation.agents.llm_agent import Agent, LlmAgent",
    "from waystation.agents import LoopAgent, ParallelAgent, RunConfig, SequentialAgent",
    "from waystation.agents.base_agent import BaseAgent",
    "from waystation.agents.callback_context import CallbackContext",
    "from waystation.agents.loop_agent import LoopAgent",
    "from waystation.agents.parallel_agent import ParallelAgent",
    "from waystation.agents.readonly_context import ReadonlyContext",
    "from waystation.agents.run_config import RunConfig",
    "from waystation.agents.sequential_agent import SequentialAgent",
    "from waystation.agents.context_cache_config import ContextCacheConfig",
    "from waystation.apps import App, ResumabilityConfig",
    "from waystation.apps.app import App, EventsCompactionConfig, ResumabilityConfig",
    "from waystation.apps.base_events_summarizer import BaseEventsSummarizer",
    "from waystation.apps.llm_event_summarizer import LlmEventSummarizer",
    "from waystation.code_executors import BuiltInCodeExecutor",
    "from waystation.events import Event, EventActions",
    "from waystation.events.event import Event",
    "from waystation.events.event_actions import EventActions, EventCompaction",
    "from waystation.models import BaseLlm, LlmRequest, LlmResponse",
    "from waystation.models import Gemini",
    "from waystation.models.base_llm import BaseLlm",
    "from waystation.models.google_llm import Gemini",
    "from waystation.models.llm_response import LlmResponse",
    "from waystation.plugins import BasePlugin, ReflectAndRetryToolPlugin",
    "from waystation.plugins.base_plugin import BasePlugin",
    "from waystation.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin, TrackingScope",
    "from waystation.runners import Runner",
    "from waystation.tools import AgentTool, BaseTool, FunctionTool, LongRunningFunctionTool, ToolContext",
    "from waystation.tools.agent_tool import AgentTool",
    "from waystation.tools.base_tool import BaseTool",
    "from waystation.tools.base_toolset import BaseToolset",
    "from waystation.tools.function_tool import FunctionTool",
    "from waystation.tools.long_running_tool import LongRunningFunctionTool",
    "from waystation.tools.tool_confirmation import ToolConfirmation",
    "from waystation.tools.tool_context import ToolContext",
    "from waystation.tools import exit_loop, get_user_choice, request_input",
    "from waystation.tools import enterprise_web_search, google_maps_grounding, google_search, url_context",
    "from waystation.tools import VertexAiSearchTool",
    "from waystation.tools import load_artifacts, load_memory, preload_memory",
    "from waystation.tools.crewai_tool import CrewaiTool",
    "from waystation.tools.enterprise_search_tool import EnterpriseWebSearchTool",
    "from waystation.tools.exit_loop_tool import exit_loop",
    "from waystation.tools.google_maps_grounding_tool import GoogleMapsGroundingTool, google_maps_grounding",
    "from waystation.tools.google_search_tool import GoogleSearchTool, google_search",
    "from waystation.tools.built_in_code_execution_tool import built_in_code_execution",
    "from waystation.tools.langchain_tool import LangchainTool",
    "from waystation.tools.retrieval.vertex_ai_rag_retrieval import VertexAiRagRetrieval",
    "from waystation.tools.url_context_tool import UrlContextTool, url_context",
    "from waystation.tools.vertex_ai_search_tool import VertexAiSearchTool",
    "from waystation.integrations.crewai import CrewaiTool",
    "from waystation.integrations.langchain import LangchainTool",
]

# Names of ADK programs that the flat list does not have.
PROGRAM_IMPORTS = [
    "from waystation.errors.already_exists_error import AlreadyExistsError",
    "from waystation.errors.session_not_found_error import SessionNotFoundError",
    "from waystation.runners import InMemoryRunner",
    "from waystation.sessions import BaseSessionService, DatabaseSessionService, InMemorySessionService",
    "from waystation.sessions import Session, State",
    "from waystation.sessions.base_session_service import GetSessionConfig, ListSessionsResponse",
    "from waystation.sessions.database_session_service import DatabaseSessionService",
    "from waystation.sessions.in_memory_session_service import InMemorySessionService",
    "from waystation.sessions.session import Session",
]


def test_every_public_name_is_that_of_its_module() -> None:
    """The value of `__getattr__` is the object that type checkers see."""
    promised = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(SOURCE)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(waystation.__all__) <= set(promised)
    others = []
    for name in waystation.__all__:
        module, source = promised[name]
        assert module is not None
        if getattr(waystation, name) is not getattr(importlib.import_module(module), source):
            others.append(name)
    assert others == []


def import_line(line: str) -> dict[str, object]:
    """Return the names that an import line contains."""
    names: dict[str, object] = {}
    try:
        exec(line, names)
    except ImportError as error:
        raise AssertionError(f"{line}: {error}") from error
    del names["__builtins__"]
    return names


def test_the_lists_of_public_names_agree() -> None:
    """`__all__` and `dir` list what can be imported."""
    assert waystation.__all__ == sorted(set(waystation.__all__))
    assert set(waystation.__all__) <= set(dir(waystation))


def test_an_unknown_name_is_an_attribute_error() -> None:
    """An unknown name raises AttributeError, so that `hasattr` and the import system work."""
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        _ = waystation.Agnet  # type: ignore[attr-defined]  # which is the point
    with pytest.raises(ImportError):
        exec("from waystation import Agnet")


def test_imports_of_adk_work_under_the_new_name() -> None:
    """The imported objects are those of the flat list."""
    others = []
    for line in ADK_IMPORTS:
        names = import_line(line)
        others += [(line, name) for name in names if names[name] is not getattr(waystation, name)]
    assert others == []


@pytest.mark.parametrize("line", PROGRAM_IMPORTS)
def test_imports_of_adk_programs_work_under_the_new_name(line: str) -> None:
    """Programs import more names than the flat list has."""
    assert import_line(line)


def test_arguments_of_callbacks_have_adks_names_in_adks_modules() -> None:
    """Callbacks receive a mutable request, unlike models, and one context class, as in ADK."""
    from waystation.agents.invocation_context import InvocationContext
    from waystation.models.llm_request import LlmRequest

    assert waystation.CallbackContext is InvocationContext
    assert callable(LlmRequest.append_instructions)


def test_all_names_can_be_imported_at_once() -> None:
    """All names are imported in a fresh process."""
    subprocess.run([sys.executable, "-c", "from waystation import *; Agent, AgentClient"], check=True, cwd=ROOT.parent)


def test_the_choice_of_a_user_is_a_function_and_a_tool_as_in_adk() -> None:
    """The package has the tool under the function's name; the module has both."""
    from waystation.tools.get_user_choice_tool import get_user_choice, get_user_choice_tool

    assert waystation.get_user_choice is get_user_choice_tool
    assert get_user_choice_tool.func is get_user_choice


def test_a_tool_with_two_names_in_adk_has_both() -> None:
    """The package has the tool under the short name; its module has it under the long one."""
    from waystation.tools.load_artifacts_tool import load_artifacts_tool
    from waystation.tools.load_memory_tool import load_memory_tool
    from waystation.tools.preload_memory_tool import preload_memory_tool

    assert waystation.load_artifacts is load_artifacts_tool
    assert waystation.load_memory is load_memory_tool
    assert waystation.preload_memory is preload_memory_tool


def test_services_have_the_modules_of_adk() -> None:
    """Services are in ADK's modules and, as in ADK, not in the flat list."""
    lines = [
        "from waystation.artifacts import BaseArtifactService, InMemoryArtifactService, ObjectStoreArtifactService",
        "from waystation.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService",
        "from waystation.artifacts.in_memory_artifact_service import InMemoryArtifactService",
        "from waystation.errors.input_validation_error import InputValidationError",
        "from waystation.memory import BaseMemoryService, InMemoryMemoryService, SqliteMemoryService",
        "from waystation.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse",
        "from waystation.memory.in_memory_memory_service import InMemoryMemoryService",
        "from waystation.memory.memory_entry import MemoryEntry",
    ]
    assert all(import_line(line) for line in lines)


def test_tools_and_callbacks_share_one_context_as_in_adk() -> None:
    """The class has three names, each in ADK's module."""
    from waystation.agents.callback_context import CallbackContext
    from waystation.agents.context import Context

    assert Context is CallbackContext is waystation.ToolContext


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_no_exported_name_is_a_module_of_its_package(stub: Path) -> None:
    """No exported name is a module, because importing the module would replace the name."""
    imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    assert {path.stem for path in stub.parent.iterdir()} & names == set()
