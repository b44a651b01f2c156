"""The base of tools that need a credential, and get it before they run. Source: adk-semantics 11.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from waystation.core.errors import InvalidTool
from waystation.core.naming import a
from waystation.core.payload import JsonObject
from waystation.tools.base_tool import BaseTool
from waystation.tools.tool_context import ToolContext

if TYPE_CHECKING:
    from waystation.auth.auth_credential import AuthCredential
    from waystation.auth.auth_tool import AuthConfig
    from waystation.auth.credential_manager import CredentialManager

log = structlog.get_logger(__name__)


PENDING = "Pending User Authorization."
"""ADK's wire literal."""


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
        self._manager = credential_manager(name, auth_config)
        self._response_for_auth_required = response_for_auth_required

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Do the work with the credential, or have the user asked for it."""
        credential = None
        if self._manager is not None:
            credential = await obtain_credential(self._manager, tool_context)
            if credential is None:
                return self._response_for_auth_required or PENDING
        return await self._run_async_impl(args=args, tool_context=tool_context, credential=credential)

    async def _run_async_impl(
        self, *, args: JsonObject, tool_context: ToolContext, credential: AuthCredential | None
    ) -> Any:
        """Do the work; `credential` is None only for a tool without a configuration."""
        raise NotImplementedError(f"{type(self).__name__} has no _run_async_impl; define it.")


def credential_manager(tool: str, auth_config: AuthConfig | None) -> CredentialManager | None:
    if auth_config is None:
        log.warning("authentication.missing", tool=tool, problem="no auth_config is given; it runs without credential")
        return None
    from waystation.auth.auth_tool import AuthConfig
    from waystation.auth.credential_manager import CredentialManager

    if not isinstance(auth_config, AuthConfig):
        raise InvalidTool(tool, f"`auth_config` is {a(auth_config)}; give an AuthConfig.")
    try:
        return CredentialManager(auth_config)
    except ValueError as error:
        raise InvalidTool(tool, str(error)) from None


async def obtain_credential(manager: CredentialManager, context: ToolContext) -> AuthCredential | None:
    """Return the credential; None when the user has been asked for it."""
    credential = await manager.get_auth_credential(context)
    if credential is None:
        await manager.request_credential(context)
    else:
        context.note_credential(credential)
    return credential
