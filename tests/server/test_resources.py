"""Resources that tools share, in the workers that open them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from tests.agents import speaks
from tests.programs import logged, run
from tests.server.conftest import Serve
from waystation import AgentClient, App, CallbackContext, Resource, ToolContext
from waystation.core.contract import Settings, Stores
from waystation.embedded import EmbeddedServer
from waystation.testing import calls, says
from waystation.tools.resources import LifespanFailed
from waystation.worker import WaystationPlugin

QUERY = calls(("look_up", {"order": "7"}))


class Pool:
    """A database pool that notes its use."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[dict[str, Any]]:
        self.steps.append("open")
        yield {"db": self}
        self.steps.append("close")


def shop(pool: Pool) -> App:
    """Return an app whose sync tool and callback use the pool."""

    def look_up(order: str, db: Annotated[Pool, Resource], tool_context: ToolContext) -> str:
        """Look an order up."""
        assert threading.current_thread() is not threading.main_thread()
        assert tool_context.resources["db"] is db
        db.steps.append(f"query {order}")
        return "shipped"

    def before(callback_context: CallbackContext) -> None:
        callback_context.resources["db"].steps.append("callback")

    agent = speaks("clerk", QUERY, says("Shipped."), tools=[look_up], before_agent_callback=before)
    return App(name="shop", root_agent=agent, lifespan=pool.lifespan)


USES = ["open", "callback", "query 7", "close"]


async def test_tools_and_callbacks_of_an_app_use_what_its_lifespan_opened(serve: Serve) -> None:
    """The environment of tests opens the resources before its worker polls, and closes them afterward."""
    pool = Pool()
    async with serve(shop(pool)) as env:
        assert (await env.client.run("clerk", "Where is 7?")).text == "Shipped."
    assert pool.steps == USES


async def test_workers_of_the_users_own_open_and_close_resources(server: EmbeddedServer, tmp_path: Path) -> None:
    """The plugin opens them for its first worker and closes them with its last one."""
    pool = Pool()
    plugin = WaystationPlugin([shop(pool)], settings=Settings(stores=Stores(payloads=tmp_path)))
    client = await Client.connect(server.address, plugins=[plugin])
    async with Worker(client, task_queue="resources"), Worker(client, task_queue="resources-too"):
        assert (await AgentClient(client, task_queue="resources").run("clerk", "Where is 7?")).text == "Shipped."
    assert pool.steps == USES


async def use(worker: Worker) -> None:
    """Run a worker until it fails."""
    async with worker:
        await asyncio.Event().wait()


async def test_a_users_worker_whose_resource_cannot_be_opened_ends_with_the_cause(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """`async with Worker` raises the error instead of waiting forever for a worker that has not started."""

    @asynccontextmanager
    async def broken() -> AsyncIterator[dict[str, Any]]:
        if True:
            raise ConnectionError("nobody answers")
        yield {}

    app = App(name="shop", root_agent=speaks("clerk"), lifespan=broken)
    plugin = WaystationPlugin([app], settings=Settings(stores=Stores(payloads=tmp_path)))
    client = await Client.connect(server.address, plugins=[plugin])
    with pytest.raises(LifespanFailed, match="nobody answers"):
        await use(Worker(client, task_queue="broken"))


def test_the_worker_program_does_not_start_without_a_resource(server: EmbeddedServer, tmp_path: Path) -> None:
    """It exits with 1, names the cause, and never reports that it is ready."""
    package = tmp_path / "agents" / "shop_app"
    package.mkdir(parents=True)
    (package / "agent.py").write_text(
        "from contextlib import asynccontextmanager\n"
        "from waystation import Agent, App\n"
        "@asynccontextmanager\n"
        "async def lifespan():\n"
        "    raise ConnectionError('nobody answers')\n"
        "    yield {}\n"
        "app = App(name='shop', root_agent=Agent(name='clerk'), lifespan=lifespan)\n"
    )
    done = run(
        "--agents", str(tmp_path / "agents"), "--model", "demo", "--address", server.address, "--log-format", "json"
    )
    events = {entry["event"]: entry for entry in logged(done)}
    assert done.returncode == 1
    assert "nobody answers" in events["worker.failed"]["problem"]
    assert "worker.ready" not in events
