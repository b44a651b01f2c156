"""CrewAI's tools. Nothing here imports crewai: who has one of its tools has imported it."""

from typing import Any

from waystation.tools.framework_tool import FrameworkTool


class CrewaiTool(FrameworkTool):
    """A CrewAI tool as a tool of an agent."""

    def __init__(self, tool: Any, *, name: str, description: str = "") -> None:
        """Wrap `tool`.

        Args:
            tool: A `crewai.tools.BaseTool`.
            name: How models call it; when empty, the tool's own name in lower case, with `_` for spaces.
            description: What models are told; when empty, what the tool says about itself.

        Raises:
            ValueError: It is none.
        """
        if isinstance(tool, type):
            raise ValueError(f"{tool.__name__} is a class; wrap an object of it: CrewaiTool({tool.__name__}(…), …).")
        if not all(hasattr(tool, each) for each in ("run", "name", "description", "args_schema")):
            raise ValueError(
                f"CrewaiTool is given {type(tool).__name__!r}, which is no tool of CrewAI; wrap a "
                "`crewai.tools.BaseTool`."
            )
        super().__init__(
            tool.run,
            name=name or tool.name.replace(" ", "_").lower(),
            description=description or tool.description,
            schema=tool.args_schema.model_json_schema(),
            arguments=tool.args_schema,
        )
        self.tool = tool
