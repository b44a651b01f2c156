"""The log of one invocation: entries in the order in which the workflow applied them, and what they add up to.

The workflow, the activities and every reader outside build the same log from the same history. Whatever a log answers
is a function of its entries; nothing is ever taken back, so a reader may follow it from any index.
"""

from collections.abc import Iterator
from typing import Any, assert_never

from waystation.core import ids, responses
from waystation.core.call import REQUEST_CONFIRMATION, CallState
from waystation.core.entry import (
    AnswerCounted,
    AnswerIgnored,
    Began,
    Body,
    CallLost,
    CallReturned,
    CancelRequested,
    ChildReturned,
    DeadlinePassed,
    Ended,
    Entry,
    Failure,
    ModelCalled,
    ModelLost,
    ModelReplied,
    Refused,
)
from waystation.core.event import NO_ACTIONS, Event, EventActions, merge_actions, text_of
from waystation.core.payload import JsonObject
from waystation.core.state import StateFold
from waystation.core.wire import (
    NO_USAGE,
    Answer,
    InvocationInput,
    InvocationResult,
    ModelReply,
    PendingCall,
    ToolOutcome,
    user_content,
)

NOBODY = "waystation"
"""Author of what is said of an invocation that no agent could begin."""
MAX_IGNORED_EVENTS = 100
"""Further ignored answers are counted but get no event of their own, so that a flood stays cheap."""


class Log:
    """Entries, and their sum: events, state, calls, and what the model has not seen yet."""

    def __init__(self, invocation_id: str) -> None:
        self.invocation_id = invocation_id
        self.entries: list[Entry] = []
        self.events: list[Event] = []
        self.input: InvocationInput | None = None
        self.calls: dict[str, CallState] = {}
        self.batch: list[CallState] = []
        """The calls of the latest reply."""
        self.model_calls = 0
        self.model_in_flight = False
        self.unread = False
        """Whether something arrived that the model should be told."""
        self.failure: Failure | None = None
        self.cancelled = False
        self.ended: Ended | None = None
        self.usage = NO_USAGE
        self.ignored = 0
        self._state = StateFold({})
        self._open: dict[str, CallState] = {}
        """Calls that wait for a person or may yet be answered by one."""
        self._held: list[tuple[str, list[JsonObject]]] = []
        """Responses (author, parts) that arrived while the model or a tool was busy; they follow in order."""

    # What the entries add up to.

    @property
    def agent(self) -> str:
        """Name of the agent that acts."""
        return self.input.agent if self.input else NOBODY

    @property
    def root(self) -> str:
        """Name of the root agent in whose tree the acting agent is found."""
        return (self.input.root or self.input.agent) if self.input else ""

    @property
    def state(self) -> JsonObject:
        """The state, `temp:` included. Not to be modified."""
        return self._state.value

    def waiting(self) -> list[CallState]:
        """Return the calls that wait for a person, in the order in which they were made."""
        return [call for call in self._open.values() if call.waiting]

    def pending(self) -> list[PendingCall]:
        """Return what waits for a person, as seen from outside."""
        if self.input is None:
            return []
        who = self.input.user_id, self.input.session_id
        return [call.pending(self.invocation_id, *who) for call in self.waiting()]

    def performing(self) -> list[CallState]:
        """Return the calls that have to be, or are being, carried out."""
        return [call for call in self.batch if call.performing]

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of all that waits, in seconds since 1970."""
        return min((call.deadline for call in self._open.values() if call.deadline is not None), default=None)

    def result(self, reason: str | None = None) -> InvocationResult:
        """Return what the invocation gives to whoever started it; `reason` when it stopped early."""
        last = next((e for e in reversed(self.events) if e.author != "user" and (e.content or e.error_code)), None)
        reason = reason or (last.error_message or last.error_code if last and last.error_code else None)
        delta, removed = self._state.since_start()
        return InvocationResult(
            status="stopped" if reason else "completed",
            reason=reason,
            text=text_of(last.content) if last else "",
            content=last.content if last else None,
            state_delta=delta,
            removed_keys=removed,
            usage=self.usage,
            invocation_id=self.invocation_id,
        )

    def refs(self, start: int) -> tuple[str, ...]:
        """Return the references of the entries from index `start` on."""
        return tuple(entry.ref for entry in self.entries[start:])

    # Growing.

    def advance(self, now: float) -> None:
        """Let every deadline pass that is not after `now`.

        Called before anything else is applied: a late answer is delivered before the timer that already fired.
        """
        due = [(call.deadline, call.id) for call in self._open.values() if call.deadline is not None]
        for deadline, function_call_id in sorted(due):
            if deadline <= now:
                self.append(ids.deadline_passed(function_call_id), now, DeadlinePassed(function_call_id))

    def record(self, ref: str, now: float, body: Body) -> None:
        """Append an entry, after the deadlines that passed before it."""
        self.advance(now)
        self.append(ref, now, body)

    def append(self, ref: str, now: float, body: Body) -> None:
        """Append an entry as it stands."""
        self.entries.append(Entry(ref, now, body))
        match body:
            case Began():
                self._begin(now, body.input)
            case Refused():
                self.failure = Failure(kind="error", error_type="InvalidInput", message=body.message)
            case ModelCalled():
                self.model_calls, self.model_in_flight, self.unread = body.number, True, False
            case ModelReplied():
                self._reply(now, body.number, body.reply)
            case ModelLost():
                self.model_in_flight = False
                self.failure = body.failure
            case CallReturned():
                self._perform(now, self.calls.get(body.outcome.function_call_id), body.outcome)
            case ChildReturned():
                self.usage = self.usage + body.result.usage
                call = self.calls.get(body.function_call_id)
                self._perform(now, call, responses.of_child(call, body.result) if call else None)
            case CallLost():
                call = self.calls.get(body.function_call_id)
                self._perform(now, call, responses.lost(call, body.failure) if call else None)
            case AnswerCounted():
                self._answer(now, self.calls[body.function_call_id], body.answer)
            case AnswerIgnored():
                self._ignore(now, body)
            case DeadlinePassed():
                self._expire(now, self.calls[body.function_call_id])
            case CancelRequested():
                self.cancelled = True
            case Ended():
                self._end(now, body)
            case _:
                assert_never(body)

    def _begin(self, now: float, started: InvocationInput) -> None:
        self.input = started
        self._state = StateFold(started.state)
        self.unread = True
        self._emit(now, "user", user_content(started.message))

    def _reply(self, now: float, number: int, reply: ModelReply) -> None:
        self.model_in_flight = False
        if reply.usage:
            self.usage = self.usage + reply.usage
        if reply.actions:
            self._state.apply(reply.actions)
        self.batch = [
            CallState(
                call=call,
                name=part.get("name") or "",
                args=part.get("args") or {},
                agent=self.agent,
                reply=number,
                gate="waiting" if call.confirmation else "none",
                requested_at=now if call.confirmation else None,
            )
            for call, part in zip(reply.calls, _function_calls(reply), strict=True)
        ]
        self.calls.update((call.id, call) for call in self.batch)
        self._open.update((call.id, call) for call in self.batch if call.answerable)
        self._emit(
            now,
            self.agent,
            reply.content,
            actions=reply.actions or NO_ACTIONS,
            long_running_tool_ids=tuple(c.id for c in self.batch if c.call.kind == "long_running")
            if self.batch
            else None,
            finish_reason=reply.finish_reason,
            error_code=reply.error_code,
            error_message=reply.error_message,
            usage_metadata=reply.usage.model_dump(exclude_defaults=True) if reply.usage else None,
            model_version=reply.model_version,
        )
        gated = [call for call in self.batch if call.gate == "waiting"]
        if gated:
            self._emit(
                now,
                self.agent,
                {"role": "model", "parts": [call.request_part() for call in gated]},
                long_running_tool_ids=tuple(ids.confirmation(call.id) for call in gated),
            )
        for call in self.batch:
            if call.call.kind == "answered":
                call.close(call.call.response or {})
                call.outcome = ToolOutcome(function_call_id=call.id, response=call.response)
        self._settle(now)

    def _perform(self, now: float, call: CallState | None, outcome: ToolOutcome | None) -> None:
        if call is None or outcome is None or call.outcome is not None:
            return
        call.outcome = outcome
        if outcome.fatal:
            self.failure = Failure(
                kind="error",
                error_type=outcome.error_type or "ToolFailed",
                message=f"The tool {call.name!r} raised.",
            )
        if call.call.kind == "long_running" and not outcome.final:
            call.requested_at = now
            if not call.closed and outcome.response is not None:
                # Progress that came before the function had returned is newer than what it returned.
                call.response = outcome.response if call.response is None else call.response
                call.responded = True
        elif not call.closed:
            call.close(outcome.response or {})
        self._settle(now)

    def _answer(self, now: float, call: CallState, answer: Answer) -> None:
        if answer.answer_id:
            call.answer_ids[answer.answer_id] = None
        if call.gate == "waiting":
            self._answer_confirmation(now, call, answer)
        else:
            call.response = responses.answered(answer)
            if answer.action != "progress":
                call.answer, call.answered_at, call.closed = answer, now, True
            if answer.action != "progress" or answer.wake:
                call.responded = self.unread = True
            self._held.append(("user", [call.response_part(call.response)]))
        self._settle(now)

    def _answer_confirmation(self, now: float, call: CallState, answer: Answer) -> None:
        call.answer, call.answered_at = answer, now
        confirmed = answer.action != "reject"
        said: JsonObject = {"confirmed": confirmed}
        if answer.response is not None:
            said["payload"] = answer.response
        part = {"id": ids.confirmation(call.id), "name": REQUEST_CONFIRMATION, "response": said}
        self._emit(now, "user", {"role": "user", "parts": [{"functionResponse": part}]})
        if confirmed:
            call.gate = "passed"
            if answer.action == "edit":
                call.shown, call.args = call.args, dict(answer.args or {})
        else:
            self._refuse(call, responses.rejected(answer))

    def _expire(self, now: float, call: CallState) -> None:
        call.expired = True
        self._refuse(call, responses.expired(call))
        self._settle(now)

    def _refuse(self, call: CallState, response: JsonObject) -> None:
        """Close a call that a person did not let through; one that has already run keeps its outcome."""
        if call.gate == "waiting":
            call.gate = "refused"
        self.unread = True
        call.close(response)
        if call.outcome is None:
            call.outcome = ToolOutcome(function_call_id=call.id, response=response)
        else:
            self._held.append((call.agent, [call.response_part(response)]))

    def _settle(self, now: float) -> None:
        """Once nothing is being carried out, merge what is new into one event, then let held responses follow.

        Source: adk-semantics 7.1; one event for each batch, parts and actions in call order.
        """
        if self.model_in_flight or any(call.performing for call in self.batch):
            return
        self._flush(now)
        for author, parts in self._held:
            self._emit(now, author, {"role": "user", "parts": parts})
        self._held.clear()
        for function_call_id in [key for key, call in self._open.items() if not (call.answerable or call.waiting)]:
            del self._open[function_call_id]

    def _flush(self, now: float) -> None:
        fresh = [call for call in self.batch if call.outcome is not None and not call.flushed]
        if not fresh:
            return
        parts: list[JsonObject] = []
        for call in fresh:
            call.flushed = True
            outcome = call.outcome
            assert outcome is not None
            # An answer that came before the function had returned stands; the interim response is then old news.
            if outcome.response is not None and not (call.answer and call.gate == "none"):
                parts.append(call.response_part(outcome.response))
                parts.extend(outcome.parts)
        actions = merge_actions([call.outcome.actions or NO_ACTIONS for call in fresh if call.outcome])
        self._state.apply(actions)
        if parts or actions != NO_ACTIONS:
            self._emit(now, fresh[0].agent, {"role": "user", "parts": parts} if parts else None, actions=actions)
        if any(call.responded for call in fresh):
            self.unread = self.unread or not actions.skip_summarization

    def _ignore(self, now: float, body: AnswerIgnored) -> None:
        self.ignored += 1
        if self.ignored <= MAX_IGNORED_EVENTS:
            facts = {"reason": body.reason, "message": body.message}
            named = {"function_call_id": body.function_call_id, "by": body.by}
            facts.update({key: value for key, value in named.items() if value})
            self._emit(now, "user", None, custom_metadata={"ignored_answer": facts})

    def _end(self, now: float, ended: Ended) -> None:
        for call in (*self.batch, *self._open.values()):
            if not call.closed:
                self._refuse(call, responses.sealed(call))
            call.outcome = call.outcome or ToolOutcome(function_call_id=call.id)
        self.model_in_flight = False
        self._settle(now)
        self.unread = False
        self.ended = ended
        if ended.status == "failed" and self.failure:
            self._emit(now, self.agent, None, error_code=self.failure.error_type, error_message=self.failure.message)
        elif ended.status not in ("completed", "failed"):
            self._emit(
                now,
                self.agent,
                None,
                error_code=f"INVOCATION_{ended.status.upper()}",
                error_message=f"The invocation was {ended.status.replace('_', ' ')}.",
            )

    def _emit(
        self,
        now: float,
        author: str,
        content: JsonObject | None,
        actions: EventActions = NO_ACTIONS,
        **fields: Any,
    ) -> None:
        self.events.append(
            Event(
                id=ids.event(self.invocation_id, len(self.events) + 1),
                invocation_id=self.invocation_id,
                author=author,
                timestamp=now,
                content=content,
                actions=actions,
                **fields,
            )
        )


def _function_calls(reply: ModelReply) -> Iterator[JsonObject]:
    for part in (reply.content or {}).get("parts") or ():
        if "functionCall" in part:
            yield part["functionCall"]
