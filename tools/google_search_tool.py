"""Google Search, run by the model's provider."""

from waystation.tools import NativeTool, refuse_bypass


class GoogleSearchTool(NativeTool):
    """Google Search, of which the model makes use by itself; the reply says what it found in `grounding_metadata`."""

    name = "google_search"
    title = "Google search tool"
    tool = {"googleSearch": {}}

    def __init__(self, *, bypass_multi_tools_limit: bool = False, model: str | None = None) -> None:
        """With `model`, requests of the agent go to that model.

        Raises:
            ValueError: `bypass_multi_tools_limit` is asked for.
        """
        super().__init__()
        refuse_bypass(bypass_multi_tools_limit, self.name)
        self.model = model


google_search = GoogleSearchTool()
