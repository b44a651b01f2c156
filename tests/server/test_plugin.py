"""Agents as a plugin of a user's own Temporal client and worker."""

import asyncio
import dataclasses
import time
import uuid
from collections.abc import Callable, MutableMapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.plugin import SimplePlugin
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    PollerBehaviorAutoscaling,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerTuner,
    WorkflowInstance,
    WorkflowInstanceDetails,
)

from tests.server.user_workflow import AnyOther, InSandbox
from tests.server.workflows.test_codec import Veil
from waystation import ActivityTool, AgentClient
from waystation.agents import Agent
from waystation.core.contract import Settings, Stores, WorkflowSettings
from waystation.core.errors import InvalidConfiguration
from waystation.embedded import EmbeddedServer
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import ScriptedModel, assert_invocation_holds, calls, responses, says
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_toolset import BaseToolset
from waystation.version import waystation_version
from waystation.worker import WORKER_OPTIONS, WaystationPlugin, create_worker, watchdog


class Closing(BaseToolset):
    """A toolset that records that it was closed."""

    closed = 0

    async def get_tools(self, readonly_context: object = None) -> list[BaseTool]:
        return []

    async def close(self) -> None:
        self.closed += 1


def settings(store: Path) -> Settings:
    return Settings(stores=Stores(payloads=store))


class OwnRunner(UnsandboxedWorkflowRunner):
    """A user's runner, which records the types of the workflows that it creates."""

    def __init__(self) -> None:
        self.created: list[str] = []

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        self.created.append(det.info.workflow_type)
        return super().create_instance(det)


async def test_a_users_workflow_runner_is_kept(server: EmbeddedServer, tmp_path: Path) -> None:
    """The plugin replaces only the SDK's runner by its own."""
    agent = Agent(name="clerk", model=ScriptedModel(says("hello")))
    client = await Client.connect(server.address, plugins=[WaystationPlugin([agent], settings=settings(tmp_path))])
    runner = OwnRunner()
    async with Worker(client, task_queue="own-runner", unsandboxed_workflow_runner=runner, **WORKER_OPTIONS):
        assert (await AgentClient(client, task_queue="own-runner").run("clerk", "hi")).text == "hello"
    assert "AgentInvocation" in runner.created


class Order(BaseModel):
    """An order."""

    name: str


class Counting(Interceptor):
    """An interceptor of the user that records which workflows and activities run."""

    def __init__(self) -> None:
        self.activities: list[str] = []

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        seen = self.activities

        class Inbound(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                seen.append(activity.info().activity_type)
                return await super().execute_activity(input)

        return Inbound(next)


@activity.defn
async def greet(order: Order) -> str:
    """Take a pydantic model, for which the user's data converter is needed."""
    return f"hello {order.name}"


async def test_the_users_converter_codec_and_interceptors_are_kept(server: EmbeddedServer, tmp_path: Path) -> None:
    """Agents work with them, and the user's activity is a tool of an agent in the same worker."""
    converter = dataclasses.replace(pydantic_data_converter, payload_codec=Veil())
    model = ScriptedModel(calls(("greet", {"name": "lovelace"})), says("done"))
    agent = Agent(name="clerk", model=model, tools=[ActivityTool("greet", schema=Order)])
    plugin = WaystationPlugin([agent], settings=settings(tmp_path))
    client = await Client.connect(server.address, plugins=[plugin], data_converter=converter)
    counting = Counting()
    async with Worker(
        client,
        task_queue="kept",
        workflows=[InSandbox],
        activities=[greet],
        interceptors=[counting],
        **WORKER_OPTIONS,
    ):
        assert await client.execute_workflow(InSandbox.run, id="kept-in-sandbox", task_queue="kept")
        invocation = await AgentClient(client, task_queue="kept").start("clerk", "hi")
        assert (await invocation.result()).text == "done"
        await assert_invocation_holds(invocation)
    assert responses(model.requests[-1]) == [("greet", {"result": "hello lovelace"})]
    assert counting.activities == ["call_model", "greet", "call_model"]
    history = await client.get_workflow_handle(invocation.id).fetch_history()
    assert not any(b"lovelace" in event.SerializeToString() for event in history.events)


async def test_a_client_without_a_payload_store_is_refused(server: EmbeddedServer, tmp_path: Path) -> None:
    """A client without a payload store is refused, because a reference to a payload would block its workflows."""
    client = await Client.connect(server.address)
    plugin = WaystationPlugin([Agent(name="clerk")], settings=settings(tmp_path))
    with pytest.raises(InvalidConfiguration, match=r"no payload store\. Connect it with `plugins="):
        Worker(client, task_queue="refused", plugins=[plugin])


@activity.defn(dynamic=True)
async def fallback(_: Sequence[RawValue]) -> None:
    """An activity that runs for every unknown name."""


async def test_a_dynamic_activity_of_the_user_is_refused(server: EmbeddedServer, tmp_path: Path) -> None:
    """A worker can have only one, and agents use it. The message names the activity and says where to run it."""
    plugin = WaystationPlugin([Agent(name="clerk")], settings=settings(tmp_path))
    client = await Client.connect(server.address, plugins=[plugin])
    with pytest.raises(InvalidConfiguration, match=r"'fallback', because .* on another task queue"):
        Worker(client, task_queue="refused", activities=[greet, fallback])


async def test_a_dynamic_workflow_of_the_user_runs_beside_agents(server: EmbeddedServer, tmp_path: Path) -> None:
    """A dynamic workflow receives only workflows whose names the engine does not use."""
    agent = Agent(name="clerk", model=ScriptedModel(says("hello")))
    client = await Client.connect(server.address, plugins=[WaystationPlugin([agent], settings=settings(tmp_path))])
    async with Worker(client, task_queue="dynamic", workflows=[AnyOther], **WORKER_OPTIONS):
        assert await client.execute_workflow("Unknown", id="dynamic-workflow", task_queue="dynamic") == "Unknown"
        assert (await AgentClient(client, task_queue="dynamic").run("clerk", "hi")).text == "hello"


async def test_tools_and_models_are_closed_when_the_last_worker_stops(server: EmbeddedServer, tmp_path: Path) -> None:
    """Two workers of one client share the agents."""
    toolset = Closing()
    agent = Agent(name="clerk", model=ScriptedModel(), tools=[toolset])
    client = await Client.connect(server.address, plugins=[WaystationPlugin([agent], settings=settings(tmp_path))])
    async with Worker(client, task_queue="first"):
        async with Worker(client, task_queue="second"):
            pass
        assert toolset.closed == 0
    assert toolset.closed == 1


OWN_PARTS = {"client", "plugins", "workflows", "activities", "interceptors", "unsandboxed_workflow_runner"}


def limit_of(worker: Worker) -> float:
    """Return the worker's time limit of workflow tasks, which the SDK shows nowhere."""
    limit: float = vars(vars(worker)["_workflow_worker"])["_deadlock_timeout_seconds"]
    return limit


async def test_a_users_worker_stays_as_it_is(server: EmbeddedServer, tmp_path: Path) -> None:
    """The plugin adds only its own parts. Cache, timeouts and limits stay, and the workflow is in its sandbox."""
    own = dataclasses.replace(settings(tmp_path), workflow_task_limit=timedelta(seconds=5), concurrent_activities=7)
    plugin = WaystationPlugin([Agent(name="clerk", model=ScriptedModel(says("hello")))], settings=own)
    plain, client = await Client.connect(server.address), await Client.connect(server.address, plugins=[plugin])
    parts: Any = {"task_queue": "beside", "workflows": [InSandbox], "activities": [greet]}
    without = Worker(plain, **parts)
    async with Worker(client, **parts) as worker:
        assert await client.execute_workflow(InSandbox.run, id="in-sandbox", task_queue="beside")
        assert (await AgentClient(client, task_queue="beside").run("clerk", "hi")).text == "hello"
        assert limit_of(worker) == limit_of(without)
    before, after = without.config(active_config=True), worker.config(active_config=True)
    assert {name for name, value in after.items() if value != before.get(name)} <= OWN_PARTS


async def test_our_own_worker_has_our_limit_for_workflow_tasks(server: EmbeddedServer, tmp_path: Path) -> None:
    """The SDK still has the private place where it is set; slow tests show that it takes effect."""
    own = dataclasses.replace(settings(tmp_path), workflow_task_limit=timedelta(seconds=5))
    assert limit_of(create_worker(await Client.connect(server.address), [Agent(name="clerk")], settings=own)) == 5


@activity.defn
async def count_items() -> None:
    """Send a heartbeat for each item. All of them take longer than 100 ms."""
    for item in range(100):
        activity.heartbeat(item)
        await asyncio.sleep(0.003)


async def test_a_users_activity_sends_as_many_heartbeats_as_without_agents(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """The SDK holds back all but the first for most of the timeout, also with the options that suit agents."""
    plugin, requests = WaystationPlugin([Agent(name="clerk")], settings=settings(tmp_path)), MetricBuffer(10_000)
    runtime = Runtime(telemetry=TelemetryConfig(metrics=requests))
    client = await Client.connect(server.address, runtime=runtime, plugins=[plugin])
    options: Any = {"start_to_close_timeout": timedelta(minutes=1), "heartbeat_timeout": timedelta(seconds=30)}
    async with Worker(client, task_queue="items", activities=[count_items], **WORKER_OPTIONS):
        await client.execute_activity(count_items, id="items", task_queue="items", **options)
    sent = [update for update in requests.retrieve_updates() if update.metric.name == "temporal_request"]
    assert [update.attributes["operation"] for update in sent].count("RecordActivityTaskHeartbeat") == 1


class Halting(ScriptedModel):
    """Streams its reply in two pieces, and waits until each has been shown."""

    def __init__(self) -> None:
        super().__init__(says("It rains."))
        self.shown = asyncio.Semaphore(0)

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the reply once its text has been shown."""
        assert on_text is not None
        for piece in ("It ", "rains."):
            on_text(piece)
            await self.shown.acquire()
        return await super().generate(request)


@pytest.mark.timeout(50)  # the SDK holds back heartbeats for up to 60 s
async def test_a_users_worker_streams_text(server: EmbeddedServer, tmp_path: Path) -> None:
    """A worker of the user streams text without options: each piece is shown before the model has finished."""
    model, defaults = Halting(), WorkflowSettings()
    slow = dataclasses.replace(defaults.model, heartbeat=timedelta(minutes=9))
    own = dataclasses.replace(settings(tmp_path), workflow=dataclasses.replace(defaults, model=slow))
    plugin = WaystationPlugin([Agent(name="speaker", model=model)], settings=own)
    client = await Client.connect(server.address, plugins=[plugin])
    async with Worker(client, task_queue="streams"):
        invocation = await AgentClient(client, task_queue="streams").start("speaker", "Weather?", streaming=True)
        async for event in invocation.stream(partial=True):
            if event.partial:
                model.shown.release()


@pytest.mark.filterwarnings("ignore:The same plugin type:UserWarning")
@pytest.mark.parametrize("activities", [True, False])
async def test_two_plugins_in_one_worker_are_refused(
    server: EmbeddedServer, tmp_path: Path, *, activities: bool
) -> None:
    """The message names the origin of the second plugin, instead of an activity or a workflow that occurs twice."""
    options: Any = {"settings": settings(tmp_path), "workflows": not activities, "activities": activities}
    first, second = (WaystationPlugin([Agent(name=name)], **options) for name in ("clerk", "cook"))
    client, plain = await Client.connect(server.address, plugins=[first]), await Client.connect(server.address)
    for given, plugins in ((client, [second]), (plain, [first, second])):
        with pytest.raises(InvalidConfiguration, match="two WaystationPlugins: a worker uses"):
            Worker(given, task_queue="refused", plugins=plugins)


@pytest.mark.filterwarnings("ignore:The same plugin type:UserWarning")
async def test_a_client_and_its_worker_can_have_the_same_plugin(server: EmbeddedServer, tmp_path: Path) -> None:
    """A plugin that the client and its worker share has an effect once."""
    toolset = Closing()
    agent = Agent(name="clerk", model=ScriptedModel(says("hello")), tools=[toolset])
    plugin = WaystationPlugin([agent], settings=settings(tmp_path))
    client = await Client.connect(server.address, plugins=[plugin])
    async with Worker(client, task_queue="same", plugins=[plugin]):
        assert (await AgentClient(client, task_queue="same").run("clerk", "hi")).text == "hello"
    assert toolset.closed == 1


@pytest.mark.parametrize(
    "options",
    [
        {"tuner": WorkerTuner.create_resource_based(target_memory_usage=1.0, target_cpu_usage=1.0)},
        {"tuner": WorkerTuner.create_fixed(activity_slots=1)},
        {f"{kind}_task_poller_behavior": PollerBehaviorAutoscaling() for kind in ("workflow", "activity")},
        {"plugins": [SimplePlugin("user.Plugin")]},
    ],
    ids=["resources", "fixed", "pollers", "plugins"],
)
async def test_our_own_worker_takes_temporals_options(
    server: EmbeddedServer, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Options of Temporal replace or extend ours. The worker does not serve the agents of a plugin of its client."""
    other = WaystationPlugin([Agent(name="clerk", model=ScriptedModel())], settings=settings(tmp_path))
    client, queue = await Client.connect(server.address, plugins=[other]), f"own-{uuid.uuid4()}"
    agent = Agent(name="clerk", model=ScriptedModel(says("hello")))
    async with create_worker(client, [agent], task_queue=queue, settings=settings(tmp_path), **options):
        assert (await AgentClient(client, task_queue=queue).run("clerk", "hi")).text == "hello"


@pytest.mark.slow
async def test_a_tool_that_blocks_the_event_loop_of_a_users_worker_is_named(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[MutableMapping[str, Any]]
) -> None:
    """Without `request_exit`, the tool is only logged: it continues, and so does the process."""

    async def doze() -> str:
        time.sleep(1.5)  # noqa: ASYNC251  # blocks the event loop
        return "slept"

    monkeypatch.setattr(watchdog, "REPORT_AFTER_S", watchdog.TICK_S)
    own = dataclasses.replace(settings(tmp_path), event_loop_limit=timedelta(milliseconds=100))
    model = ScriptedModel(calls(("doze", {})), says("done"))
    client = await Client.connect(
        server.address, plugins=[WaystationPlugin([Agent(name="clerk", model=model, tools=[doze])], settings=own)]
    )
    async with Worker(client, task_queue="watched", **WORKER_OPTIONS):
        assert (await AgentClient(client, task_queue="watched").run("clerk", "hi")).text == "done"
    assert responses(model.requests[-1]) == [("doze", {"result": "slept"})]
    assert "doze" in [line.get("tool") for line in logs if line["event"] == "event_loop.blocked"]


async def test_settings_reach_workflows(server: EmbeddedServer, tmp_path: Path) -> None:
    """Activities have the timeouts of the worker's settings."""
    defaults = WorkflowSettings()
    short = dataclasses.replace(defaults.model, start_to_close=timedelta(seconds=77))
    given = dataclasses.replace(settings(tmp_path), workflow=dataclasses.replace(defaults, model=short))
    agent = Agent(name="clerk", model=ScriptedModel(calls(("unknown", {})), says("hello")))
    client = await Client.connect(server.address)
    async with create_worker(client, [agent], task_queue="settings", settings=given):
        invocation = await AgentClient(client, task_queue="settings").start("clerk", "hi")
        await invocation.result()
    history = await invocation.history()
    scheduled = next(e.activity_task_scheduled_event_attributes for e in history.events if e.event_type == 10)
    assert scheduled.start_to_close_timeout.ToTimedelta() == timedelta(seconds=77)


async def test_histories_record_the_version_of_the_worker(server: EmbeddedServer, tmp_path: Path) -> None:
    """The build ID shows which Waystation completed a workflow task. The SDK would hash all modules at each start."""
    agent = Agent(name="clerk", model=ScriptedModel(says("hello")))
    client = await Client.connect(server.address)
    async with create_worker(client, [agent], task_queue="versions", settings=settings(tmp_path)):
        invocation = await AgentClient(client, task_queue="versions").start("clerk", "hi")
        await invocation.result()
    history = await invocation.history()
    completed = next(e.workflow_task_completed_event_attributes for e in history.events if e.event_type == 7)
    assert completed.worker_version.build_id == waystation_version()
