"""A toolset that offers the operations of a service with an OpenAPI specification."""

import asyncio
import ssl
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, Self

import httpx2

from waystation.core.contract import Effect
from waystation.core.errors import InvalidTool
from waystation.core.payload import JsonObject
from waystation.tools import BaseToolset, ReadonlyContext, ToolPredicate, authentication_problems
from waystation.tools.openapi_tool.openapi_spec_parser.destination import place_of
from waystation.tools.openapi_tool.openapi_spec_parser.rest_api_tool import RestApiTool, RestSettings
from waystation.tools.openapi_tool.openapi_spec_parser.specification import is_absolute, load, operations_of, to_plain


class OpenAPIToolset(BaseToolset):
    """A toolset with one tool for each operation in an OpenAPI specification.

    By default, requests go only to the servers in the specification, and not to private networks. Redirects are not
    followed.

    Args:
        spec_dict: The specification as a dictionary, in OpenAPI 3.0 or 3.1.
        spec_str: The specification as a string. Ignored if `spec_dict` is given.
        spec_str_type: The format of `spec_str`.
        auth_scheme: The service's security scheme. Defaults to the scheme that each operation declares.
        auth_credential: The credential for the service, or a mapping with a credential for each security scheme, by the
            scheme's name, for operations that require several together. The user is asked for one that is None.
        credential_key: Key under which the credential service stores the user's credential.
        tool_filter: Names of the tools to offer, without the prefix, or a function that decides for each tool.
        tool_name_prefix: Prefix for all tool names. An underscore separates the prefix and the name.
        ssl_verify: Whether to verify certificates, or an SSL context or path with the certificate authorities to trust.
        header_provider: A sync or async function that returns additional headers for a context.
        httpx_client_factory: Creates a new client for each request.
        preserve_property_names: Whether models see the service's parameter names instead of snake-case names.
        allow_private_network_access: Whether requests may go to private networks and to the worker's own machine.
        server_url: Base URL for all requests, in place of the specification's first server.
        allowed_hosts: The allowed hosts, with or without ports, in place of those in the specification. They may be in
            private networks.
        require_confirmation: Whether an approver must confirm each call, or a function that decides this for a call.
            The function receives the arguments that match its parameter names.
        idempotency_header: Header that the service reads an idempotency key from, such as `Idempotency-Key`.
        effect: What happens if a call runs twice, for all tools or by tool name. By default, this depends on the HTTP
            method: GET, HEAD, OPTIONS and TRACE are `read`; PUT and DELETE are `repeatable`; the others are `once`, or
            `repeatable` if `idempotency_header` is set.

    Raises:
        InvalidTool: The specification is not usable. The message says where the problem is.
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
            raise InvalidTool("OpenAPIToolset", "the specification is missing; pass `spec_dict` or `spec_str`.")
        try:
            document = to_plain(spec_dict) if spec_dict else load(spec_str or "", spec_str_type)
            operations = operations_of(document, server=server_url, preserve_names=preserve_property_names)
        except RecursionError:
            raise InvalidTool("OpenAPIToolset", "the specification is nested too deeply.") from None
        named = {place.lower() for place in allowed_hosts or ()}
        # A request goes only to its operation's server.
        declared = {place_of(operation.server) for operation in operations if is_absolute(operation.server)}
        settings = RestSettings(
            allowed=named if allowed_hosts is not None else declared,
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
        self._tools = [RestApiTool(operation, settings, *self._auth) for operation in operations]

    @classmethod
    async def create(cls, **options: Any) -> Self:
        """Create a toolset without blocking the event loop, in a thread.

        Use this method in code that runs in a worker, such as the `get_tools` of your own toolset: to parse a large
        specification can take seconds, during which the worker could neither send heartbeats nor accept answers.

        Args:
            options: The arguments of the class.

        Raises:
            InvalidTool: The specification is not usable. The message says where the problem is.
        """
        return await asyncio.to_thread(cls, **options)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[RestApiTool]:
        """Return a tool for each operation that `tool_filter` selects."""
        return [tool for tool in self._tools if self._is_tool_selected(tool, readonly_context)]

    def get_tool(self, tool_name: str) -> RestApiTool | None:
        """Return a tool by its name without the prefix, or None if it does not exist."""
        return next((tool for tool in self._tools if tool.name == tool_name), None)

    def setting_problems(self) -> list[str]:
        """Return one sentence for each problem with the settings or the specification."""
        # A function may need a context to decide.
        by_name = isinstance(self.tool_filter, Collection)
        tools = [tool for tool in self._tools if not by_name or self._is_tool_selected(tool, None)]
        places: dict[str, list[str]] = {}
        for tool in tools:
            for text in tool.setting_problems():
                places.setdefault(text, []).append(tool.name)
        of_tools = (
            f"in operation {names[0]!r}{f' and {len(names) - 1} more' if names[1:] else ''}: {text}"
            for text, names in places.items()
        )
        return [*super().setting_problems(), *authentication_problems(*self._auth), *of_tools]
