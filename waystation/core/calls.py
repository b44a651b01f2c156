"""What becomes of the calls of a model: carried out, asked about, answered, merged into events.

Source: adk-semantics 7.1; one event for each batch, parts and actions in call order.
"""

import abc
from collections.abc import Sequence

from waystation.core import responses
from waystation.core.budget import NO_USAGE
from waystation.core.call import Asked, CallState
from waystation.core.compaction import Compaction
from waystation.core.entry import Failure
from waystation.core.event import NO_ACTIONS, EventActions, merge_actions, parts_of
from waystation.core.model_call import Call, Confirmation, ModelReply, Phase, Said
from waystation.core.payload import JsonObject
from waystation.core.shape import AgentShape
from waystation.core.tool_call import ToolOutcome
from waystation.core.work import Work
from waystation.core.works import Works


class Calls(Works):
    """Works, and the calls that they make."""

    def __init__(self, invocation_id: str) -> None:
        super().__init__(invocation_id)
        self.calls: dict[str, CallState] = {}
        self.failure: Failure | None = None
        self.usage = NO_USAGE
        self.concluded = False
        """Whether the invocation ends although agents are at work."""
        self.output: JsonObject | None = None
        """The latest structured answer."""
        self.notify: tuple[str, ...] = ()
        """Names of the channels that are told of what waits, when a policy names none."""
        self.spoken_for = 0
        """How often callbacks spoke for an agent, so that its model was not called."""

    def _reply(self, now: float, number: int, work: Work, reply: ModelReply) -> None:
        phase, work.in_flight, work.phase_in_flight = work.phase_in_flight, None, None
        self._count_reply(work, phase, reply)
        self.usage = self.usage + (reply.usage or NO_USAGE)
        if reply.compaction:
            self.usage = self.usage + (reply.compaction.usage or NO_USAGE)
        self.notify = reply.notify or self.notify
        if work.over:  # it was stopped meanwhile
            return
        if phase == "leave":
            work.left = True
            self._say(now, work, reply.after)
            return
        if reply.scopes:
            self._state.underlay(reply.scopes)
        if reply.shape:
            work.shape = reply.shape
        work.entered = True
        self._say(now, work, reply.before)
        work.spoken_for = reply.skipped
        self.concluded = self.concluded or reply.ends_invocation
        if reply.skipped or work.shape.kind != "llm":
            work.unread = False
            self.spoken_for += reply.skipped and work.shape.kind == "llm"
            return
        self.output = reply.output
        if work.shape.keeps_turn:
            self._next_turn = work.agent
        work.closing = reply.closing
        said = parts_of(reply.content, "functionCall")
        called = [_call(call, part, now, number, work) for call, part in zip(reply.calls, said, strict=True)]
        work.batch = [*(call for call in work.batch if call.performing), *called]
        work.calls_made += len(called)
        self.calls.update((call.id, call) for call in called)
        self._admit(work, called)
        work.open.update((call.id, call) for call in called if call.answerable)
        self._apply(reply.actions)
        self._compact(now, work, reply.compaction)
        self._emit(
            now,
            work,
            reply.content,
            reply.actions or NO_ACTIONS,
            long_running_tool_ids=tuple(c.id for c in called if c.call.kind == "long_running" and not c.closed)
            if called
            else None,
            finish_reason=reply.finish_reason,
            error_code=reply.error_code,
            error_message=reply.error_message,
            usage_metadata=reply.usage.model_dump(exclude_defaults=True) if reply.usage else None,
            model_version=reply.model_version,
            grounding_metadata=reply.grounding_metadata,
            citation_metadata=reply.citation_metadata,
            custom_metadata=reply.compaction.failed() if reply.compaction else None,
        )
        self._request(now, work, [call for call in called if call.gate == "waiting"])
        for call in called:
            if call.call.standing:
                under: JsonObject = {"function_call_id": call.id, "action": "standing", "origin": call.call.standing}
                self._emit(now, None, None, custom_metadata={"approval": under})
            if call.call.kind == "answered" and not call.closed:
                call.close(call.call.response or {})
                call.outcome = ToolOutcome(
                    function_call_id=call.id,
                    response=call.call.response,
                    actions=call.call.actions,
                    transfer=call.call.transfer,
                )
        self._settle(now, work)
        if work.wrapping:
            work.wrapping, work.wrapped, work.unread = False, True, False

    @abc.abstractmethod
    def _count_reply(self, work: Work, phase: Phase | None, reply: ModelReply) -> None:
        """Count what a model used."""

    @abc.abstractmethod
    def _admit(self, work: Work, called: Sequence[CallState]) -> None:
        """Close or hold the calls for which there is no room."""

    def _perform(self, now: float, call: CallState | None, outcome: ToolOutcome | None, run: int = 0) -> None:
        if call is None or outcome is None or call.outcome is not None or call.run != run:
            return
        call.outcome = outcome
        if outcome.fatal:
            self.failure = Failure(
                kind="error",
                error_type=outcome.error_type or "ToolFailed",
                message=f"The tool {call.name!r} raised.",
            )
        work = self.works[call.turn]
        if call.call.kind == "agent" and call.call.after and not call.run:
            call.run_again()
            return
        if (asked := _asked(call.id, outcome)) and not call.closed:
            call.args = call.args if outcome.args is None else outcome.args
            call.ask(now, *asked)
            call.response, call.responded = outcome.response, call.asked == "confirmation"
            work.open[call.id] = call
        elif call.call.kind == "long_running" and not outcome.final:
            call.wait(now)
            if not call.closed and outcome.response is not None:
                # Progress that came before the function had returned is newer than what it returned.
                call.response = outcome.response if call.response is None else call.response
                call.responded = True
        elif not call.closed:
            call.close(outcome.response or {})
        self._settle(now, work)

    def _refuse(self, call: CallState, response: JsonObject) -> None:
        """Close a call that a person did not let through; one that has already run keeps its outcome."""
        if call.gate == "waiting":
            call.gate = "refused"
        work = self.works[call.turn]
        work.unread = True
        call.close(response)
        if call.outcome is None:
            call.outcome = ToolOutcome(function_call_id=call.id, response=response)
            if call not in work.batch:
                work.batch.append(call)
        else:
            work.held.append((call.agent, [call.response_part(response)]))

    def _settle(self, now: float, work: Work) -> None:
        """Once nothing is being carried out, merge what is new into one event, then let held responses follow."""
        if work.busy:
            return
        self._flush(now, work)
        for author, parts in work.held:
            self._emit(now, work, {"role": "user", "parts": parts}, author=author)
        work.held.clear()
        for function_call_id in [key for key, call in work.open.items() if not (call.answerable or call.waiting)]:
            del work.open[function_call_id]
        if work.closing and all(call.responded for call in work.batch):
            said, work.closing = work.closing, None
            self._say(now, work, said)
            work.unread = False

    def _flush(self, now: float, work: Work) -> None:
        fresh = [call for call in work.batch if call.outcome is not None and not call.flushed]
        if not fresh:
            return
        parts: list[JsonObject] = []
        for call in fresh:
            call.flushed = True
            outcome = call.outcome
            assert outcome is not None
            # An answer that came before the function had returned stands; the interim response is then old news.
            if outcome.response is not None and not (call.answer and call.gate == "none"):
                parts.append(call.response_part(outcome.response, outcome.parts))
                parts.extend(outcome.beside)
        actions = merge_actions([call.outcome.actions or NO_ACTIONS for call in fresh if call.outcome])
        self._apply(actions)
        asking = [call for call in fresh if call.gate == "waiting"]
        first = [call for call in asking if call.asked == "credential" or len(asking) == len(fresh)]
        self._request(now, work, first)
        if parts or actions != NO_ACTIONS:
            self._emit(now, work, {"role": "user", "parts": parts} if parts else None, actions)
        self._request(now, work, [call for call in asking if call not in first])
        if actions.transfer_to_agent and not work.over:
            # Whoever takes over is told of the batch; of an answer to an earlier call, whoever made that.
            work.unread = bool(work.held)
            self._begin_work(_target(actions.transfer_to_agent, fresh), work, work.branch)
        elif any(call.responded for call in fresh):
            work.unread = work.unread or not actions.skip_summarization

    def _request(self, now: float, work: Work, calls: list[CallState]) -> None:
        """Ask for confirmations in one event, and for credentials, each of them once, in one more."""
        for asked in ("credential", "confirmation"):
            asking = {credential_key(call) or call.id: call for call in reversed(calls) if call.asked == asked}
            shown = list(reversed(asking.values()))
            if shown:
                self._emit(
                    now,
                    work,
                    {
                        "role": "model" if asked == "confirmation" else "user",
                        "parts": [c.request_part() for c in shown],
                    },
                    long_running_tool_ids=tuple(call.request_id for call in shown),
                )

    def _seal(self, now: float, work: Work) -> None:
        """Close whatever is open in a work; nobody will answer it."""
        for call in (*work.batch, *work.open.values()):
            if not call.closed:
                self._refuse(call, responses.sealed(call))
            call.outcome = call.outcome or ToolOutcome(function_call_id=call.id)
        work.in_flight = work.phase_in_flight = work.closing = None
        self._settle(now, work)
        work.unread = False

    def _say(self, now: float, work: Work, said: Said | None) -> None:
        if said and (said.content or said.actions):
            self._apply(said.actions)
            self._emit(now, work, said.content, said.actions or NO_ACTIONS)

    def _compact(self, now: float, work: Work, compaction: Compaction | None) -> None:
        if compaction and (actions := compaction.actions()):
            self._emit(now, work, None, actions, author="user", **compaction.fields())

    def _apply(self, actions: EventActions | None) -> None:
        if actions:
            self._state.apply(actions)


def _call(call: Call, part: JsonObject, now: float, number: int, work: Work) -> CallState:
    state = CallState(
        call=call,
        name=part.get("name") or "",
        args=part.get("args") or {} if call.args is None else call.args,
        agent=work.agent,
        reply=number,
        turn=work.index,
        gate="none",
    )
    if call.standing:
        state.gate = "passed"
    elif call.confirmation:
        state.ask(now, "confirmation", call.confirmation)
    return state


def _asked(call_id: str, outcome: ToolOutcome) -> tuple[Asked, Confirmation] | None:
    """Return what a tool asked for from inside, if it did."""
    actions = outcome.actions or NO_ACTIONS
    if config := actions.requested_auth_configs.get(call_id):
        return "credential", Confirmation(payload=config)
    if confirmation := actions.requested_tool_confirmations.get(call_id):
        return "confirmation", Confirmation(hint=confirmation.hint, payload=confirmation.payload)
    return None


def credential_key(call: CallState) -> str | None:
    """Return what tells one needed credential from another; None for a call that needs none."""
    if call.asked != "credential" or call.asks is None or not isinstance(call.asks.payload, dict):
        return None
    key = call.asks.payload.get("credentialKey")
    return key if isinstance(key, str) else None


def _target(name: str, calls: list[CallState]) -> AgentShape:
    """Return the shape of the agent that one of the calls transferred to."""
    shapes = (call.outcome.transfer for call in reversed(calls) if call.outcome)
    return next((shape for shape in shapes if shape and shape.name == name), AgentShape(name=name))
