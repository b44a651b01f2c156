"""Where ADK has `google.adk.tools.openapi_tool`. Needs the extra `openapi`."""

from tools.openapi import OpenAPIToolset, RestApiTool

__all__ = ["OpenAPIToolset", "RestApiTool"]
