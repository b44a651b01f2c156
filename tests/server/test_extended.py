"""The package of the page `extend-waystation` serves an invocation on a real server."""

import asyncio
import runpy
from pathlib import Path

from tests.fakes.acme_package import acme, install, site
from tests.programs import command
from tests.server.approvals.asking import asks_once
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, wait_until
from waystation.activities.notifications import Channels
from waystation.agents import Agent
from waystation.artifacts import ObjectStoreArtifactService
from waystation.core.approval import ApprovalPolicy
from waystation.extensions import STORES
from waystation.memory import open_memory
from waystation.storage import ObjectFiles
from waystation.tools import FunctionTool, Services, ToolContext

__all__ = ["acme", "site"]


async def save(text: str, tool_context: ToolContext) -> str:
    """Save a text."""
    return f"version {await tool_context.save_artifact('note', {'text': text})}, {'x' * 300}"


async def test_an_invocation_uses_all_extensions_of_a_package(serve: Serve, acme: Path) -> None:
    """The model replies, the channel reports a call, and the payloads and artifacts are in the package's store."""
    reader = runpy.run_path(str(acme / "agent.py"))["root_agent"]
    tool = FunctionTool(save, approval=ApprovalPolicy(notify=("finance",)))
    writer = Agent(name="writer", model=asks_once("save", {"text": "hello"}), tools=[tool])
    stores = Services(
        artifacts=ObjectStoreArtifactService("acme://shelf/artifacts"), memory=open_memory("acme://shelf")
    )
    options = {"services": stores, "channels": Channels.read(acme / "channels.toml")}
    async with serve(reader, writer, store="acme://shelf/payloads", offload_over=200, **options) as env:
        result = await env.client.run("reader", "go")
        assert result.text == "acme-1 has read 1 contents."
        invocation = await env.client.start("writer", "go")
        await wait_until(lambda: asyncio.to_thread((acme / "pages.log").is_file), "a notification")
        await approve_and_finish(invocation)
        for part in ("payloads", "artifacts"):
            assert await ObjectFiles(f"acme://shelf/{part}").below("") != []

        async def count() -> bool:
            ran = await command(
                *("--address", env.server.address, "--task-queue", env.client.task_queue),
                *("--store", "acme://shelf/payloads", "count", "reader"),
            )
            assert ran.code == 0, ran.err
            return ran.out != "reader: 0\n"

        await wait_until(count, "the invocation in visibility")


async def test_doctor_lists_extensions_that_cannot_be_used(serve: Serve, acme: Path) -> None:
    """`doctor` loads all extensions, and names those that are hidden by Waystation's own."""
    install(acme, "acme-broken", {STORES: {"s3": "acme_missing"}})
    async with serve(runpy.run_path(str(acme / "agent.py"))["root_agent"]) as env:
        ran = await command("--address", env.server.address, "--task-queue", env.client.task_queue, "doctor", "--json")
    problems = [record["text"] for record in ran.records if record["check"] == "extensions"]
    assert ["acme_missing" in text for text in problems] == [True, False]
    assert ["takes precedence" in text for text in problems] == [False, True]
    assert all("'acme-broken'" in text for text in problems)
