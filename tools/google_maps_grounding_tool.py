"""The built-in tool for grounding with Google Maps on Vertex AI."""

from waystation.tools import NativeTool


class GoogleMapsGroundingTool(NativeTool):
    """A built-in tool for grounding with Google Maps. Available only on Vertex AI."""

    name = "google_maps"
    title = "Google maps tool"
    tool = {"googleMaps": {}}


google_maps_grounding = GoogleMapsGroundingTool()
