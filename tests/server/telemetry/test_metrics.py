"""Metrics on a server: each fact is counted once, whatever is replayed."""

from collections import Counter

import pytest
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

from tests.server.conftest import Serve
from tests.server.processes.workers import until
from tests.steps import approve_and_finish, start_and_wait
from waystation.agents import Agent
from waystation.core.approval import External
from waystation.core.errors import UnknownCall
from waystation.testing import Machine, ScriptedModel, calls, says
from waystation.tools import AgentTool, FunctionTool, LongRunningFunctionTool
from waystation.worker import MetricExport
from waystation.worker.namespace_metrics import NamespaceMetrics


class Counted:
    """The metrics that a worker records."""

    def __init__(self) -> None:
        self._buffer = MetricBuffer(10_000)
        self._counts = Counter[str]()
        runtime = Runtime(telemetry=TelemetryConfig(metrics=self._buffer, attach_service_name=False))
        self.export = MetricExport(runtime.metric_meter)

    @property
    def counts(self) -> Counter[str]:
        """Return how often each metric was recorded with each combination of labels, once the worker has ended."""
        self.export.close()
        for update in self._buffer.retrieve_updates():
            labels = (str(value) for _, value in sorted(update.attributes.items()))
            self._counts[" ".join((update.metric.name.removeprefix("waystation_"), *labels))] += 1
        return self._counts


async def test_each_fact_is_counted_once_over_replays_a_called_agent_and_a_continued_run(serve: Serve) -> None:
    """Without a cache, each workflow task replays all earlier ones. Both channels count refused answers."""

    def look(number: int) -> int:
        """Look something up."""
        if number == 2:
            raise LookupError("nothing there")
        return number

    def pay() -> str:
        """Pay."""
        return "paid"

    helper = Agent(name="helper", model=ScriptedModel(calls(("look", {"number": 7})), says("seven")), tools=[look])
    model = ScriptedModel(
        calls(("look", {"number": 1}), ("look", {"number": 2})),
        calls(("helper", {"request": "seven"})),
        calls(("pay", {})),
        says("done"),
    )
    tools = [look, AgentTool(helper), FunctionTool(pay, require_confirmation=True)]
    counted = Counted()
    async with serve(Agent(name="asker", model=model, tools=tools), interceptors=[counted.export], verify=False) as env:
        invocation = await start_and_wait(env.client.start("asker", "go"))
        with pytest.raises(UnknownCall):
            await invocation.approve("fc-99")
        await invocation.handle.signal("answer", {"function_call_id": "fc-99", "action": "approve"})
        await approve_and_finish(invocation)
    assert counted.counts == {
        "model_call_duration_seconds asker unknown": 4,
        "model_call_duration_seconds helper unknown": 2,
        "tool_call_duration_seconds asker look": 2,
        "tool_call_duration_seconds helper look": 1,
        "tool_call_duration_seconds asker pay": 1,
        "tool_failures asker LookupError look": 1,
        "answer_delay_seconds approve asker pay": 1,
        "answers_refused UnknownCall": 2,
        "invocations asker completed": 1,
        "invocations helper completed": 1,
    }


@pytest.mark.slow
async def test_pending_calls_are_counted_in_the_namespace(serve: Serve) -> None:
    """Any client can count them, so a worker does not have to run."""
    tool = FunctionTool(lambda: "paid", name="pay", require_confirmation=True)
    agent = Agent(name="counted_agent", model=ScriptedModel(calls(("pay", {})), says("done")), tools=[tool])
    async with serve(agent) as env:
        invocation = await env.client.start("counted_agent", "go")

        async def count() -> dict[str, float]:
            return {
                metric.name: value
                for metric, value, labels in await NamespaceMetrics(env.client).measure()
                if labels == {"agent": "counted_agent", "kind": "confirmation"}
            }

        counted = await until(count, "the call in visibility")
        await approve_and_finish(invocation)
    assert counted.pop("waystation_oldest_pending_call_age_seconds") >= 0
    assert counted == {"waystation_pending_calls": 1}


@pytest.mark.slow
async def test_calls_of_machines_are_counted_apart(serve: Serve) -> None:
    """They do not count as calls of people, and the silence ends with each report of progress."""
    tool = LongRunningFunctionTool(lambda: None, name="assess", answered_by=External("claims"))
    agent = Agent(name="assessor", model=ScriptedModel(calls(("assess", {})), *[says("done")] * 2), tools=[tool])
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        await Machine("claims").progress(invocation, {"step": 1})
        (call,) = await invocation.pending()

        async def count() -> dict[str, float]:
            measured = await NamespaceMetrics(env.client).measure()
            return {metric.name: value for metric, value, labels in measured if labels.get("agent") == "assessor"}

        counted = await until(count, "the call in visibility")
        await Machine("claims").respond(invocation, {"status": "paid"})
        await invocation.result()
    assert call.progress_at is not None
    assert counted.pop("waystation_machine_silence_seconds") >= 0
    assert counted == {"waystation_pending_machine_calls": 1}
