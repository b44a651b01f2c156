"""Derive the spans of an invocation from its log.

Pure: the same entries yield the same spans with the same IDs and times, so a span that is exported twice is the same
span. Names and attributes follow OpenTelemetry's semantic conventions for generative AI.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from waystation.core import ids
from waystation.core.actions import ACTIONS
from waystation.core.budget import Usage
from waystation.core.contract import NO_ACTIONS, InvocationInput, ModelReply, user_content
from waystation.core.log import (
    AnswerCounted,
    AnswerVerified,
    Body,
    CallLost,
    CallRef,
    CallReturned,
    CallState,
    ChildReturned,
    DeadlinePassed,
    Ended,
    Entry,
    Failure,
    Log,
    ModelCalled,
    ModelLost,
    ModelReplied,
    ModelReplyRef,
    VerificationRequested,
    without_verdict,
)
from waystation.core.payload import JsonObject, encode

LONG_WAIT_S = 60.0
"""An `invoke_agent` span ends when an invocation stops working for longer than this. Another span begins when the
invocation continues."""
Attributes: TypeAlias = dict[str, str | int | float | tuple[str, ...]]

_PROVIDERS = (
    (re.compile(r"claude-|anthropic/"), "anthropic"),
    (re.compile(r"gpt-|chatgpt-|o\d|openai/"), "openai"),
    (re.compile(r"(?:models/)?(?:gemini|gemma|learnlm)|publishers/google/|projects/"), "gcp.gen_ai"),
    (re.compile(r"vertex_ai/"), "gcp.vertex_ai"),
    (re.compile(r"bedrock/"), "aws.bedrock"),
    (re.compile(r"azure(?:_ai)?/"), "azure.ai.openai"),
    (re.compile(r"mistral/"), "mistral_ai"),
)
"""The providers in the semantic conventions, by the beginnings of the names of their models."""
UNKNOWN_PROVIDER = "unknown"
_TRACEPARENT = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_CALLER = "caller"
"""Key of the span of the tool call that started a called agent, in the called agent's invocation."""


class Trace(NamedTuple):
    """The trace that an invocation belongs to."""

    id: int
    parent: int | None
    """ID of the span that started the invocation, or None if it is not known."""
    sampled: bool = True

    def span_id(self, invocation_id: str, key: str) -> int:
        """Return the ID of a span. The key identifies the span within its invocation."""
        return _digest(f"{self.id:032x}", invocation_id, key) >> 192 or 1


def find_provider_name(model: str) -> str:
    """Return the provider of a model, judging by its name. Names like `groq/llama` begin with it."""
    for pattern, provider in _PROVIDERS:
        if pattern.match(model):
            return provider
    provider, slash, _ = model.partition("/")
    return provider if slash and provider else UNKNOWN_PROVIDER


def _digest(*names: str) -> int:
    return int.from_bytes(sha256("\n".join(names).encode()).digest())


def find_trace(invocation_id: str, started: InvocationInput | None) -> Trace:
    """Return the trace of the program that started an invocation.

    If that program sent none, return a trace whose ID is derived from the ID of the topmost invocation.
    """
    return _find_trace(invocation_id, started and started.origin, started and started.traceparent)


@lru_cache(maxsize=1_000)
def _find_trace(invocation_id: str, origin: str | None, traceparent: str | None) -> Trace:
    match = _TRACEPARENT.fullmatch(traceparent or "")
    if match and int(match[1], 16) and int(match[2], 16):
        trace = Trace(int(match[1], 16), int(match[2], 16), bool(int(match[3], 16) & 1))
    else:
        trace = Trace(_digest("trace", origin or invocation_id) >> 128 or 1, None)
    return trace._replace(parent=trace.span_id(invocation_id, _CALLER)) if origin else trace


@dataclass(slots=True, kw_only=True)
class Span:
    """One fact about an invocation. Times are in seconds since 1970."""

    id: int
    parent: int | None
    name: str
    begin: float
    end: float
    attributes: Attributes
    error: str | None = None
    """The type of the error, or None."""
    link: int | None = None
    """ID of the span that this span continues, or None."""


def build_spans(
    log: Log, *, now: float, over: bool = False, content: bool = False, long_wait_s: float = LONG_WAIT_S
) -> Iterator[Span]:
    """Yield the spans of a run that have ended.

    Args:
        log: The log of the run.
        now: The current time. There are no entries between the last entry and this time.
        over: Whether the run has ended. If its invocation continues, open calls end in a later run.
        content: Whether to include messages, arguments and results.
        long_wait_s: The longest interruption that an `invoke_agent` span includes.
    """
    spans = _Spans(log, content, long_wait_s)
    for position, entry in enumerate(spans.entries):
        ended = list(spans.apply(position, entry))
        yield from spans.follow(entry, is_end=isinstance(entry.body, Ended))
        yield from map(spans.place, ended)
    yield from spans.close(now, over)


class _Spans:
    """Reads entries in order, and remembers what has begun and not ended."""

    def __init__(self, log: Log, content: bool, long_wait_s: float) -> None:
        self._log, self._content, self._long_wait_s = log, content, long_wait_s
        self.entries = list(log.entries)
        self._trace = find_trace(log.invocation_id, log.state.input)
        self._first = self._id("invoke")
        self._models: dict[int, tuple[float, int]] = {}
        """Begin and agent run of each model call in flight, by number."""
        self._running: dict[str, float] = {}
        """Begin of each running function call, by ID."""
        self._waiting: dict[str, float] = {}
        self._decided_at = 0.0
        self._early: set[str] = set()
        """Long-running calls that were answered before their function returned."""
        self._approvals = Counter[str]()
        self._submitted: dict[str, VerificationRequested] = {}
        self._returns = {id: at for at, entry in enumerate(self.entries) if (id := _returned_call(entry.body))}
        """Position of the last entry with which each function call returned."""
        self._part: tuple[int, float, int | None] | None = None
        """ID, begin and predecessor of the current `invoke_agent` span."""
        self._idle_since: float | None = None

    def _id(self, key: str) -> int:
        return self._trace.span_id(self._log.invocation_id, key)

    def apply(self, position: int, entry: Entry) -> Iterator[Span]:
        """Yield the spans that end with an entry, without their parents."""
        time = entry.time
        match entry.body:
            case ModelCalled(number, turn):
                self._models[number] = time, turn
            case ModelReplied(number, reply):
                yield from self._model_span(number, time, reply, None)
                for call in reply.calls:
                    if call.kind != "answered":
                        asks = call.confirmation is not None and call.standing is None
                        (self._waiting if asks else self._running)[call.id] = time
            case ModelLost(number, failure):
                yield from self._model_span(number, time, None, failure)
            case AnswerCounted(function_call_id, answer):
                yield from self._decide(position, function_call_id, time, answer.action)
            case VerificationRequested():
                self._submitted[str(without_verdict(entry.ref))] = entry.body
            case AnswerVerified(ref, _, None) if submitted := self._submitted.pop(ref, None):
                yield from self._decide(position, submitted.function_call_id, time, submitted.answer.action)
            case DeadlinePassed(function_call_id):
                yield from self._decide(position, function_call_id, time, "expired")
            case CallReturned(outcome, run):
                yield from self._return(outcome.function_call_id, run, time, outcome.error_type, outcome.response)
                actions, id = outcome.actions or NO_ACTIONS, outcome.function_call_id
                asks = id in actions.requested_auth_configs or id in actions.requested_tool_confirmations
                if (asks or not outcome.final) and id not in self._early:
                    self._waiting[id] = time
            case ChildReturned(function_call_id, result):
                yield from self._return(function_call_id, 0, time, None, {"result": result.text})
            case CallLost(function_call_id, failure, run):
                yield from self._return(function_call_id, run, time, failure.error_type or failure.kind, None)
            case Ended(status) if status != "continued":
                for number in list(self._models):
                    yield from self._model_span(number, time, None, Failure(kind="cancelled"))
                for function_call_id in list(self._running):
                    yield from self._tool_span(function_call_id, 0, time, "cancelled", None)
                for function_call_id in list(self._waiting):
                    yield from self._wait_span(function_call_id, time, "ended")

    def follow(self, entry: Entry, *, is_end: bool) -> Iterator[Span]:
        """Begin or end an `invoke_agent` span if necessary, after an entry was applied."""
        if self._part is None:
            started, before = self._log.state.input, self._log.entries_before
            inherited = started.fork.entries if started and started.fork else 0
            self._begin_part("invoke" if before <= inherited else f"invoke {before}", entry.time)
        is_idle = not self._models and all(self._calls_agent(id) for id in self._running) and not is_end
        if is_idle and self._idle_since is None:
            self._idle_since = entry.time
        elif not is_idle and self._idle_since is not None:
            idle_since, self._idle_since = self._idle_since, None
            if entry.time - idle_since > self._long_wait_s:
                yield self._end_part(idle_since)
                self._begin_part(f"invoke {entry.ref}", entry.time)

    def close(self, now: float, over: bool) -> Iterator[Span]:
        """Yield the current `invoke_agent` span if it has ended."""
        if self._idle_since is not None and now - self._idle_since > self._long_wait_s:
            yield self._end_part(self._idle_since)
        elif over and self.entries:
            yield self._end_part(self.entries[-1].time)

    def place(self, span: Span) -> Span:
        """Give a span its parent: the `invoke_agent` span in which it began, or else the first one."""
        assert self._part
        id, begin, _ = self._part
        span.parent = id if span.begin >= begin else self._first
        return span

    def _calls_agent(self, function_call_id: str) -> bool:
        call = self._log.state.calls.get(function_call_id)
        return call is not None and call.call.kind == "agent"

    def _begin_part(self, key: str, begin: float) -> None:
        id = self._id(key)
        previous = self._part[0] if self._part else self._first
        self._part = id, begin, None if id == self._first else previous

    def _end_part(self, end: float) -> Span:
        assert self._part
        (id, begin, previous), state = self._part, self._log.state
        about: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": state.agent,
            "waystation.invocation.id": self._log.invocation_id,
        }
        if state.input and state.input.session_id:
            about["gen_ai.conversation.id"] = state.input.session_id
        ended = self.entries[-1].body
        is_last = isinstance(ended, Ended) and end == self.entries[-1].time
        error = None
        if is_last:
            about["waystation.status"] = str(state.outcome.ended)
            error = state.outcome.failure.error_type if state.outcome.failure else None
        if self._content and state.input:
            if id == self._first:
                about["gen_ai.input.messages"] = _messages(user_content(state.input.message))
            if is_last and (said := state.outcome.last_said):
                about["gen_ai.output.messages"] = _messages(said.content)
        name = f"invoke_agent {state.agent}"
        return self._span(id, name, begin, end, about, error, previous and self._first, previous)

    def _model_span(self, number: int, end: float, reply: ModelReply | None, failure: Failure | None) -> Iterator[Span]:
        begin, turn = self._models.pop(number, (end, 0))
        if reply and not reply.attempt:  # only callbacks ran
            return
        run = self._log.state.runs.by_index.get(turn)
        about: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": UNKNOWN_PROVIDER,
            "gen_ai.agent.name": run.agent if run else self._log.state.agent,
        }
        model = None
        if reply:
            model, usage = reply.model or reply.model_version, reply.usage or Usage()
            optional = {"gen_ai.request.model": model, "gen_ai.response.model": reply.model_version}
            about |= {name: value for name, value in optional.items() if value}
            about |= {
                "gen_ai.provider.name": find_provider_name(model or ""),
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens + usage.thoughts_tokens,
                "waystation.attempt": reply.attempt,
            }
            if reply.finish_reason:
                about["gen_ai.response.finish_reasons"] = (reply.finish_reason.lower(),)
            if self._content:
                about["gen_ai.output.messages"] = _messages(reply.content)
        error = failure.error_type or failure.kind if failure else reply.error_code if reply else None
        key = str(ModelReplyRef(number))
        yield self._span(self._id(key), f"chat {model}" if model else "chat", begin, end, about, error)

    def _return(
        self, function_call_id: str, run: int, time: float, error: str | None, response: JsonObject | None
    ) -> Iterator[Span]:
        """Yield the spans that end when a function call returns. Work before or after a target is part of its span."""
        if function_call_id in self._waiting:  # the answer to another call, such as a login, also counted for this one
            yield from self._wait_span(function_call_id, self._decided_at, "approve")
            self._running[function_call_id] = self._decided_at
        call = self._log.state.calls.get(function_call_id)
        if call is None:
            return
        checks = int(call.call.target is not None and call.call.target.check)
        has_target = call.call.kind == "agent" or call.call.target is not None
        is_check, has_callbacks = run < checks and error is None, run == checks and call.call.after
        if has_target and (is_check or has_callbacks):
            return
        yield from self._tool_span(function_call_id, run, time, error, response)

    def _tool_span(
        self, function_call_id: str, run: int, end: float, error: str | None, response: JsonObject | None
    ) -> Iterator[Span]:
        call = self._log.state.calls.get(function_call_id)
        begin = self._running.pop(function_call_id, self.entries[0].time)
        if call is None:
            return
        about: Attributes = {**_describe_call(call), "gen_ai.operation.name": "execute_tool"}
        about["gen_ai.tool.type"] = "function"
        if self._content:
            about["gen_ai.tool.call.arguments"] = encode(call.args).decode()
            about |= {} if response is None else {"gen_ai.tool.call.result": encode(response).decode()}
        id = self._trace.span_id(*call_key(self._log.invocation_id, call, run))
        yield self._span(id, f"execute_tool {call.name}", begin, end, about, error)

    def _decide(self, position: int, function_call_id: str, time: float, action: str) -> Iterator[Span]:
        function_call_id = ids.requesting_call(function_call_id)
        call, row = self._log.state.calls.get(function_call_id), ACTIONS.get(action)  # a passed deadline has no row
        if call is None or (row and not row.decides):
            return
        if function_call_id in self._running:
            self._early.add(function_call_id)
            return
        self._approvals[function_call_id] = (
            1 if action == "edit" else self._approvals[function_call_id] + (action == "approve")
        )
        if row and row.approves and self._approvals[function_call_id] < call.approvals_needed:
            return
        self._decided_at = time
        yield from self._wait_span(function_call_id, time, action)
        if self._returns.get(function_call_id, -1) > position or call.performing:
            self._running[function_call_id] = time

    def _wait_span(self, function_call_id: str, end: float, outcome: str) -> Iterator[Span]:
        call = self._log.state.calls.get(function_call_id)
        begin = self._waiting.pop(function_call_id, None)
        if call is None or (begin is None and call.requested_at is None):
            return
        begin = begin if begin is not None else call.requested_at or end  # the wait began in an earlier run
        kind = call.asked or ("confirmation" if call.call.kind != "long_running" else "long_running")
        about: Attributes = {
            **_describe_call(call),
            "waystation.operation.name": "wait",
            "waystation.wait.kind": kind,
            "waystation.wait.outcome": outcome,
        }
        yield self._span(self._id(f"wait {function_call_id} {begin!r}"), f"wait {call.name}", begin, end, about)

    def _span(
        self,
        id: int,
        name: str,
        begin: float,
        end: float,
        about: Attributes,
        error: str | None = None,
        parent: int | None = None,
        link: int | None = None,
    ) -> Span:
        if error:
            about["error.type"] = error
        parent = self._trace.parent if parent is None else parent
        return Span(id=id, parent=parent, name=name, begin=begin, end=end, attributes=about, error=error, link=link)


def call_key(invocation_id: str, call: CallState, run: int) -> tuple[str, str]:
    """Return the invocation ID and the key of the span of a function call.

    The span of a called agent's call has a key in the called agent's invocation, which derives its parent from it.
    """
    if call.call.kind == "agent":
        return ids.child_invocation(invocation_id, call.id), _CALLER
    return invocation_id, str(CallRef(call.id, 0 if call.call.target else run))


def _returned_call(body: Body) -> str | None:
    match body:
        case CallReturned(outcome):
            return outcome.function_call_id
        case ChildReturned(function_call_id) | CallLost(function_call_id):
            return function_call_id
    return None


def _describe_call(call: CallState) -> Attributes:
    return {"gen_ai.agent.name": call.agent, "gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id}


def _messages(content: JsonObject | None) -> str:
    """Return a genai `Content` as JSON in the form of the semantic conventions."""
    content = content or {}
    role = "assistant" if content.get("role") == "model" else "user"
    return encode([{"role": role, "parts": [_part(part) for part in content.get("parts", ())]}]).decode()


def _part(part: dict[str, Any]) -> JsonObject:
    match part:
        case {"text": str(text)}:
            return {"type": "text", "content": text}
        case {"functionCall": {**call}}:
            return {"type": "tool_call", "id": call.get("id"), "name": call.get("name"), "arguments": call.get("args")}
    return {"type": next(iter(part), "unknown")}
