"""Where ADK has `google.adk.tools.google_maps_grounding_tool`."""

from tools import GoogleMapsGroundingTool, google_maps_grounding

__all__ = ["GoogleMapsGroundingTool", "google_maps_grounding"]
