"""Metrics are derived from the log: each fact is counted once, and the values of labels are bounded."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import pytest
from temporalio.client import WorkflowHistory
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

from tests.corpus.test_corpus import CONVERTER, NAMES, kept
from tests.documents import DOCS
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
from tests.unit.test_spans import by_model
from waystation.core.approval import Answer, Verification
from waystation.core.budget import Price, Usage
from waystation.core.log import (
    AnswerIgnored,
    AnswerVerified,
    Body,
    Ended,
    Failure,
    Held,
    Log,
    ModelReplied,
    VerificationRequested,
    parse_ref,
)
from waystation.core.projection import Snapshot
from waystation.history import build_log, decode_events
from waystation.worker.metric_export import MAX_CHARS, MAX_VALUES, MetricExport
from waystation.worker.metrics import FROM_LOG, MODEL_SECONDS, QUOTA_SECONDS, measure, when_requested
from waystation.worker.namespace_metrics import OF_NAMESPACE
from waystation.worker.status_server import CHECK

TELEMETRY = DOCS / "reference" / "telemetry.md"
METRICS = (*FROM_LOG, QUOTA_SECONDS, CHECK, *OF_NAMESPACE)
PRICE = Price(prompt=1.0, output=10.0)


def measured(log: Log, start: int = 0) -> dict[str, float]:
    """Return the sum of the values of each metric and its labels, as in `waystation_holds_total ag model_missing`."""
    values = defaultdict[str, float](float)
    prices = {"gemini-9": PRICE}
    for metric, value, labels in measure(log, log.since(start), when_requested(log), prices.get):
        assert tuple(sorted(labels)) == tuple(sorted(metric.labels))
        values[" ".join((metric.name, *(labels[name] for name in metric.labels)))] += value
    return dict(values)


def test_a_model_call_has_a_duration_tokens_and_a_cost() -> None:
    """Thoughts count as output. The price comes from the table if the budget has none."""
    used = Usage(prompt_tokens=1_000, output_tokens=200, thoughts_tokens=100)
    log = log_of(
        user_message("hi"), by_model(model_replied("hello"), usage=used, model_version="gemini-9", duration_s=0.5)
    )
    assert measured(log) == {
        "waystation_model_call_duration_seconds ag gemini-9": 0.5,
        "waystation_tokens_total ag gemini-9 input": 1_000,
        "waystation_tokens_total ag gemini-9 output": 300,
        "waystation_model_call_cost ag gemini-9": pytest.approx(0.004),
    }


def test_a_reply_of_callbacks_is_not_a_model_call() -> None:
    """A reply of a callback does not count, because no model used time or tokens."""
    assert measured(log_of(user_message("hi"), model_replied("hello"))) == {}


def test_a_failed_tool_call_counts_once_with_its_error() -> None:
    """A lost call has no duration, because no attempt returned."""
    log = log_of(
        user_message("look"),
        model_calls("lookup", "find"),
        tool_returned("fc-1", {"error": "no"}, error_type="ValueError", duration_s=2.0),
        tool_lost("fc-2"),
    )
    assert measured(log) == {
        "waystation_tool_call_duration_seconds ag lookup": 2.0,
        "waystation_tool_failures_total ag lookup ValueError": 1,
        "waystation_tool_failures_total ag find heartbeat": 1,
    }


def test_a_canceled_call_is_not_a_failure() -> None:
    """A canceled call does not count as a failure, because an operator or an approver stopped it."""
    assert measured(log_of(user_message("look"), model_calls("lookup"), tool_lost("fc-1", "cancelled"))) == {}


def test_an_unknown_tool_name_is_not_a_label() -> None:
    """An unknown tool name is not a label, because a model could create any number of time series."""
    log = log_of(
        user_message("look"), model_calls("sesame", unknown=True), tool_returned("fc-1", error_type="UnknownTool")
    )
    assert set(measured(log)) == {
        "waystation_tool_call_duration_seconds ag unknown",
        "waystation_tool_failures_total ag unknown UnknownTool",
    }


@pytest.mark.parametrize(
    ("end", "action"),
    [(answered("fc-1"), "approve"), (answered("fc-1", "reject"), "reject"), (expired("fc-1"), "expired")],
)
def test_the_time_to_an_answer_counts_from_the_request(end: Body, action: str) -> None:
    """A view or a claim is not an answer, but a deadline is."""
    log = log_of(
        user_message("pay"), model_calls("pay", gated=True), answered("fc-1", "view"), answered("fc-1", "claim"), end
    )
    assert measured(log) == {f"waystation_answer_delay_seconds ag pay {action}": 3.0}


def test_a_verified_answer_counts_after_its_verification() -> None:
    """A submitted answer that is refused counts as refused instead."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True))
    for number, refused in enumerate((AnswerIgnored("NotAllowed", "no"), None), 1):
        submitted = VerificationRequested("fc-1", Answer(function_call_id="fc-1", action="approve"))
        log.append(parse_ref(f"s{number}"), 1_010.0 + number, submitted)
        log.append(parse_ref(f"r:s{number}"), 1_020.0 + number, AnswerVerified(f"s{number}", Verification(), refused))
    assert measured(log) == {
        "waystation_answers_refused_total NotAllowed": 1,
        "waystation_answer_delay_seconds ag pay approve": 21.0,
    }


def test_an_ignored_answer_counts_by_its_reason() -> None:
    """The reason is the name of an error, not text of the sender."""
    log = log_of(
        user_message("pay"), AnswerIgnored("UnknownCall", "No call 'x'"), AnswerIgnored("UnknownCall", "No call 'y'")
    )
    assert measured(log) == {"waystation_answers_refused_total UnknownCall": 2}


def test_a_hold_counts_once_however_often_it_is_recorded() -> None:
    """A hold counts once, although workers keep trying the held work."""
    held = Held("fc-1", Failure(kind="error", hold="tool_missing"))
    log = log_of(user_message("look"), by_model(model_calls("lookup")), held, held)
    assert measured(log)["waystation_holds_total ag tool_missing"] == 1


def test_an_invocation_counts_when_it_ends() -> None:
    """A run that continues as new does not count as the end of the invocation."""
    log = log_of(user_message("hi"), by_model(model_replied("hello")), Ended("failed"))
    assert measured(log, 3) == {"waystation_invocations_total ag failed": 1}
    assert measured(log_of(user_message("hi"), Ended("continued"))) == {}


def test_an_agent_without_a_reply_is_not_a_label() -> None:
    """The name of an agent without a reply is not a label, because anyone can start an invocation with any name."""
    assert measured(log_of(invocation_began("hi"), Ended("failed"))) == {
        "waystation_invocations_total unknown failed": 1
    }


@pytest.mark.parametrize("name", NAMES[::8])
async def test_every_recorded_model_reply_counts_once(name: str) -> None:
    """Every model reply in every kept history counts once."""
    history, _ = kept(name)
    events = await decode_events(history.events, CONVERTER)
    log = build_log([WorkflowHistory(history.workflow_id, list(events))])
    bodies = [entry.body for entry in log.entries]
    replies = sum(isinstance(body, ModelReplied) and body.reply.attempt > 0 for body in bodies)
    measurements = list(measure(log, log.entries, when_requested(log)))
    assert sum(metric is MODEL_SECONDS for metric, _, _ in measurements) == replies
    assert all(set(labels) == set(metric.labels) for metric, _, labels in measurements)


class Recorded:
    """The measurements of an export with a meter of the SDK."""

    def __init__(self, *, tenants: bool = False) -> None:
        self._buffer = MetricBuffer(10_000)
        runtime = Runtime(telemetry=TelemetryConfig(metrics=self._buffer, attach_service_name=False))
        self.export = MetricExport(runtime.metric_meter, tenants=tenants)

    def updates(self) -> Iterator[tuple[str, float, Mapping[str, object]]]:
        """Yield name, value and labels of the measurements since the last call."""
        self.export.close()
        for update in self._buffer.retrieve_updates():
            if update.metric.name.startswith("waystation_"):
                yield update.metric.name, update.value, update.attributes


def test_entries_that_another_worker_counted_are_not_counted_again() -> None:
    """Entries are not counted again when the workflow moves to this worker, which replays it first."""
    log, recorded = (
        log_of(user_message("look"), model_calls("lookup"), tool_returned("fc-1", duration_s=1.0)),
        Recorded(),
    )
    recorded.export.receive("run", log, True)
    log.append(parse_ref("m9"), 1_009.0, model_called())
    log.append(parse_ref("end"), 1_010.0, Ended("completed"))
    recorded.export.receive("run", log, False)
    assert list(recorded.updates()) == [("waystation_invocations", 1, {"agent": "ag", "status": "completed"})]


def test_a_workflow_task_that_is_repeated_is_not_counted_again() -> None:
    """A repeated workflow task is not counted again, although it has another log object and is not a replay."""
    recorded = Recorded()
    for _ in range(3):
        recorded.export.receive("run", log_of(user_message("pay"), AnswerIgnored("InvalidAnswer", "no")), False)
    assert len(list(recorded.updates())) == 1


def test_a_call_that_asks_again_counts_its_first_answer() -> None:
    """The first answer counts, although the tool may have asked again before the export reads the log."""
    recorded, log = Recorded(), log_of(user_message("pay"), model_calls("pay", gated=True), answered("fc-1"))
    recorded.export.receive("run", log, False)
    log.state.calls["fc-1"].wait(1_060.0)
    assert [(name, value) for name, value, _ in recorded.updates()] == [("waystation_answer_delay_seconds", 1.0)]


def test_a_continued_run_counts_only_its_own_entries() -> None:
    """The snapshot of earlier runs is not counted again."""
    before = log_of(user_message("pay"), model_calls("pay", gated=True), AnswerIgnored("InvalidAnswer", "no"))
    assert before.state.input
    log, recorded = Snapshot.of(before).restored("inv", before.state.input), Recorded()
    log.append(parse_ref("s1"), 1_005.0, answered("fc-1"))
    recorded.export.receive("next-run", log, False)
    assert [(name, value) for name, value, _ in recorded.updates()] == [("waystation_answer_delay_seconds", 4.0)]


def test_the_number_of_values_of_a_label_is_limited() -> None:
    """The values of a label are limited in number and length, because a toolset can have any number of tools."""
    recorded = Recorded()
    for number in range(MAX_VALUES + 10):
        log = log_of(user_message("go"), model_calls(f"{number}-{'x' * MAX_CHARS}"), tool_returned("fc-1"))
        recorded.export.receive(f"run-{number}", log, False)
    tools = Counter(str(labels["tool"]) for _, _, labels in recorded.updates())
    assert len(tools) == MAX_VALUES + 1
    assert tools["other"] == 10
    assert max(map(len, tools)) == MAX_CHARS


@pytest.mark.parametrize(("tenants", "label"), [(False, None), (True, "acme")])
def test_the_tenant_is_a_label_only_on_request(tenants: bool, label: str | None) -> None:
    """By default, the tenant is not a label, because there may be many tenants.

    A refused answer has neither agent nor tenant.
    """
    recorded = Recorded(tenants=tenants)
    log = log_of(
        user_message("go", tenant="acme"),
        model_calls("look"),
        tool_returned("fc-1"),
        AnswerIgnored("InvalidAnswer", ""),
    )
    recorded.export.receive("run", log, False)
    labels_by_name = {name: labels.get("tenant") for name, _, labels in recorded.updates()}
    assert labels_by_name == {"waystation_tool_call_duration_seconds": label, "waystation_answers_refused": None}


def test_the_reference_lists_each_metric() -> None:
    """The reference lists each metric with its type and labels."""
    rows = re.findall(r"^\| `(waystation_\w+)` \| (\w+) \|([^|]*)\|", TELEMETRY.read_text(), re.MULTILINE)
    listed = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert listed == {metric.name: (metric.kind, metric.labels) for metric in METRICS}
