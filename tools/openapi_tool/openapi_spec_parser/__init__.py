"""Create tools from an OpenAPI specification, as in ADK's `google.adk.tools.openapi_tool.openapi_spec_parser`."""

from waystation.tools.openapi_tool.openapi_spec_parser.openapi_toolset import OpenAPIToolset
from waystation.tools.openapi_tool.openapi_spec_parser.rest_api_tool import RestApiTool

__all__ = ["OpenAPIToolset", "RestApiTool"]
