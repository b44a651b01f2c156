"""Tools that need a credential, and get it before they run. Source: adk-semantics 11.2."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from tools.base import BaseTool
from tools.calling import invoke
from tools.context import ToolContext
from tools.function_tool import ArgumentsRefused, FunctionTool
from tools.signature import Signature
from waystation.core.errors import InvalidTool
from waystation.core.naming import a
from waystation.core.payload import JsonObject

if TYPE_CHECKING:
    from tools.auth.config import AuthConfig
    from tools.auth.credential import AuthCredential
    from tools.auth.manager import CredentialManager

log = structlog.get_logger(__name__)

PENDING = "Pending User Authorization."
"""ADK's wire literal."""
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
        self._manager = _manager(self.name, auth_config)
        self._response_for_auth_required = response_for_auth_required

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
        credential = None
        if self._manager is not None:
            credential = await _obtained(self._manager, tool_context)
            if credential is None:
                return self._response_for_auth_required or PENDING
        if _PARAMETER in self.signature.python.parameters:
            prepared[_PARAMETER] = credential
        return await invoke(self.func, self.signature.bound(prepared, tool_context))


class BaseAuthenticatedTool(BaseTool):
    """A tool of your own that needs a credential: do the work in `_run_async_impl`, which is given it."""

    def __init__(
        self,
        *,
        name: str,
        description: str,
        auth_config: AuthConfig | None = None,
        response_for_auth_required: JsonObject | str | None = None,
    ) -> None:
        """`response_for_auth_required` is what the model reads while the user is asked.

        Raises:
            InvalidTool: The configuration can never give a credential.
        """
        super().__init__(name=name, description=description)
        self._auth_config = auth_config
        self._manager = _manager(name, auth_config)
        self._response_for_auth_required = response_for_auth_required

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Do the work with the credential, or have the user asked for it."""
        credential = None
        if self._manager is not None:
            credential = await _obtained(self._manager, tool_context)
            if credential is None:
                return self._response_for_auth_required or PENDING
        return await self._run_async_impl(args=args, tool_context=tool_context, credential=credential)

    async def _run_async_impl(
        self, *, args: JsonObject, tool_context: ToolContext, credential: AuthCredential | None
    ) -> Any:
        """Do the work; `credential` is None only for a tool without a configuration."""
        raise NotImplementedError(f"{type(self).__name__} has no _run_async_impl; define it.")


def _manager(tool: str, auth_config: AuthConfig | None) -> CredentialManager | None:
    if auth_config is None:
        log.warning("authentication.missing", tool=tool, problem="no auth_config is given; it runs without credential")
        return None
    from tools.auth.config import AuthConfig
    from tools.auth.manager import CredentialManager

    if not isinstance(auth_config, AuthConfig):
        raise InvalidTool(tool, f"`auth_config` is {a(auth_config)}; give an AuthConfig.")
    try:
        return CredentialManager(auth_config)
    except ValueError as error:
        raise InvalidTool(tool, str(error)) from None


async def _obtained(manager: CredentialManager, context: ToolContext) -> AuthCredential | None:
    """Return the credential; None when the user has been asked for it."""
    credential = await manager.get_auth_credential(context)
    if credential is None:
        await manager.request_credential(context)
    else:
        context.note_credential(credential)
    return credential
