"""Spans on a server: each fact is exported once, in one trace from the caller to the outcome."""

from collections import Counter
from datetime import timedelta

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.server.conftest import Serve
from tests.server.processes.workers import until
from tests.server.sessions.conftest import new_session
from tests.steps import approve_and_finish
from waystation.agents import Agent
from waystation.client import Invocation
from waystation.core.contract import WORKFLOW
from waystation.embedded import EmbeddedServer
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools import AgentTool, FunctionTool
from waystation.trace_context import current_span
from waystation.worker import SpanExport

THREE_WEEKS, HOUR_S = timedelta(weeks=3), 3_600.0
CALLER = TracerProvider(shutdown_on_exit=False).get_tracer("test")


class Exported:
    """The spans that a worker exported."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        self.export = SpanExport(SimpleSpanProcessor(self._memory))

    async def of(self, *invocation_ids: str) -> list[ReadableSpan]:
        """Wait until the invocations' last spans have been exported, and return all spans."""

        def look() -> list[ReadableSpan]:
            spans = list(self._memory.get_finished_spans())
            ended = {
                span.attributes.get("waystation.invocation.id")
                for span in spans
                if span.attributes and span.attributes.get("waystation.status")
            }
            return spans if ended >= set(invocation_ids) else []

        return await until(look, "the last span")


def duration_s(span: ReadableSpan) -> float:
    """Return how long a span lasts."""
    assert span.start_time
    assert span.end_time
    return (span.end_time - span.start_time) / 1e9


def count(spans: list[ReadableSpan]) -> Counter[str]:
    """Count the spans by name, and verify that each has its own ID."""
    assert len({span.context.span_id for span in spans if span.context}) == len(spans)
    return Counter(span.name for span in spans)


async def test_a_trace_covers_parallel_calls_a_called_agent_and_a_continued_run(serve: Serve) -> None:
    """Without a cache, each workflow task replays all earlier ones; nevertheless each fact has exactly one span."""
    contexts: list[tuple[str, str] | None] = []

    def look(number: int) -> int:
        """Look something up."""
        contexts.append(current_span())
        return number

    helper = Agent(name="helper", model=ScriptedModel(calls(("look", {"number": 7})), says("seven")), tools=[look])
    model = ScriptedModel(
        calls(("look", {"number": 1}), ("look", {"number": 2})),
        calls(("helper", {"request": "seven"})),
        calls(("pay", {})),
        says("done"),
    )

    def pay() -> str:
        """Pay."""
        return "paid"

    tools = [look, AgentTool(helper), FunctionTool(pay, require_confirmation=True)]
    exported = Exported()
    async with serve(Agent(name="asker", model=model, tools=tools), interceptors=[exported.export]) as env:
        with CALLER.start_as_current_span("trigger") as trigger:
            invocation = await env.client.start("asker", "go")
        await until(invocation.pending, "a call to confirm")
        await approve_and_finish(invocation)
        spans = await exported.of(invocation.id)
    assert count(spans) == {
        "invoke_agent asker": 1,
        "invoke_agent helper": 1,
        "chat": 6,
        "execute_tool look": 3,
        "execute_tool helper": 1,
        "execute_tool pay": 1,
        "wait pay": 1,
    }
    by_id = {span.context.span_id: span.name for span in spans if span.context}
    caller = trigger.get_span_context()
    assert {span.context.trace_id for span in spans if span.context} == {caller.trace_id}
    parents = {(span.name, by_id.get(span.parent.span_id, "trigger")) for span in spans if span.parent}
    assert ("invoke_agent asker", "trigger") in parents
    assert ("invoke_agent helper", "execute_tool helper") in parents
    looks = {f"{span.context.span_id:016x}" for span in spans if span.context and span.name == "execute_tool look"}
    assert {span_id for _, span_id in filter(None, contexts)} == looks


@pytest.mark.slow
async def test_a_run_that_continues_as_new_keeps_the_trace(serve: Serve) -> None:
    """Each run exports its own facts, and its part of the agent's work links to the first part."""

    def add(number: int) -> int:
        """Add a number."""
        return number

    model = ScriptedModel(*(calls(("add", {"number": number})) for number in range(4)), says("done"))
    exported = Exported()
    async with serve(Agent(name="adder", model=model, tools=[add]), interceptors=[exported.export]) as env:
        params = {"agent": "adder", "message": "go", "cut_after": 20}
        queue = env.client.task_queue
        handle = await env.temporal.start_workflow(WORKFLOW, params, id=f"adder-{queue}", task_queue=queue)
        invocation = Invocation(env.client, handle)
        await invocation.result()
        runs = len(await invocation.histories())
        spans = await exported.of(invocation.id)
    assert runs > 1
    assert count(spans) == {"invoke_agent adder": runs, "chat": 5, "execute_tool add": 4}
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    first, *others = [span for span in spans if span.name == "invoke_agent adder"]
    assert [link.context for span in others for link in span.links] == [first.context] * len(others)


@pytest.mark.slow
async def test_each_message_of_a_session_continues_its_senders_trace(serve: Serve) -> None:
    """The invocations of one session belong to different traces, and name the same conversation."""
    exported = Exported()
    model = ScriptedModel(says("one"), says("two"))
    async with serve(Agent(name="talker", model=model), interceptors=[exported.export]) as env:
        session = new_session(env, "talker")
        invocations, senders = [], []
        for message in ("first", "second"):
            with CALLER.start_as_current_span("send") as sender:
                sent = await session.send(message)
            await sent.result()
            invocations.append(sent.invocation_id)
            senders.append(sender.get_span_context().trace_id)
        spans = await exported.of(*invocations)
    agents = [span for span in spans if span.name == "invoke_agent talker"]
    assert [span.context.trace_id for span in agents if span.context] == senders
    assert len({span.attributes["gen_ai.conversation.id"] for span in agents if span.attributes}) == 1


@pytest.mark.slow
async def test_a_wait_of_three_weeks_is_one_span(skipping_server: EmbeddedServer) -> None:
    """Each fact has one span, except the agent's work, which has two. The second one links to the first one."""

    def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedModel(calls(("pay", {})), says("done"))
    agent = Agent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    exported = Exported()
    async with AgentEnvironment(agent, server=skipping_server, interceptors=[exported.export]) as env:
        invocation = await env.client.start("payer", "pay")
        await env.skip(days=THREE_WEEKS.days)
        await approve_and_finish(invocation, "fc-1")
        spans = await exported.of(invocation.id)
    assert count(spans) == {"invoke_agent payer": 2, "chat": 2, "wait pay": 1, "execute_tool pay": 1}
    [wait] = [span for span in spans if span.name == "wait pay"]
    assert duration_s(wait) >= THREE_WEEKS.total_seconds()
    assert all(duration_s(span) < HOUR_S for span in spans if span is not wait)
    first, second = [span for span in spans if span.name == "invoke_agent payer"]
    assert [link.context for link in second.links] == [first.context]
