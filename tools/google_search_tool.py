"""Google Search, run by Gemini's provider."""

from waystation.tools import NativeTool, refuse_bypass


class GoogleSearchTool(NativeTool):
    """Google Search, run by the provider. The reply lists the results in `grounding_metadata`."""

    name = "google_search"
    title = "Google search tool"
    tool = {"googleSearch": {}}

    def __init__(self, *, bypass_multi_tools_limit: bool = False, model: str | None = None) -> None:
        """With `model`, the agent's requests go to that model.

        Raises:
            ValueError: `bypass_multi_tools_limit` is True, which is not supported.
        """
        super().__init__()
        refuse_bypass(bypass_multi_tools_limit, self.name)
        self.model = model


google_search = GoogleSearchTool()
