"""Where ADK has `google.adk.tools.openapi_tool.openapi_spec_parser.openapi_toolset`."""

from tools.openapi import OpenAPIToolset

__all__ = ["OpenAPIToolset"]
