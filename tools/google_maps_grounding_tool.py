"""Google Maps, run by Vertex AI."""

from waystation.tools import NativeTool


class GoogleMapsGroundingTool(NativeTool):
    """Grounding with Google Maps. Vertex AI only."""

    name = "google_maps"
    title = "Google maps tool"
    tool = {"googleMaps": {}}


google_maps_grounding = GoogleMapsGroundingTool()
