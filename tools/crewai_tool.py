"""Wrap CrewAI tools. This module does not import crewai itself, because the wrapped tool already has."""

from typing import Any

from waystation.tools.framework_tool import FrameworkTool


class CrewaiTool(FrameworkTool):
    """A tool that wraps a CrewAI tool."""

    def __init__(self, tool: Any, *, name: str, description: str = "") -> None:
        """Wrap `tool`.

        Args:
            tool: A `crewai.tools.BaseTool`.
            name: The name that models see. If empty, the CrewAI tool's name in lower case, with spaces replaced by
                underscores.
            description: The description that models see. If empty, the CrewAI tool's description.

        Raises:
            ValueError: `tool` is not a CrewAI tool.
        """
        if isinstance(tool, type):
            raise ValueError(f"{tool.__name__} is a class; wrap an instance: CrewaiTool({tool.__name__}(…), …).")
        if not all(hasattr(tool, attribute) for attribute in ("run", "name", "description", "args_schema")):
            raise ValueError(f"{type(tool).__name__!r} is not a CrewAI tool; wrap a `crewai.tools.BaseTool`.")
        super().__init__(
            tool.run,
            name=name or tool.name.replace(" ", "_").lower(),
            description=description or tool.description,
            schema=tool.args_schema.model_json_schema(),
            arguments=tool.args_schema,
        )
        self.tool = tool
