"""Function tools that receive a credential when they are called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.core.payload import JsonObject
from waystation.tools import ArgumentsRejected, FunctionTool, Signature, ToolContext, ToolCredential, invoke

if TYPE_CHECKING:
    from waystation.auth import AuthConfig, AuthCredential

_PARAMETER = "credential"


class AuthenticatedFunctionTool(FunctionTool):
    """A function tool that receives a credential in its `credential` parameter, which is hidden from the model.

    The function runs only once a credential is available. A complete credential in the configuration is used as is;
    tokens are fetched and refreshed automatically. If the credential is missing, the tool asks the user for it, and
    the model receives `response_for_auth_required`.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        auth_config: AuthConfig | JsonObject | None = None,
        response_for_auth_required: JsonObject | str | None = None,
        **settings: Any,
    ) -> None:
        """Wrap `func` and pass `settings` to `FunctionTool` as keyword arguments.

        Raises:
            InvalidTool: The configuration can never yield a credential, or a setting is invalid.
        """
        super().__init__(func, **settings)
        self._credential = ToolCredential(self.name, auth_config, response_for_auth_required)

    @functools.cached_property
    def signature(self) -> Signature:
        """The function's parameters, except for `credential`."""
        signature = Signature(self.func, self.name)
        signature.hide(_PARAMETER)
        return signature

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the function with the credential, or ask the user for the credential if it is missing.

        If the arguments are invalid, return the error without asking the user.
        """
        prepared = self._prepare(args)
        if isinstance(prepared, ArgumentsRejected):
            return prepared

        async def run(credential: AuthCredential | None) -> Any:
            if _PARAMETER in self.signature.python.parameters:
                prepared[_PARAMETER] = credential
            return await invoke(self.func, self.signature.bind(prepared, tool_context))

        return await self._credential.use(tool_context, run)
