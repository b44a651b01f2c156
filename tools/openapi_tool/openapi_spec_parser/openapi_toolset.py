"""The operations of a service that describes itself with OpenAPI. Source: adk-semantics 10."""

import ssl
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import httpx2

from waystation.agents import ReadonlyContext
from waystation.core import Effect, InvalidTool, JsonObject
from waystation.tools import BaseToolset, ToolPredicate, authentication_problems
from waystation.tools.openapi_tool.openapi_spec_parser.destination import place_of
from waystation.tools.openapi_tool.openapi_spec_parser.rest_api_tool import RestApiTool, Settings
from waystation.tools.openapi_tool.openapi_spec_parser.specification import is_absolute, load, operations_of, servers_of


class OpenAPIToolset(BaseToolset):
    """One tool for each operation of a specification.

    Requests go only to the hosts of the specification's servers, follow no redirects, and do not enter private networks
    unless the author says so.

    Args:
        spec_dict: The specification, of OpenAPI 3.0 or 3.1.
        spec_str: The same as text, unless `spec_dict` is given.
        spec_str_type: What that text is.
        auth_scheme: How the service wants to be authenticated; by default as each operation says.
        auth_credential: What it is given.
        credential_key: Under which name a user's credential is kept.
        tool_filter: Names, without prefix, of the tools to offer, or a function that decides.
        tool_name_prefix: What the names of all tools begin with; an underscore follows it.
        ssl_verify: Whether certificates are checked, or the authorities by which they are.
        header_provider: Returns further headers for the context, sync or async.
        httpx_client_factory: Returns a new client for each request.
        preserve_property_names: Whether models call parameters as the service does, not in snake case.
        allow_private_network_access: Whether requests may go into private networks and to this machine.
        server_url: Where requests go, instead of the specification's first server.
        allowed_hosts: Hosts, with or without ports, to which requests may go, instead of the specification's. They
            may be private.
        require_confirmation: Whether a person has to agree before a call runs, or a function that decides it from
            those of the arguments that it takes.
        idempotency_header: Name of the header, such as `Idempotency-Key`, in which the service takes a key by which
            it recognises a repetition.
        effect: What a repetition of a call does, for all tools or by name; by default as HTTP has it: GET and HEAD
            read, PUT and DELETE are repeatable, the others happen once.

    Raises:
        InvalidTool: The specification cannot be used; the message says where.
    """

    def __init__(
        self,
        *,
        spec_dict: JsonObject | None = None,
        spec_str: str | None = None,
        spec_str_type: Literal["json", "yaml"] = "json",
        auth_scheme: Any = None,
        auth_credential: Any = None,
        credential_key: str | None = None,
        tool_filter: ToolPredicate | Collection[str] | None = None,
        tool_name_prefix: str | None = None,
        ssl_verify: bool | str | ssl.SSLContext | None = None,
        header_provider: Callable[[ReadonlyContext], Any] | None = None,
        httpx_client_factory: Callable[[], httpx2.AsyncClient] | None = None,
        preserve_property_names: bool = False,
        allow_private_network_access: bool = False,
        server_url: str | None = None,
        allowed_hosts: Collection[str] | None = None,
        require_confirmation: bool | Callable[..., Any] = False,
        idempotency_header: str | None = None,
        effect: Effect | Mapping[str, Effect] | None = None,
    ) -> None:
        super().__init__(tool_filter=tool_filter, tool_name_prefix=tool_name_prefix)
        if spec_dict is None and spec_str is None:
            raise InvalidTool("OpenAPIToolset", "there is no specification; give `spec_dict` or `spec_str`.")
        document = spec_dict if spec_dict else load(spec_str or "", spec_str_type)
        operations = operations_of(document, server=server_url, preserve_names=preserve_property_names)
        named = {place.lower() for place in allowed_hosts or ()}
        servers = [server_url] if server_url is not None else list(servers_of(document))
        own = {place_of(server) for server in servers if is_absolute(server)}
        settings = Settings(
            allowed=named if allowed_hosts is not None else own,
            named=named,
            private=allow_private_network_access,
            verify=True if ssl_verify is None else ssl_verify,
            header_provider=header_provider,
            client_factory=httpx_client_factory,
            require_confirmation=require_confirmation,
            idempotency_header=idempotency_header,
            effect=effect,
        )
        self._auth = (auth_scheme, auth_credential, credential_key)
        self._tools = [RestApiTool(operation, settings) for operation in operations]
        for tool in self._tools:
            if auth_scheme is not None:
                tool.configure_auth_scheme(auth_scheme)
            tool.configure_auth_credential(auth_credential)
            tool.configure_credential_key(credential_key)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[RestApiTool]:
        """Return a tool for each operation that the filter lets through."""
        return [tool for tool in self._tools if self._is_tool_selected(tool, readonly_context)]

    def get_tool(self, tool_name: str) -> RestApiTool | None:
        """Return a tool by its name, without prefix."""
        return next((tool for tool in self._tools if tool.name == tool_name), None)

    def setting_problems(self) -> list[str]:
        """Return what is wrong with the settings and the specification, one sentence each."""
        of_tools = (f"in operation {tool.name!r}: {text}" for tool in self._tools for text in tool.setting_problems())
        return [*super().setting_problems(), *authentication_problems(*self._auth), *of_tools]
