"""Resources that tools share: how lifespans open and close them, and how tools receive them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import ValidationError
from structlog.typing import EventDict

from waystation import Agent, App, FunctionTool, Resource, ToolContext
from waystation.tools.resources import LIFESPAN_LIMIT, Lifespan, LifespanFailed, Lifespans, UnknownResource

Steps = list[tuple[str, asyncio.Task[Any] | None]]


def lifespan_of(steps: Steps, name: str = "db") -> Callable[[], AbstractAsyncContextManager[dict[str, Any]]]:
    """Return a lifespan that notes when, and in which task, it is entered and left."""

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[dict[str, Any]]:
        steps.append((f"open {name}", asyncio.current_task()))
        yield {name: object()}
        steps.append((f"close {name}", asyncio.current_task()))

    return lifespan


def lifespans_of(*, limit: timedelta = LIFESPAN_LIMIT, **lifespans: Lifespan) -> Lifespans:
    """Return the lifespans of apps, by the name of the agent."""
    return Lifespans(lambda: {name: (lifespan, limit) for name, lifespan in lifespans.items()})


@asynccontextmanager
async def broken() -> AsyncIterator[dict[str, Any]]:
    """Fail like a database that is not there."""
    if True:
        raise ConnectionError("nobody answers at postgres://shop:s3cret@db/shop")
    yield {}


async def test_overlapping_users_share_what_one_task_opens_and_closes() -> None:
    """A function that two apps name is entered once, and the last worker's end closes it in the task that opened it."""
    steps: Steps = []
    shared = lifespan_of(steps)
    lifespans = lifespans_of(shop=shared, desk=shared)
    first, second = lifespans.opened(), lifespans.opened()
    await first.__aenter__()
    await asyncio.create_task(second.__aenter__())
    assert "db" in lifespans.find(shared)
    await first.__aexit__(None, None, None)
    assert [step for step, _ in steps] == ["open db"]
    await second.__aexit__(None, None, None)
    assert [step for step, _ in steps] == ["open db", "close db"]
    assert steps[0][1] is steps[1][1]
    assert not lifespans.find(shared)


async def test_a_lifespan_that_fails_closes_the_others_and_names_the_cause() -> None:
    """The error names the agent, the line and the cause, without a password, and nothing stays open."""
    steps: Steps = []
    lifespans = lifespans_of(desk=lifespan_of(steps), shop=broken)
    with pytest.raises(LifespanFailed, match=r"app of 'shop' failed: ConnectionError at .*test_resources.py:\d+") as it:
        async with lifespans.opened():
            pytest.fail("The block must not run.")
    assert "s3cret" not in str(it.value)
    assert [step for step, _ in steps] == ["open db", "close db"]


@pytest.mark.parametrize("hangs", ["opened", "closed"])
async def test_a_lifespan_that_hangs_does_not_keep_its_worker_from_starting_or_stopping(
    hangs: str, logs: list[EventDict]
) -> None:
    """The problem names the limit and the option. What is open already is closed."""
    steps: Steps = []

    @asynccontextmanager
    async def hanging() -> AsyncIterator[dict[str, Any]]:
        if hangs == "opened":
            await asyncio.Event().wait()
        yield {}
        await asyncio.Event().wait()

    lifespans = lifespans_of(limit=timedelta(seconds=0.01), desk=lifespan_of(steps), shop=hanging)
    problem = f"it has not {hangs} its resources within 0.01 s. Repair"
    async with asyncio.timeout(10):
        with pytest.raises(LifespanFailed, match=problem) if hangs == "opened" else nullcontext():
            async with lifespans.opened():
                assert hangs == "closed"
    assert [step for step, _ in steps] == ["open db", "close db"]
    assert hangs == "opened" or problem in logs[-1]["problem"]


async def test_a_lifespan_that_is_canceled_does_not_leave_its_worker_waiting() -> None:
    """Libraries raise this error when their own time limits are over, and no one cancels the worker."""

    @asynccontextmanager
    async def canceled() -> AsyncIterator[dict[str, Any]]:
        if True:
            raise asyncio.CancelledError
        yield {}

    async with asyncio.timeout(10):
        with pytest.raises(LifespanFailed, match="was canceled"):
            async with lifespans_of(shop=canceled).opened():
                pytest.fail("The block must not run.")


async def test_a_user_that_gives_up_while_resources_open_stops_the_opening() -> None:
    """A worker that is canceled during its start leaves nothing open, and another one can start afterward."""
    steps: Steps = []
    gate = asyncio.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[dict[str, Any]]:
        await gate.wait()
        yield {}

    lifespans = lifespans_of(desk=lifespan_of(steps), shop=slow)
    waiting = asyncio.create_task(lifespans.opened().__aenter__())
    while not steps:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert [step for step, _ in steps] == ["open db", "close db"]
    gate.set()
    async with lifespans.opened():
        assert steps[-1][0] == "open db"


def query(order: str, db: Annotated[list[str], Resource], archive: Annotated[list[str], Resource("old_db")]) -> str:
    """Look an order up."""
    return f"{order} in {db} or {archive}"


async def test_a_marked_parameter_receives_the_resource_and_is_hidden_from_the_model() -> None:
    """The name of the resource is that of the parameter, unless the mark has another one."""
    tool = FunctionTool(query)
    assert list(tool.signature.annotations) == ["order"]
    context = ToolContext(resources={"db": ["new"], "old_db": ["old"]})
    args = {"order": "7", "db": ["planted by the model"]}
    assert await tool.run_async(args=args, tool_context=context) == "7 in ['new'] or ['old']"


async def test_a_missing_resource_is_named_with_those_that_exist() -> None:
    """The error says which resources the app has, and where they are declared."""
    with pytest.raises(UnknownResource, match=r"named 'old_db'.*`lifespan`.*: 'db'"):
        await FunctionTool(query).run_async(args={"order": "7"}, tool_context=ToolContext(resources={"db": []}))
    with pytest.raises(UnknownResource, match="none"):
        ToolContext().resources["db"]


async def needs_app(app: App) -> AsyncIterator[dict[str, Any]]:
    yield {"app": app}


@pytest.mark.parametrize("lifespan", [needs_app, asynccontextmanager(needs_app)])
def test_a_lifespan_that_cannot_be_called_is_refused_where_it_is_declared(lifespan: Any) -> None:
    """An undecorated generator and FastAPI's parameter are mistakes that the declaration of the app reports."""
    with pytest.raises(ValidationError, match=r"without parameters.*asynccontextmanager"):
        App(name="shop", root_agent=Agent(name="clerk"), lifespan=lifespan)
