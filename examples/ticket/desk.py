"""The help desk, a program outside the agent: report progress on a ticket, and close it.

python examples/ticket/desk.py INVOCATION
"""

import asyncio
import sys

from waystation import AgentClient, Invocation

PAUSE_S = 2.0
"""Pause between two steps, so that you can watch."""


async def assign(invocation: Invocation, technician: str) -> None:
    """Report who works on it. This does not call the model; the next model call includes it."""
    await invocation.answer("progress", response={"status": "assigned", "message": technician}, wake=False)


async def report(invocation: Invocation, message: str) -> None:
    """Report progress. The model is called once, and may inform the user."""
    await invocation.answer("progress", response={"status": "in progress", "message": message})


async def close(invocation: Invocation, resolution: str) -> None:
    """Send the final response, which ends the wait."""
    await invocation.respond({"status": "closed", "resolution": resolution})


async def main(invocation_id: str) -> None:
    """Work on the ticket of an invocation."""
    client = await AgentClient.connect()
    invocation = client.invocation(invocation_id)
    await assign(invocation, "Ada takes it")
    await asyncio.sleep(PAUSE_S)
    await report(invocation, "a new fuse is on its way")
    await asyncio.sleep(PAUSE_S)
    await close(invocation, "the fuse was changed")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
