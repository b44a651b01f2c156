"""Where ADK has `google.adk.tools.openapi_tool.openapi_spec_parser`."""

from tools.openapi import OpenAPIToolset, RestApiTool

__all__ = ["OpenAPIToolset", "RestApiTool"]
