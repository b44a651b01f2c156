"""Send messages and function responses to one session, and follow the invocations that handle them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar

from google.genai import types
from pydantic import ConfigDict, ValidationError

from waystation import client
from waystation.client import Invocation, new_events, stream_logs
from waystation.core import ids
from waystation.core.actions import Action
from waystation.core.contract import Event, ToolConfirmation
from waystation.core.errors import InvocationError, NotJson
from waystation.core.log import (
    REQUEST_CONFIRMATION,
    REQUEST_CREDENTIAL,
    CallState,
    Log,
    Wait,
    count_requests,
    is_working,
    next_step,
    question_of,
)
from waystation.core.payload import JsonObject, decode_foreign, describe_faults, repeated_key
from waystation.core.session_log import OPEN_STATUSES

if TYPE_CHECKING:
    from waystation.agents import RunConfig
    from waystation.runners.consumer_pace import ConsumerPace
    from waystation.sessions import RecordedSessionService

POLL_S = 0.01


class SessionTurns:
    """The turns of a runner in one session. The methods belong to the background's event loop."""

    def __init__(self, service: RecordedSessionService, session: client.Session) -> None:
        self._service, self._session = service, session
        self._owners: dict[str, Invocation] = {}
        """The latest invocation with a call of each ID."""
        self._sent: set[str] = set()
        """The IDs of the invocations that handle messages of this run, or of the run that it continues."""
        self._answers: dict[tuple[str, str], int] = {}
        """Number of answers that the program has sent, by invocation ID and function call ID."""

    async def send(
        self, content: JsonObject, state_delta: dict[str, Any] | None, run_config: RunConfig | None
    ) -> tuple[Invocation, int]:
        """Send a message. Return the invocation that handles it, and the index of the first event after the message."""
        options: dict[str, Any] = {}
        if run_config:
            options = {
                "budget": run_config.budget(),
                "metadata": run_config.custom_metadata,
                "streaming": run_config.streaming,
            }
        sent = await self._session.send(
            content,
            message_id=self._service.next_message_id(self._session, content),
            state=state_delta,
            agent=self._session.given.agent,
            create=False,
            **options,
        )
        self._sent.add(sent.id)
        self._service.run.note_invocation(sent.id, has_ended=False)
        await sent.started()
        return sent, 1

    async def respond(self, responses: Sequence[types.FunctionResponse]) -> tuple[Invocation, list[int]]:
        """Send function responses. Return their invocation, and the indexes of the events with the responses.

        Nothing is sent unless all responses are valid.

        Raises:
            ValueError: A response is not valid, no call of the session has its ID, the call is closed, or the calls
                belong to several invocations.
            AnswerRefused: A call cannot be answered for another reason.
        """
        answers = [to_answer(response, wakes=response is responses[-1]) for response in responses]
        owners: dict[str, Invocation] = {}
        for response in responses:
            if not response.id:
                raise ValueError(f"The function response of {response.name!r} has no ID. Copy the `id` of its call.")
            found = await self._find(response.id)
            if found is None:
                raise ValueError(
                    f"Function call not found for function response ids: {{{response.id!r}}}. Ensure each function "
                    "response ID matches an existing function call in the session history."
                )
            owners[found.id] = found
        if len(owners) > 1:
            raise ValueError(
                f"Function responses resolve to multiple invocations: {', '.join(owners)}. Send a message for each one."
            )
        (owner,) = owners.values()
        pairs = zip(responses, answers, strict=True)
        return owner, [await self._answer(owner, str(response.id), *answer) for response, answer in pairs]

    async def find(self, invocation_id: str) -> tuple[Invocation, int]:
        """Return an invocation, and the number of its events so far."""
        invocation = Invocation.from_id(self._session.client, invocation_id)
        return invocation, len((await invocation.log()).state.events)

    async def _find(self, call_id: str) -> Invocation | None:
        """Return the latest invocation with a call that has waited for an answer and has this ID."""
        if owner := self._owners.get(call_id):
            return owner
        for listed in reversed(await self._session.invocations()):
            if listed["status"] != "queued":
                invocation = Invocation.from_id(self._session.client, listed["id"])
                call = (await invocation.log()).state.calls.get(ids.requesting_call(call_id))
                if call is not None and call.ever_waits:
                    return invocation
        return None

    async def _answer(self, invocation: Invocation, call_id: str, action: Action, fields: JsonObject) -> int:
        """Answer a call, and return the index of the event with the answer.

        If the run was resumed and its previous run sent this answer, or another person did, do not send it again. In
        invocations that neither of them started, the answers so far are those of other runs.

        Raises:
            ValueError: The call is closed.
            AnswerRefused: The call cannot be answered for another reason.
        """
        log = await invocation.log()
        answered = _answers_to(log, call_id)
        known = 0 if self._service.run.is_resumed and invocation.id in self._sent else len(answered)
        number = self._answers.setdefault((invocation.id, call_id), known)
        self._answers[invocation.id, call_id] += 1
        if len(answered) <= number:
            call = log.state.calls[ids.requesting_call(call_id)]
            if action in ("respond", "progress") and call.closed:
                raise ValueError(
                    f"Function call {call_id!r} cannot receive another function response: it has its final response, "
                    "or its deadline has passed. Set `will_continue=True` in each response that others will follow."
                )
            await invocation.answer(action, call.id, question=find_question(call, call_id), **fields)
            async for grown in invocation.follow():
                if len(answered := _answers_to(grown, call_id)) > number:
                    break
        return answered[number]

    async def events(
        self,
        invocation: Invocation,
        start: int,
        pace: ConsumerPace,
        *,
        own: Sequence[int] = (),
        streaming: bool = False,
    ) -> AsyncGenerator[Event]:
        """Yield the events from index `start` on, until the invocation needs the program's next message or has ended.

        The events with the indexes `own`, which contain the program's current message, are left out.

        Raises:
            InvocationError: The invocation failed.
        """
        log: Log | None = None
        await pace.advance(invocation.id, 0)
        try:
            async with aclosing(stream_logs(invocation, partial=streaming)) as logs:
                async for log, pieces in logs:
                    events = new_events(log, start, pieces)
                    start = max(start, len(log.state.events))
                    is_over, length = log.state.outcome.ended or is_parked(log), log.length
                    for event in events:  # the log may grow while the program handles an event
                        if event.index in own:
                            continue
                        if _is_input(event):  # in a resumed run, what followed it belongs to the program's next message
                            return
                        self._owners.update((call["id"], invocation) for call in event.function_calls())
                        if not event.actions.compaction:
                            yield event
                    if is_over:
                        self._service.run.note_invocation(invocation.id, has_ended=bool(log.state.outcome.ended))
                        break
                    await pace.advance(invocation.id, length)
        finally:
            await pace.advance(invocation.id, None)
        await self._reported(invocation, log)
        if log is not None and log.state.outcome.ended in ("failed", "terminated", "timed_out", "cancelled"):
            raise _describe_failure(log)

    async def _reported(self, invocation: Invocation, log: Log | None) -> None:
        """Wait until the session has the invocation's events, so that the next message and `get_session` see them."""
        length, has_ended = (log.length, log.state.outcome.ended is not None) if log else (0, False)

        def lacks_events(turn: JsonObject) -> bool:
            is_open = turn["id"] == invocation.id and turn["status"] in OPEN_STATUSES
            return is_open and (has_ended or turn["known"] < length)

        while any(map(lacks_events, await self._session.invocations())):
            await asyncio.sleep(POLL_S)


def _describe_failure(log: Log) -> InvocationError:
    failure, ended = log.state.outcome.failure, log.state.outcome.ended
    reason = f"{failure.error_type}: {failure.message}" if failure else f"it was {ended}."
    return InvocationError(f"Invocation {log.invocation_id!r} failed. {reason}")


def is_parked(log: Log) -> bool:
    """Return whether the invocation does nothing before a call is answered."""
    state = log.state
    return (
        isinstance(next_step(log), Wait)
        and bool(state.waiting())
        and not is_working(state)
        and state.unflushed() is None
    )


def find_question(call: CallState, response_id: str) -> int:
    """Return the question that a function response answers: its ID names the latest request, or the call itself."""
    return question_of(call) if response_id == call.id else 2 * count_requests(call) - 1


def _is_input(event: Event) -> bool:
    return event.author == "user" and event.actions.compaction is None


def _answers_to(log: Log, call_id: str) -> list[int]:
    """Return the indexes of the events with a user's answers to a call."""
    return [
        index
        for index, event in enumerate(log.state.events)
        if event.author == "user" and any(response.get("id") == call_id for response in event.function_responses())
    ]


def to_answer(response: types.FunctionResponse, *, wakes: bool) -> tuple[Action, JsonObject]:
    """Return the action and the fields of the answer that a function response means.

    Raises:
        ValueError: The response contains a credential, or is not the answer to a request for a confirmation.
    """
    if response.name == REQUEST_CREDENTIAL:
        raise ValueError("A credential cannot be sent as a function response. Store it with `Invocation.authorize`.")
    if response.name == REQUEST_CONFIRMATION:
        confirmation = _parse_confirmation(response)
        # The payload for a request for more budget is the grant.
        name = "response" if ids.is_budget(ids.requesting_call(response.id or "")) else "payload"
        return "approve" if confirmation.confirmed else "reject", {name: confirmation.payload}
    # As genai documents it, a response is final unless it announces others.
    return "progress" if response.will_continue else "respond", {"response": response.response or {}, "wake": wakes}


class _Confirmation(ToolConfirmation):
    """The answer to a request for a confirmation. As in ADK 2.13, unknown fields are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def _parse_confirmation(response: types.FunctionResponse) -> ToolConfirmation:
    """Parse the answer to a request for a confirmation as ADK 2.13 does: as an object, or as JSON in `response`.

    Raises:
        ValueError: It is neither.
    """
    body: Any = response.response
    try:
        if body and body.keys() == {"response"}:
            data = str.encode(body["response"])
            body = None if repeated_key(data) else decode_foreign(data)
        return _Confirmation.model_validate(body)
    except (NotJson, TypeError, ValueError) as error:
        problem = describe_faults(error) if isinstance(error, ValidationError) else "`response` is not a string of JSON"
    raise ValueError(
        f"The response to {response.id!r} does not confirm or reject the call: {problem}. The call is still pending. "
        'Send {"confirmed": true} or {"confirmed": false}, and a `payload` if the tool expects one.'
    )
