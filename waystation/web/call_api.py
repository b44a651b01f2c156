"""The JSON API for pending calls: list and read them, answer one or several, and follow all that wait."""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Literal

import structlog
from pydantic import Field
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError

from waystation.client import AgentClient, Outcome
from waystation.client.approvals import AT_ONCE
from waystation.core.actions import ACTIONS, Action
from waystation.core.approval import PendingCall
from waystation.core.errors import AlreadyAnswered, AnswerRefused, AnswerUnconfirmed, InvalidInput
from waystation.core.log import CallState, allowed_actions
from waystation.core.payload import JsonObject, digest
from waystation.web.call_answers import CallAnswers, CallView, Standing, has_decided, problem_of
from waystation.web.http_responses import ProblemDocument, RequestRefused, make_problem, to_refused
from waystation.web.inbox_pages import PAUSE_S, RETRY_MS, summarize_progress
from waystation.web.invocation_api import wait_until
from waystation.web.invocation_pages import InvocationPages
from waystation.web.limits import Limits
from waystation.web.logins import Login
from waystation.web.pending_list import InboxQuery, PendingList
from waystation.web.shared_reads import record_reads
from waystation.web.typed_routes import HOLD_S, Body, ReplyBody, WaitQuery, set_status

log = structlog.get_logger("waystation.web")

POLL_MS = 2_000
"""When to read a call again whose answer no worker has confirmed."""
CONFIRM_S = 15.0
"""How long to wait for the confirmation of one answer."""


class CallEntry(PendingCall):
    """A call that waits for an answer. In a list, a large value is `{"omitted_bytes": N}`."""

    id: str
    """The approval ID."""
    approvers: tuple[str, ...] = ()
    """The subjects and roles that may answer now. If empty, everybody with the role `approver` may."""


class CallList(ReplyBody):
    """A page of the calls that wait."""

    calls: tuple[CallEntry, ...]
    counts: dict[str, int]
    """The number of calls for each value of `show`, with all other filters applied."""
    waiting: int
    """The number of calls that the caller may answer, without filters."""
    page: int
    pages: int
    complete: bool
    """Whether all pending calls were read."""


class Waits(ReplyBody):
    """An event of the stream: a snapshot of all calls that wait, or what has changed since the previous event."""

    calls: tuple[CallEntry, ...]
    """In a snapshot, all calls. Otherwise, those that are new or different."""
    gone: tuple[str, ...]
    """The approval IDs of calls that no longer wait. Empty in a snapshot: a call that it lacks no longer waits."""
    complete: bool
    """Whether all pending calls were read. If not, calls that are missing may still wait."""


class RecordedAnswer(ReplyBody):
    """The answer that closed a call."""

    action: Action
    by: str | None
    verified: bool
    """Whether a worker has verified who sent it."""
    at: float | None
    comment: str | None
    args: JsonObject | None
    response: JsonObject | None


class CallDetails(CallEntry):
    """A call, whether or not it still waits."""

    status: Standing
    actions: tuple[Action, ...]
    """The actions that the call accepts."""
    allowed: tuple[Action, ...]
    """Those of them that the caller may perform."""
    answer: RecordedAnswer | None
    unread: str
    """Why the arguments are incomplete. Empty if they are complete."""


class AnswerFields(Body):
    """The content of an answer."""

    action: Action
    comment: str | None = None
    response: JsonObject | None = None
    payload: Any = None
    args: JsonObject | None = None
    wake: bool = True
    remember: bool = False


class Shown(Body):
    """The version of a call that was shown to the person who answers it."""

    digest: str | None = None
    """The digest of the call as it was shown. The answer counts only if the call has not changed since."""
    question: int | None = Field(default=None, strict=True)
    """The question of the call as it was shown. The answer counts only for this question."""


class AnswerBody(AnswerFields, Shown):
    """An answer to one call."""


class ChosenCall(Shown):
    """One of the calls to answer."""

    id: str


class AnswersBody(AnswerFields):
    """The same answer to several calls."""

    calls: tuple[ChosenCall, ...] = Field(min_length=1)


class Accepted(ReplyBody):
    """The answer counts."""

    outcome: Literal["accepted"] = "accepted"
    id: str
    action: Action
    decided: bool
    """Whether the call needs no further answers."""
    approved_by: tuple[str, ...] = ()
    lacking: int = 0
    """The number of approvals that are missing."""
    digest: str | None = None
    """After `edit`: the digest of the call with its new arguments."""


class Unconfirmed(ReplyBody):
    """No worker has confirmed the answer yet. Read the call, or send the same answer with the same key."""

    outcome: Literal["unconfirmed"] = "unconfirmed"
    id: str
    detail: str
    poll_after_ms: int = POLL_MS


class RefusedAnswer(ReplyBody):
    """The answer does not count."""

    outcome: Literal["refused", "already_answered"]
    """`already_answered` if another answer counts, or this one has counted before."""
    id: str
    problem: ProblemDocument
    answer: RecordedAnswer | None = None
    """The answer that counts, if the call has been answered."""


class Outcomes(ReplyBody):
    """The outcome for each call, in the order of the request."""

    outcomes: tuple[Accepted | Unconfirmed | RefusedAnswer, ...]


Chosen = Mapping[str, tuple[CallView | RequestRefused, Shown]]
"""The calls to answer by approval ID: each call, or why it cannot be shown, and what the caller has seen of it."""


class CallApi:
    """The routes for calls."""

    def __init__(
        self,
        client: AgentClient,
        answers: CallAnswers,
        calls: PendingList,
        invocations: InvocationPages,
        limits: Limits,
    ) -> None:
        self._client, self._answers, self._calls = client, answers, calls
        self._invocations, self._limits = invocations, limits

    async def list_calls(self, request: Request, query: InboxQuery) -> CallList:
        """List the pending calls that the caller may see. The filters are those of the inbox."""
        selection = await self._calls.select(request.state.login, query)
        calls, page, pages = query.cut(selection.calls, self._limits.calls_per_page)
        return CallList(
            calls=tuple(map(make_call, calls)),
            counts=dict(selection.counts),
            waiting=selection.waiting,
            page=page,
            pages=pages,
            complete=selection.complete,
        )

    async def stream_calls(self, request: Request, query: InboxQuery) -> Response:
        """Stream all pending calls that the caller may see and that match the filters.

        The first event is named `snapshot` and has all calls. Each later event is named `change`, and has the calls
        that are new or different, and the IDs of those that have gone. A client that connects again, to any server,
        receives another snapshot, and drops the calls that it lacks.
        """
        login = request.state.login
        return self._invocations.respond(login, self._follow(login, query))

    async def _follow(self, login: Login, query: InboxQuery) -> AsyncGenerator[ServerSentEvent]:
        yield ServerSentEvent(comment="calls follow", retry=RETRY_MS)
        shown: dict[str, str] = {}
        name = "snapshot"
        try:
            while True:
                record_reads()
                selection = await self._calls.select(login, query, max_age_s=PAUSE_S / 2)
                found = {call.approval_id: digest(call.model_dump(mode="json")) for call in selection.calls}
                changed = [make_call(c) for c in selection.calls if shown.get(c.approval_id) != found[c.approval_id]]
                gone = [id for id in shown if id not in found]
                if name == "snapshot" or changed or gone:
                    waits = Waits(calls=tuple(changed), gone=tuple(gone), complete=selection.complete)
                    yield ServerSentEvent(waits.model_dump_json(), event=name)
                shown, name = found, "change"
                await self._calls.wait(PAUSE_S)
        except RPCError as error:
            # Just end the stream: the client connects again.
            log.warning("stream.broken", error_type=type(error).__name__)

    async def read_call(self, request: Request, query: WaitQuery) -> CallDetails:
        """Read a call with its arguments, its policy, and what the caller may do.

        With `wait_s`, the response comes as soon as the call has changed.
        """
        login, view = request.state.login, await self._answers.find(request)
        if query.wait_s and view.standing == "open":
            seen, invocation = summarize_progress(view.log, view.state.id), view.pending.invocation_id
            with self._invocations.open_stream(login):
                await wait_until(
                    lambda log: summarize_progress(log, view.state.id) != seen,
                    self._client.invocation(invocation),
                    query.wait_s,
                )
            view = await self._answers.view(login, view.id)
        accepted = [name for name in ACTIONS if name in allowed_actions(view.state)] if view.standing == "open" else []
        return CallDetails(
            **dict(make_call(view.pending)),
            status=view.standing,
            actions=tuple(accepted),
            allowed=tuple(name for name in accepted if not self._answers.why_not(login, view, name)),
            answer=make_recorded(view.state),
            unread=view.unread,
        )

    async def answer_call(self, request: Request, body: AnswerBody, key: str | None) -> Accepted | Unconfirmed:
        """Answer a call with one of its actions.

        The status is 202 if no worker has confirmed the answer in time. A refusal is a problem document. That of an
        answered call has the recorded `answer`.
        """
        view = await self._answers.find(request)
        outcome = await self.answer_one(request.state.login, view, body, key)
        if isinstance(outcome, Unconfirmed):
            set_status(request, HTTPStatus.ACCEPTED)
        return outcome

    async def answer_one(
        self, login: Login, view: CallView, body: AnswerBody, key: str | None
    ) -> Accepted | Unconfirmed:
        """Answer a visible call.

        Raises:
            RequestRefused: The answer does not count.
        """
        (outcome,) = await self.answer(login, {view.id: (view, body)}, body, key)
        if isinstance(outcome, RefusedAnswer):
            more = outcome.model_dump(mode="json", exclude={"problem"})
            status, kind = HTTPStatus(outcome.problem.status), outcome.problem.type.rpartition(":")[2]
            raise RequestRefused(status, kind, outcome.problem.detail, **more)
        return outcome

    async def answer_calls(self, request: Request, body: AnswersBody, key: str | None) -> Outcomes:
        """Send the same answer to several calls, and return the outcome of each. No call may be named twice."""
        login, shown = request.state.login, {call.id: call for call in body.calls}
        if len(shown) < len(body.calls):
            twice = next(id for id, count in Counter(call.id for call in body.calls).items() if count > 1)
            raise InvalidInput(f"The request names the call {twice!r} twice. Name it once, as it was shown last.")
        self._answers.check_count(body.calls)
        views = await self._answers.view_all(login, list(shown))
        chosen = {id: (view, shown[id]) for id, view in zip(shown, views, strict=True)}
        return Outcomes(outcomes=tuple(await self.answer(login, chosen, body, key)))

    async def answer(
        self, login: Login, chosen: Chosen, body: AnswerFields, key: str | None
    ) -> Sequence[Accepted | Unconfirmed | RefusedAnswer]:
        """Send the same answer to chosen calls, and return the outcome of each."""
        refused: dict[str, Exception] = {}
        sent: list[tuple[CallView, PendingCall | str]] = []
        for id, (view, seen) in chosen.items():
            try:
                if isinstance(view, RequestRefused):
                    raise view
                self._answers.check(login, view, body.action, comment=body.comment or "", digest=seen.digest or "")
                is_named = seen.digest is not None or seen.question is not None
                sent.append((view, view.as_shown(seen.digest, question=seen.question) if is_named else id))
            except (RequestRefused, AnswerRefused) as error:
                refused[id] = error
        rounds = -(-len(sent) // AT_ONCE) or 1
        within = timedelta(seconds=min(CONFIRM_S, (HOLD_S - 10) / rounds))
        fields = {name: value for name, value in body if name in AnswerFields.model_fields and name != "action"}
        outcomes = await self._answers.send(login, sent, body.action, answer_id=key, confirm_within=within, **fields)
        by_id = {outcome.approval_id: outcome for outcome in outcomes}
        return [
            await self._describe(login, by_id[id], body.action) if id in by_id else make_refused(id, refused[id])
            for id in chosen
        ]

    async def _describe(self, login: Login, outcome: Outcome, action: Action) -> Accepted | Unconfirmed | RefusedAnswer:
        id, receipt, error = outcome.approval_id, outcome.receipt, outcome.error
        if receipt is not None:
            counts = {name: receipt[name] for name in ("approved_by", "lacking", "digest") if name in receipt}
            return Accepted(id=id, action=action, decided=has_decided(outcome, action), **counts)
        if isinstance(error, AnswerUnconfirmed | RPCError):
            return Unconfirmed(id=id, detail=problem_of(outcome)[1])
        answer = None
        if isinstance(error, AlreadyAnswered):
            with suppress(RequestRefused):
                answer = make_recorded((await self._answers.view(login, id)).state)
        return make_refused(id, error or AnswerRefused("unknown"), answer)


def make_refused(id: str, error: Exception, answer: RecordedAnswer | None = None) -> RefusedAnswer:
    """Return the outcome of an answer that does not count."""
    return RefusedAnswer(
        outcome="already_answered" if isinstance(error, AlreadyAnswered) else "refused",
        id=id,
        problem=make_problem(to_refused(error)),
        answer=answer,
    )


def make_call(call: PendingCall) -> CallEntry:
    """Return a call as the API shows it."""
    approvers = call.policy.asked(call.level) if call.policy else ()
    return CallEntry(**dict(call), id=call.approval_id, approvers=approvers)


def make_recorded(state: CallState) -> RecordedAnswer | None:
    """Return the answer that closed a call, or None if there is none."""
    if (answer := state.answer) is None:
        return None
    return RecordedAnswer(
        action=answer.action,
        by=state.answered_by,
        verified=state.decided_by is not None,
        at=state.answered_at,
        comment=answer.comment,
        args=answer.args,
        response=answer.response,
    )
