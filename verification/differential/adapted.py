"""Set up google-adk to do what Waystation does by default, so that everything else can be compared.

If ADK has a setting for the behavior of a deviation, it is used, and no assumption about the consequences is needed.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Settings:
    """The settings of ADK's app."""

    resumable: bool = False


@contextmanager
def adapted(root: Any, deviations: Mapping[str, Any]) -> Iterator[Settings]:
    """Set up the agents below `root` while the block runs."""
    settings = Settings(resumable="one-rule-for-batches" in deviations)
    with ExitStack() as stack:
        if "tool-errors-are-told" in deviations:
            for agent in _tree(root):
                agent.on_tool_error_callback = _tell
        if "arguments-are-validated" in deviations:
            from google.adk.features import FeatureName
            from google.adk.features._feature_registry import temporary_feature_override

            stack.enter_context(temporary_feature_override(FeatureName.FUNCTION_TOOL_ARG_VALIDATION, True))
        yield settings


def _tell(tool: Any, args: Any, tool_context: Any, error: Exception) -> dict[str, str]:
    return {"error": str(error) or type(error).__name__, "error_type": type(error).__name__}


def _tree(root: Any) -> Iterator[Any]:
    """Yield every LLM agent below `root`, including agents that are called as tools."""
    if hasattr(root, "on_tool_error_callback"):
        yield root
    for below in getattr(root, "sub_agents", ()):
        yield from _tree(below)
    for tool in getattr(root, "tools", ()):
        if hasattr(tool, "agent"):
            yield from _tree(tool.agent)
