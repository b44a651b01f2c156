"""The base of tools that need a credential, and get it before they run. Source: adk-semantics 11.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.core import JsonObject
from waystation.tools import BaseTool, ToolContext, ToolCredential

if TYPE_CHECKING:
    from waystation.auth import AuthConfig, AuthCredential


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
