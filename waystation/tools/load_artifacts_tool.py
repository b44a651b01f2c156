"""Where ADK has `google.adk.tools.load_artifacts_tool`."""

from tools.artifact_tools import LoadArtifactsTool, load_artifacts_tool

__all__ = ["LoadArtifactsTool", "load_artifacts_tool"]
