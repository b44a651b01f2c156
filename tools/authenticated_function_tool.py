"""A function that needs a credential, and gets it before it runs. Source: adk-semantics 11.2."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.core import JsonObject
from waystation.tools import ArgumentsRefused, FunctionTool, Signature, ToolContext, ToolCredential, invoke

if TYPE_CHECKING:
    from waystation.auth import AuthConfig, AuthCredential

_PARAMETER = "credential"


class AuthenticatedFunctionTool(FunctionTool):
    """A function that needs a credential: its parameter `credential` receives one, and the model does not see it.

    The function runs only once the credential is there. A complete one in the configuration is used as it is, tokens
    are fetched and refreshed, and otherwise the user is asked, while the model reads `response_for_auth_required`.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        auth_config: AuthConfig | None = None,
        response_for_auth_required: JsonObject | str | None = None,
        **settings: Any,
    ) -> None:
        """Wrap `func`; `settings` are those of `FunctionTool`.

        Raises:
            InvalidTool: The configuration can never give a credential, or a setting has a wrong value.
        """
        super().__init__(func, **settings)
        self._credential = ToolCredential(self.name, auth_config, response_for_auth_required)

    @functools.cached_property
    def signature(self) -> Signature:
        """What the function takes, but for the credential."""
        signature = Signature(self.func, self.name)
        signature.leave_out(_PARAMETER)
        return signature

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the function with the credential, or have the user asked for it.

        Nobody is asked for a call whose arguments do not fit.
        """
        prepared = self._prepared(args)
        if isinstance(prepared, ArgumentsRefused):
            return prepared

        async def run(credential: AuthCredential | None) -> Any:
            if _PARAMETER in self.signature.python.parameters:
                prepared[_PARAMETER] = credential
            return await invoke(self.func, self.signature.bound(prepared, tool_context))

        return await self._credential.use(tool_context, run)
