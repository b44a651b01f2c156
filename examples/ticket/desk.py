"""The help desk, outside of the agent: reports progress on a ticket, and closes it.

python examples/ticket/desk.py INVOCATION
"""

import asyncio
import sys

from waystation import AgentClient, Invocation

PAUSE_S = 2.0
"""How long the help desk works between two steps, so that one can watch."""


async def assign(invocation: Invocation, technician: str) -> None:
    """Record who works on it. That wakes nobody; the model reads it if it is called before there is other news."""
    await invocation.answer("progress", response={"status": "assigned", "message": technician}, wake=False)


async def report(invocation: Invocation, message: str) -> None:
    """Tell how far it is. The model is called once, and may tell the user."""
    await invocation.answer("progress", response={"status": "in progress", "message": message})


async def close(invocation: Invocation, resolution: str) -> None:
    """Give the final answer, which ends the wait."""
    await invocation.respond({"status": "closed", "resolution": resolution})


async def main(invocation_id: str) -> None:
    """Work on the one ticket that an invocation waits for."""
    client = await AgentClient.connect()
    invocation = client.invocation(invocation_id)
    await assign(invocation, "Ada takes it")
    await asyncio.sleep(PAUSE_S)
    await report(invocation, "a new fuse is on its way")
    await asyncio.sleep(PAUSE_S)
    await close(invocation, "the fuse was changed")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
