"""Steps that many tests of agents share."""

import contextlib
from typing import Any

from waystation.core.contract import InvocationResult
from waystation.testing import AgentEnvironment


async def run(
    serving: contextlib.AbstractAsyncContextManager[AgentEnvironment], agent: str, message: str, **params: Any
) -> InvocationResult:
    """Run an agent to its end while a worker serves it, and return the result."""
    async with serving as env:
        return await env.client.run(agent, message, **params)
