"""Tools for services that have an OpenAPI specification. Requires the optional extra `openapi`."""

try:
    from waystation.tools.openapi_tool.openapi_spec_parser.openapi_toolset import OpenAPIToolset
    from waystation.tools.openapi_tool.openapi_spec_parser.rest_api_tool import RestApiTool
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    raise ImportError(f"OpenAPIToolset needs the package `{package}`; install `waystation[openapi]`.") from error

__all__ = ["OpenAPIToolset", "RestApiTool"]
