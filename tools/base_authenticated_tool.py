"""The base class for tools that receive a credential when they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.core.payload import JsonObject
from waystation.tools import BaseTool, ToolContext, ToolCredential

if TYPE_CHECKING:
    from waystation.auth import AuthConfig, AuthCredential


class BaseAuthenticatedTool(BaseTool):
    """Base class for your own tools that need a credential. Implement `_run_async_impl` to do the work."""

    def __init__(
        self,
        *,
        name: str,
        description: str,
        auth_config: AuthConfig | JsonObject | None = None,
        response_for_auth_required: JsonObject | str | None = None,
    ) -> None:
        """Initialize the tool.

        Args:
            name: The tool's name, as the model sees it.
            description: The tool's description, as the model sees it.
            auth_config: Describes the credential. If None, the tool runs without a credential.
            response_for_auth_required: What the model receives until the user has provided the credential.

        Raises:
            InvalidTool: The configuration can never yield a credential.
        """
        super().__init__(name=name, description=description)
        self._credential = ToolCredential(name, auth_config, response_for_auth_required)

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Run `_run_async_impl` with the credential, or ask the user for the credential if it is missing."""

        async def run(credential: AuthCredential | None) -> Any:
            return await self._run_async_impl(args=args, tool_context=tool_context, credential=credential)

        return await self._credential.use(tool_context, run)

    async def _run_async_impl(
        self, *, args: JsonObject, tool_context: ToolContext, credential: AuthCredential | None
    ) -> Any:
        """Run the tool. `credential` is None only if the tool has no `auth_config`."""
        raise NotImplementedError(f"{type(self).__name__} has no _run_async_impl; define it.")
