"""Tools of services that describe themselves with OpenAPI. Needs the extra `openapi`."""

from waystation.tools.openapi_tool.openapi_spec_parser.openapi_toolset import OpenAPIToolset
from waystation.tools.openapi_tool.openapi_spec_parser.rest_api_tool import RestApiTool

__all__ = ["OpenAPIToolset", "RestApiTool"]
