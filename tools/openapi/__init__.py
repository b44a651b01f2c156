"""Tools of services that describe themselves with OpenAPI. Needs the extra `openapi`."""

from tools.openapi.tool import RestApiTool
from tools.openapi.toolset import OpenAPIToolset

__all__ = ["OpenAPIToolset", "RestApiTool"]
