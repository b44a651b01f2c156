"""The metrics of workers, and how they are derived from the entries of a log.

Pure: the same entries yield the same measurements.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from waystation.core import ids
from waystation.core.actions import ACTIONS
from waystation.core.budget import QUOTA_WAIT, Price
from waystation.core.contract import ModelReply
from waystation.core.log import (
    AnswerCounted,
    AnswerIgnored,
    AnswerVerified,
    CallLost,
    CallReturned,
    DeadlinePassed,
    Ended,
    Entry,
    Held,
    Log,
    ModelCalled,
    ModelLost,
    ModelReplied,
    VerificationRequested,
    without_verdict,
)

UNKNOWN = "unknown"
"""Value of a label whose real value is not known, or was not chosen by the operator."""
FindPrice: TypeAlias = Callable[[str], Price | None]
_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, with its name as exported."""

    name: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without infinity."""

    @property
    def kind(self) -> Literal["counter", "gauge", "histogram"]:
        """Prometheus's type of the metric."""
        return "histogram" if self.buckets else "counter" if self.name.endswith("_total") else "gauge"


_DURATIONS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
INVOCATIONS = Metric("waystation_invocations_total", "Invocations that ended", ("agent", "status"))
MODEL_SECONDS = Metric(
    "waystation_model_call_duration_seconds",
    "Duration of the attempt that produced a model's reply, with callbacks",
    ("agent", "model"),
    _DURATIONS,
)
MODEL_FAILURES = Metric(
    "waystation_model_failures_total", "Model calls without a usable reply after all attempts", ("agent", "error")
)
TOKENS = Metric("waystation_tokens_total", "Tokens of model calls", ("agent", "model", "direction"))
COST = Metric(
    "waystation_model_call_cost",
    "Cost of a model call whose price is known",
    ("agent", "model"),
    (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0),
)
TOOL_SECONDS = Metric(
    "waystation_tool_call_duration_seconds",
    "Duration of the attempt with which a tool returned",
    ("agent", "tool"),
    _DURATIONS,
)
TOOL_FAILURES = Metric(
    "waystation_tool_failures_total", "Tool calls that ended with an error", ("agent", "tool", "error")
)
ANSWER_SECONDS = Metric(
    "waystation_answer_delay_seconds",
    "Time from a pending call's request to an answer or to its deadline",
    ("agent", "tool", "action"),
    (1.0, 10.0, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 4 * _HOUR, 8 * _HOUR, _DAY, 3 * _DAY, 7 * _DAY, 30 * _DAY),
)
REFUSED = Metric("waystation_answers_refused_total", "Answers that did not count", ("reason",))
HOLDS = Metric("waystation_holds_total", "Model calls and tool calls that began to be held", ("agent", "reason"))
FROM_LOG = (
    INVOCATIONS,
    MODEL_SECONDS,
    MODEL_FAILURES,
    TOKENS,
    COST,
    TOOL_SECONDS,
    TOOL_FAILURES,
    ANSWER_SECONDS,
    REFUSED,
    HOLDS,
)
"""The metrics that are derived from logs."""
QUOTA_SECONDS = Metric(*QUOTA_WAIT, ("model",), (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0))


class Measurement(NamedTuple):
    """A value of a metric. The value of a counter is the amount to add."""

    metric: Metric
    value: float
    labels: Mapping[str, str]


def when_requested(log: Log) -> dict[str, float]:
    """Return when an answer to each call was requested last, by the ID of the call."""
    return {id: call.requested_at for id, call in log.state.calls.items() if call.requested_at is not None}


def measure(
    log: Log,
    entries: Iterable[Entry],
    requested_at: Mapping[str, float],
    find_price: FindPrice = lambda _model: None,
) -> Iterator[Measurement]:
    """Yield the measurements of some of a log's entries.

    Args:
        log: The log, which may have later entries.
        entries: The entries.
        requested_at: What `when_requested` returned after the last of the entries was applied.
        find_price: Returns the price of a model for which neither the invocation's budget nor the reply has one.
    """
    for entry in entries:
        yield from _Facts(log, entry, requested_at).measure(find_price)


class _Facts:
    """One entry and the log that it belongs to."""

    def __init__(self, log: Log, entry: Entry, requested_at: Mapping[str, float]) -> None:
        self._log, self._entry, self._requested_at = log, entry, requested_at

    def measure(self, find_price: FindPrice) -> Iterator[Measurement]:
        """Yield the measurements of the entry."""
        match self._entry.body:
            case ModelReplied(number, reply) if reply.attempt:  # otherwise only callbacks ran
                yield from self._measure_reply(self._find_agent(number), reply, find_price)
            case ModelLost(number, failure):
                error = failure.hold or failure.error_type or failure.kind
                yield Measurement(MODEL_FAILURES, 1, {"agent": self._find_agent(number), "error": error})
            case CallReturned(outcome) if not outcome.proceed:
                yield Measurement(TOOL_SECONDS, outcome.duration_s, self._describe(outcome.function_call_id))
                yield from self._fail(outcome.function_call_id, outcome.error_type)
            case CallLost(function_call_id, failure) if failure.kind != "cancelled":
                yield from self._fail(function_call_id, failure.hold or failure.error_type or failure.kind)
            case AnswerCounted(function_call_id, answer):
                yield from self._answer(function_call_id, answer.action)
            case AnswerVerified(ref, _, None):
                submitted = self._find_submitted(ref)
                if submitted:
                    yield from self._answer(submitted.function_call_id, submitted.answer.action)
            case AnswerIgnored(reason) | AnswerVerified(refused=AnswerIgnored(reason)):
                yield Measurement(REFUSED, 1, {"reason": reason})
            case DeadlinePassed(function_call_id):
                yield from self._answer(function_call_id, "expired")
            case Held(activity_id, failure):
                hold = self._log.state.holds.get(activity_id)
                if hold is None or hold.since == self._entry.time:
                    yield Measurement(HOLDS, 1, {"agent": self._agent, "reason": failure.hold})
            case Ended(status) if status != "continued":
                yield Measurement(INVOCATIONS, 1, {"agent": self._agent, "status": status})

    @property
    def _agent(self) -> str:
        """The agent that was started. Anyone can start an invocation with any name, but only an agent replies."""
        log = self._log
        has_run = log.entries_before or any(isinstance(entry.body, ModelReplied) for entry in log.entries)
        return log.state.agent if has_run else UNKNOWN

    def _find_agent(self, number: int) -> str:
        """Return the agent that made a model call."""
        for entry in reversed(self._log.entries):
            if isinstance(entry.body, ModelCalled) and entry.body.number == number:
                run = self._log.state.runs.by_index.get(entry.body.turn)
                return run.agent if run and run.agent != self._log.state.agent else self._agent
        return self._agent

    def _measure_reply(self, agent: str, reply: ModelReply, find_price: FindPrice) -> Iterator[Measurement]:
        names = [name for name in (reply.model, reply.model_version) if name]
        labels = {"agent": agent, "model": names[0] if names else UNKNOWN}
        yield Measurement(MODEL_SECONDS, reply.duration_s, labels)
        if reply.error_code:
            yield Measurement(MODEL_FAILURES, 1, {"agent": agent, "error": reply.error_code})
        if usage := reply.usage:
            written = usage.output_tokens + usage.thoughts_tokens
            yield Measurement(TOKENS, usage.prompt_tokens, {**labels, "direction": "input"})
            yield Measurement(TOKENS, written, {**labels, "direction": "output"})
            price = self._log.state.budget.price(names, reply.prices) or next(
                filter(None, map(find_price, names)), None
            )
            if price:
                yield Measurement(COST, price.of(usage), labels)

    def _describe(self, function_call_id: str) -> dict[str, str]:
        call = self._log.state.calls.get(ids.requesting_call(function_call_id))
        if call is None:
            return {"agent": self._agent, "tool": UNKNOWN}
        return {"agent": call.agent, "tool": UNKNOWN if call.call.unknown else call.name}

    def _fail(self, function_call_id: str, error: str | None) -> Iterator[Measurement]:
        if error:
            yield Measurement(TOOL_FAILURES, 1, {**self._describe(function_call_id), "error": error})

    def _answer(self, function_call_id: str, action: str) -> Iterator[Measurement]:
        requested_at = self._requested_at.get(ids.requesting_call(function_call_id))
        row = ACTIONS.get(action)  # a passed deadline has no row
        if requested_at is not None and not (row and not row.decides):
            delay = max(self._entry.time - requested_at, 0.0)
            yield Measurement(ANSWER_SECONDS, delay, {**self._describe(function_call_id), "action": action})

    def _find_submitted(self, ref: str) -> VerificationRequested | None:
        for entry in self._log.entries:
            if isinstance(entry.body, VerificationRequested) and str(without_verdict(entry.ref)) == ref:
                return entry.body
        return None
