"""The built-in Google Search tool, which the model provider runs."""

from waystation.tools import NativeTool, refuse_bypass


class GoogleSearchTool(NativeTool):
    """A built-in tool that searches Google. The model's reply lists the results in `grounding_metadata`."""

    name = "google_search"
    title = "Google search tool"
    tool = {"googleSearch": {}}

    def __init__(self, *, bypass_multi_tools_limit: bool = False, model: str | None = None) -> None:
        """Initialize the tool.

        Args:
            bypass_multi_tools_limit: Not supported; must be False.
            model: The model to call instead of the agent's model.

        Raises:
            ValueError: `bypass_multi_tools_limit` is True.
        """
        super().__init__()
        refuse_bypass(bypass_multi_tools_limit, self.name)
        self.model = model


google_search = GoogleSearchTool()
