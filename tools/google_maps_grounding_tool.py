"""Google Maps, run by Vertex AI."""

from typing import TYPE_CHECKING

from waystation.tools.native_tool import NativeTool

if TYPE_CHECKING:
    pass


class GoogleMapsGroundingTool(NativeTool):
    """Google Maps; on Vertex AI."""

    title = "Google maps tool"
    tool = {"googleMaps": {}}

    def __init__(self) -> None:
        super().__init__(name="google_maps", description="google_maps")


google_maps_grounding = GoogleMapsGroundingTool()
