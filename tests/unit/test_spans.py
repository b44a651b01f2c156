"""Spans are derived from the log: one for each fact, always with the same ID and times."""

from collections import Counter
from itertools import pairwise

import pytest
from temporalio.client import WorkflowHistory

from tests.corpus.test_corpus import CONVERTER, NAMES, kept
from tests.unit.core.story import (
    answered,
    expired,
    invocation_began,
    log_of,
    model_called,
    model_calls,
    model_replied,
    tool_lost,
    tool_returned,
    user_message,
)
from waystation.core import ids
from waystation.core.budget import Usage
from waystation.core.contract import EventActions, InvocationInput, InvocationResult
from waystation.core.log import Body, ChildReturned, Ended, Log, ModelLost, ModelReplied, parse_ref
from waystation.core.projection import Snapshot
from waystation.history import build_log, decode_events
from waystation.worker.spans import Span, build_spans, find_trace

TRACEPARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"
WEEKS_S = 3 * 7 * 86_400.0


def by_model(body: Body, **fields: object) -> Body:
    """Return a reply that a model produced, and not only callbacks."""
    assert isinstance(body, ModelReplied)
    return ModelReplied(body.number, body.reply.model_copy(update={"attempt": 1, **fields}))


def spans_of(log: Log, *, over: bool = True, now: float = 1_100.0, content: bool = False) -> dict[str, Span]:
    """Return the spans by name; each name occurs once."""
    spans = list(build_spans(log, now=now, over=over, content=content))
    named = {span.name: span for span in spans}
    assert len(named) == len(spans)
    return named


def add(log: Log, later_s: float, *bodies: Body) -> Log:
    """Append entries to a log, a second apart, the first one `later_s` after the last entry."""
    first = log.entries[-1].time + later_s
    for index, body in enumerate(bodies):
        log.append(parse_ref(f"m{log.length}"), first + index, body)
    return log


def test_each_model_call_and_tool_call_is_a_span_of_the_agent() -> None:
    """A span lasts from the entry with which its work was scheduled to the entry with its result."""
    used = Usage(prompt_tokens=7, output_tokens=2, thoughts_tokens=1)
    log = log_of(
        user_message("look"),
        by_model(model_calls("lookup"), usage=used, model_version="gemini-9"),
        [tool_returned("fc-1"), model_called()],
        by_model(model_replied("done")),
        Ended("completed"),
    )
    spans = spans_of(log)
    assert {name: (span.begin, span.end) for name, span in spans.items()} == {
        "chat gemini-9": (1_000.0, 1_001.0),
        "execute_tool lookup": (1_001.0, 1_002.0),
        "chat": (1_002.0, 1_003.0),
        "invoke_agent ag": (1_000.0, 1_004.0),
    }
    agent = spans.pop("invoke_agent ag")
    assert agent.parent is None
    assert {span.parent for span in spans.values()} == {agent.id}
    assert spans["chat gemini-9"].attributes["gen_ai.usage.output_tokens"] == 3


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("gemini-2.5-pro", "gcp.gen_ai"),
        ("projects/p/locations/l/publishers/google/models/gemini-2.5-pro", "gcp.gen_ai"),
        ("vertex_ai/gemini-2.5-pro", "gcp.vertex_ai"),
        ("claude-sonnet-4-5", "anthropic"),
        ("gpt-5", "openai"),
        ("o3-mini", "openai"),
        ("azure/prod", "azure.ai.openai"),
        ("bedrock/claude", "aws.bedrock"),
        ("groq/llama", "groq"),
        ("my-own", "unknown"),
        (None, "unknown"),
    ],
)
def test_the_span_of_a_model_call_names_the_provider(model: str | None, provider: str) -> None:
    """The span has the provider's name of the semantic conventions, which require it."""
    spans = list(
        build_spans(log_of(user_message("hi"), by_model(model_replied("hi"), model=model)), now=1_100.0, over=True)
    )
    [chat] = [span for span in spans if span.attributes["gen_ai.operation.name"] == "chat"]
    assert chat.attributes["gen_ai.provider.name"] == provider


def test_a_wait_ends_with_the_answer_and_the_tool_begins_there() -> None:
    """A view or a claim does not end the wait of a call."""
    log = log_of(
        user_message("pay"),
        model_calls("pay", gated=True),
        answered("fc-1", "claim"),
        answered("fc-1", "approve"),
        tool_returned("fc-1"),
    )
    spans = spans_of(log)
    assert (spans["wait pay"].begin, spans["wait pay"].end) == (1_001.0, 1_003.0)
    assert spans["wait pay"].attributes["waystation.wait.outcome"] == "approve"
    assert (spans["execute_tool pay"].begin, spans["execute_tool pay"].end) == (1_003.0, 1_004.0)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [(answered("fc-1", "reject"), "reject"), (expired("fc-1"), "expired"), (Ended("failed"), "ended")],
)
def test_a_call_that_never_runs_has_only_a_wait(end: Body, outcome: str) -> None:
    """A rejection, a deadline and the end of the invocation all end the wait."""
    spans = spans_of(log_of(user_message("pay"), model_calls("pay", gated=True), end))
    assert spans["wait pay"].attributes["waystation.wait.outcome"] == outcome
    assert "execute_tool pay" not in spans


def test_a_tool_that_asks_while_running_has_two_runs_and_a_wait() -> None:
    """Each run of the tool has its own span."""
    asks = EventActions.model_validate({"requested_tool_confirmations": {"fc-1": {"hint": "Sure?"}}})
    log = log_of(
        user_message("pay"),
        model_calls("pay"),
        tool_returned("fc-1", {"asked": True}, actions=asks),
        answered("fc-1"),
        tool_returned("fc-1", run=1),
    )
    spans = list(build_spans(log, now=1_100.0, over=True))
    assert Counter(span.name for span in spans) == {"execute_tool pay": 2, "wait pay": 1, "invoke_agent ag": 1}
    assert len({span.id for span in spans}) == 4


def test_a_long_running_call_waits_after_its_function_has_returned() -> None:
    """Interim progress leaves the wait open."""
    log = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", final=False),
        answered("fc-1", "progress", response={}),
        answered("fc-1", "respond", response={}),
    )
    spans = spans_of(log)
    assert (spans["execute_tool ask"].begin, spans["execute_tool ask"].end) == (1_001.0, 1_002.0)
    assert (spans["wait ask"].begin, spans["wait ask"].end) == (1_002.0, 1_004.0)


def test_a_lost_call_is_an_error() -> None:
    """The error's type is an attribute, as the semantic conventions require."""
    spans = spans_of(log_of(user_message("look"), model_calls("lookup"), tool_lost("fc-1")))
    assert spans["execute_tool lookup"].error == "heartbeat"
    assert spans["execute_tool lookup"].attributes["error.type"] == "heartbeat"


def test_a_called_agent_continues_the_span_of_its_call() -> None:
    """The two agree on the ID of the call's span without exchanging anything."""
    log = log_of(
        user_message("ask"),
        model_calls("helper", kind="agent", agent="helper"),
        ChildReturned("fc-1", InvocationResult(text="ok")),
    )
    call = spans_of(log)["execute_tool helper"]
    child = find_trace(ids.child_invocation("inv", "fc-1"), InvocationInput(agent="helper", message="", origin="inv"))
    assert (child.id, child.parent) == (find_trace("inv", log.state.input).id, call.id)


def test_a_long_wait_splits_the_agent_span() -> None:
    """No span covers the long wait: the first part ends when the wait begins, and the second part links to it."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True))
    early = spans_of(log, over=False, now=1_100.0)
    add(log, WEEKS_S, answered("fc-1"), tool_returned("fc-1"), Ended("completed"))
    first, wait, tool, second = sorted(build_spans(log, now=WEEKS_S, over=True), key=lambda span: span.begin)
    assert early == {"invoke_agent ag": first}
    assert (first.begin, first.end, first.link) == (1_000.0, 1_001.0, None)
    assert (second.begin, second.parent, second.link) == (1_001.0 + WEEKS_S, first.id, first.id)
    assert (wait.parent, tool.parent) == (first.id, second.id)


def test_a_short_wait_leaves_the_agent_span_open() -> None:
    """The agent's own span is exported only after the wait is certain to be long."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True))
    assert spans_of(log, over=False, now=1_030.0) == {}
    add(log, 30.0, answered("fc-1"), tool_returned("fc-1"), Ended("completed"))
    assert spans_of(log)["invoke_agent ag"].end == log.entries[-1].time


def test_a_continued_run_continues_the_trace() -> None:
    """The wait began in the previous run, and the part of each run links to the first part."""
    before = log_of(user_message("pay", traceparent=TRACEPARENT), model_calls("pay", gated=True))
    first = spans_of(before)["invoke_agent ag"]
    assert before.state.input
    log = Snapshot.of(before).restored("inv", before.state.input)
    log.append(parse_ref("s1"), 1_005.0, answered("fc-1"))
    log.append(parse_ref("fc-1"), 1_006.0, tool_returned("fc-1"))
    log.append(parse_ref("end"), 1_007.0, Ended("completed"))
    spans = spans_of(log)
    assert (spans["wait pay"].begin, spans["wait pay"].end) == (1_001.0, 1_005.0)
    assert (spans["invoke_agent ag"].link, spans["invoke_agent ag"].parent) == (first.id, first.id)
    assert first.parent == int("cd" * 8, 16)


@pytest.mark.parametrize(
    ("traceparent", "expected"),
    [
        (TRACEPARENT, (int("ab" * 16, 16), int("cd" * 8, 16), True)),
        (f"{TRACEPARENT[:-2]}00", (int("ab" * 16, 16), int("cd" * 8, 16), False)),
    ],
)
def test_the_callers_trace_is_continued(traceparent: str, expected: tuple[int, int, bool]) -> None:
    """The caller's sampling decision is kept."""
    assert find_trace("inv", InvocationInput(agent="ag", message="", traceparent=traceparent)) == expected


@pytest.mark.parametrize(
    "traceparent", [None, "", "x", f"00-{'0' * 32}-{'cd' * 8}-01", f"00-{'ab' * 16}-{'0' * 16}-01"]
)
def test_without_a_valid_caller_the_trace_follows_from_the_invocation_id(traceparent: str | None) -> None:
    """An invalid value of the caller is ignored, and the invocation does not fail."""
    trace = find_trace("inv", InvocationInput(agent="ag", message="", traceparent=traceparent))
    assert trace == find_trace("inv", None)
    assert trace.id != find_trace("other", None).id


def test_content_is_left_out_unless_it_is_requested() -> None:
    """Messages, arguments and results are exported only on request."""
    log = log_of(
        user_message("pay SECRET"),
        by_model(model_calls("pay", args={"to": "SECRET"})),
        [tool_returned("fc-1", {"note": "SECRET"}), model_called()],
        by_model(model_replied("SECRET")),
        Ended("completed"),
    )
    assert "SECRET" not in str(list(build_spans(log, now=1_100.0, over=True)))
    spans = {span.name: str(span.attributes) for span in build_spans(log, now=1_100.0, over=True, content=True)}
    assert all("SECRET" in attributes for attributes in spans.values())


def test_an_invocation_with_invalid_input_has_a_span() -> None:
    """The trace of an invocation with invalid input follows from its ID."""
    log = log_of(invocation_began("hi"), Ended("failed"))
    assert spans_of(log)["invoke_agent ag"].attributes["waystation.status"] == "failed"


@pytest.mark.parametrize("name", NAMES)
async def test_every_recorded_fact_has_one_span(name: str) -> None:
    """Every fact has one span, which is the same whether it was exported early or at the end."""
    history, _ = kept(name)
    events = await decode_events(history.events, CONVERTER)
    log = build_log([WorkflowHistory(history.workflow_id, list(events))])
    spans = {span.id: span for span in build_spans(log, now=2e9, over=log.state.outcome.ended is not None)}
    bodies = [entry.body for entry in log.entries]
    replies = sum(isinstance(body, ModelReplied) and body.reply.attempt > 0 for body in bodies)
    lost_calls = sum(isinstance(body, ModelLost) for body in bodies) + len(log.state.runs.asked)
    chats = sum(span.name.startswith("chat") for span in spans.values())
    assert replies <= chats <= replies + lost_calls
    assert all(span.begin <= span.end for span in spans.values())
    trace = find_trace(log.invocation_id, log.state.input)
    first = trace.span_id(log.invocation_id, "invoke")  # of an earlier run, after continue-as-new
    assert {span.parent for span in spans.values()} <= {*spans, None, trace.parent, first}
    assert first in spans or log.entries_before
    part = Log(log.invocation_id)
    for entry, after in pairwise(log.entries if not log.entries_before else []):
        part.append(entry.ref, entry.time, entry.body)
        for span in build_spans(part, now=after.time):
            assert spans[span.id] == span
