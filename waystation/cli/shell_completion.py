"""Complete agent names and invocation IDs in the shell. Without a server, nothing is completed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from waystation.client import AgentClient

LIMIT_S = 1.5
"""How long a completion may take before the shell gets none."""
MAX_IDS = 50
"""Maximum number of IDs to offer."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A word that completes another, as the shell's scripts of Typer expect it."""

    value: str
    help: str
    type: str = "plain"


def complete_agent(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the announced root agents whose name begins with the text."""

    async def list_agents(client: AgentClient) -> Iterable[str]:
        return sorted(await client.agents.read())

    return [name for name in _ask_server(ctx, list_agents) if name.startswith(incomplete)]


def complete_id(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the IDs of the latest invocations that begin with the text."""

    async def list_ids(client: AgentClient) -> Iterable[str]:
        if not incomplete:
            return [entry.id async for entry in client.invocations.list(limit=MAX_IDS)]
        return await client.invocations.find(incomplete, limit=MAX_IDS)

    return list(_ask_server(ctx, list_ids))


def _ask_server(ctx: typer.Context, ask: Callable[[AgentClient], Awaitable[Iterable[str]]]) -> Iterable[str]:
    """Return what a server lists, or nothing if it does not respond or the settings are invalid."""
    params = ctx.find_root().params

    async def connect_and_ask() -> Iterable[str]:
        async with asyncio.timeout(LIMIT_S):
            client = await connect(
                address=params.get("address"), namespace=params.get("namespace"), profile=params.get("profile")
            )
            return await ask(AgentClient(client))

    # Imported here, because completion is also asked for options and commands, which need no client.
    from waystation.client import AgentClient, connect

    with suppress(Exception):  # the shell would show any message in the line that is being typed
        return asyncio.run(connect_and_ask())
    return ()
