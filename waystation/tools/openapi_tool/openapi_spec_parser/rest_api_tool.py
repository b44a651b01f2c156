"""Where ADK has `google.adk.tools.openapi_tool.openapi_spec_parser.rest_api_tool`."""

from tools.openapi import RestApiTool

__all__ = ["RestApiTool"]
