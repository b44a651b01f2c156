"""Functions that receive a credential before they run. Source: adk-semantics 11.2."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.core import JsonObject
from waystation.tools import ArgumentsRejected, FunctionTool, Signature, ToolContext, ToolCredential, invoke

if TYPE_CHECKING:
    from waystation.auth import AuthConfig, AuthCredential

_PARAMETER = "credential"


class AuthenticatedFunctionTool(FunctionTool):
    """A function whose parameter `credential` receives a credential. The model does not see that parameter.

    The function runs only with a credential. A complete credential in the configuration is used unchanged; tokens are
    fetched and refreshed. Otherwise the user is asked, and the model receives `response_for_auth_required`.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        auth_config: AuthConfig | None = None,
        response_for_auth_required: JsonObject | str | None = None,
        **settings: Any,
    ) -> None:
        """Wrap `func`; `settings` are the keyword arguments of `FunctionTool`.

        Raises:
            InvalidTool: The configuration can never provide a credential, or a setting is invalid.
        """
        super().__init__(func, **settings)
        self._credential = ToolCredential(self.name, auth_config, response_for_auth_required)

    @functools.cached_property
    def signature(self) -> Signature:
        """The parameters of the function, without the credential."""
        signature = Signature(self.func, self.name)
        signature.hide(_PARAMETER)
        return signature

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the function with the credential, or ask the user for it.

        A call with invalid arguments does not ask the user.
        """
        prepared = self._prepare(args)
        if isinstance(prepared, ArgumentsRejected):
            return prepared

        async def run(credential: AuthCredential | None) -> Any:
            if _PARAMETER in self.signature.python.parameters:
                prepared[_PARAMETER] = credential
            return await invoke(self.func, self.signature.bind(prepared, tool_context))

        return await self._credential.use(tool_context, run)
