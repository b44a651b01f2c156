"""The base of tools that need a credential, and get it before they run. Source: adk-semantics 11.2."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog

from waystation.core import InvalidTool, JsonObject, a
from waystation.tools.base_tool import BaseTool
from waystation.tools.tool_context import ToolContext

if TYPE_CHECKING:
    from waystation.auth import AuthConfig, AuthCredential, CredentialManager

log = structlog.get_logger(__name__)


PENDING = "Pending User Authorization."
"""ADK's wire literal."""


class ToolCredential:
    """The credential of one tool, and what the model reads while the user is asked for it."""

    def __init__(self, tool: str, auth_config: AuthConfig | None, response: JsonObject | str | None) -> None:
        """Check the configuration.

        Raises:
            InvalidTool: It can never give a credential.
        """
        self._response = response or PENDING
        self._manager: CredentialManager | None = None
        if auth_config is None:
            problem = "no auth_config is given; it runs without credential"
            log.warning("authentication.missing", tool=tool, problem=problem)
            return
        from waystation.auth import AuthConfig, CredentialManager

        if not isinstance(auth_config, AuthConfig):
            raise InvalidTool(tool, f"`auth_config` is {a(auth_config)}; give an AuthConfig.")
        try:
            self._manager = CredentialManager(auth_config)
        except ValueError as error:
            raise InvalidTool(tool, str(error)) from None

    async def use(self, context: ToolContext, run: Callable[[AuthCredential | None], Awaitable[Any]]) -> Any:
        """Run something with the credential, which is None for a tool without one; or have the user asked for it."""
        if self._manager is None:
            return await run(None)
        credential = await self._manager.get_auth_credential(context)
        if credential is None:
            await self._manager.request_credential(context)
            return self._response
        context.note_credential(credential)
        return await run(credential)


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
        self._credential = ToolCredential(name, auth_config, response_for_auth_required)

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Do the work with the credential, or have the user asked for it."""

        async def run(credential: AuthCredential | None) -> Any:
            return await self._run_async_impl(args=args, tool_context=tool_context, credential=credential)

        return await self._credential.use(tool_context, run)

    async def _run_async_impl(
        self, *, args: JsonObject, tool_context: ToolContext, credential: AuthCredential | None
    ) -> Any:
        """Do the work; `credential` is None only for a tool without a configuration."""
        raise NotImplementedError(f"{type(self).__name__} has no _run_async_impl; define it.")
