"""Read calls and answer them for people. The pages and the JSON API both use these functions."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

import anyio
from starlette.requests import Request
from temporalio.service import RPCError

from waystation.approvers import Gatekeeper, sees_call, sees_everything, why_not
from waystation.client import AgentClient, Outcome
from waystation.client.invocation_description import parse_pending_calls
from waystation.client.invocation_handle import explain_unread
from waystation.core import ids
from waystation.core.actions import ACTIONS, Action, ActionSpec
from waystation.core.approval import PendingCall
from waystation.core.errors import DigestMismatch, ForeignHistory, InvalidAnswer, NotAllowed, StoreFailed
from waystation.core.log import CallState, Log, allowed_actions
from waystation.core.payload import encode
from waystation.history import read_memo
from waystation.presentation import text_safety, words
from waystation.presentation.argument_layout import lay_out_arguments
from waystation.web.forms import Field, make_schema_fields
from waystation.web.http_responses import RequestRefused, find_status, to_refused
from waystation.web.invocation_pages import describe, get_id
from waystation.web.limits import Limits
from waystation.web.logins import Login
from waystation.web.pending_list import PendingList

MAX_COMMENT_CHARS = 20_000
CONCURRENT_READS = 8
Standing = Literal["open", "decided", "expired", "closed"]


@dataclass(frozen=True, slots=True)
class CallView:
    """A call as shown on its page."""

    log: Log
    state: CallState
    pending: PendingCall
    standing: Standing
    unread: str = ""
    """Why the complete arguments of an open call cannot be read. Empty if they can be read."""

    @property
    def id(self) -> str:
        """The approval id."""
        return self.pending.approval_id

    @property
    def decision(self) -> str:
        """A sentence about the decision, or about why the call is still pending or no longer pending."""
        match self.standing:
            case "open":
                return "This call is waiting for an answer."
            case "expired":
                return "No one answered before the deadline. The call was not approved."
            case "decided" if self.state.answer:
                return f"This call was {words.decision(self.state)}."
            case _:
                ended = self.log.state.outcome.ended
                over = f"is {ended.replace('_', ' ')}" if ended else "continued without it"
                return f"This call is no longer pending: the invocation {over}."

    @property
    def decided_at(self) -> float | None:
        """When the call was decided, in seconds since 1970, or None if it was not."""
        return self.state.answered_at if self.standing == "decided" else None

    @property
    def decisions(self) -> tuple[Action, ...]:
        """The actions with which the call can be answered, in the order that the page shows them."""
        # A call with a response schema requires a response, so do not offer a plain approval.
        is_form = bool(self.state.call.response_schema) and self.state.gate != "waiting"
        return tuple(row.name for row in self._accepted if row.listable and not (is_form and row.name == "approve"))

    @property
    def further_actions(self) -> tuple[Action, ...]:
        """The other actions that the call accepts. They do not answer it. Includes either `claim` or `release`."""
        excluded = "claim" if self.state.claimed_by else "release"
        return tuple(row.name for row in self._accepted if not row.listable and row.name != excluded)

    @property
    def _accepted(self) -> list[ActionSpec]:
        """The actions that the call accepts, without those for which people have to see its complete arguments."""
        allowed = allowed_actions(self.state)
        return [row for row in ACTIONS.values() if row.name in allowed and not (self.unread and row.accepts)]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The arguments as rows for a table."""
        return lay_out_arguments(self.pending.args)

    @property
    def size(self) -> str:
        """The size of the arguments in JSON form."""
        return f"{len(encode(self.pending.args)):,} bytes"

    @property
    def hint(self) -> text_safety.SafeText:
        """The hint that the tool gives the approver. Empty if it is just ADK's standard hint."""
        return text_safety.format_text(words.hint(self.pending))

    @property
    def version(self) -> str:
        """The call's digest, run ID and question, separated by spaces. It ties the answer to what the page showed."""
        return f"{self.pending.digest} {self.pending.run or ''} {self.pending.question}"

    def with_version(self, version: str) -> PendingCall:
        """Return the call with the parts of a form's `version`."""
        digest, run, question = [*version.split(" "), "", ""][:3]
        return self.as_shown(digest, run=run, question=int(question[:9]) if question.isdecimal() else None)

    def as_shown(self, digest: str | None, *, run: str = "", question: int | None = None) -> PendingCall:
        """Return the call as it was shown to a person. A missing digest or run keeps its current value.

        Without a question, the answer is for the one that is open when it arrives.
        """
        call = self.pending
        update = {"digest": digest or call.digest, "run": run or call.run}
        return call.model_copy(update={**update, "question": question})

    def response_fields(self) -> list[Field]:
        """Return fields for the response. Empty unless the tool has a response schema with properties."""
        return make_schema_fields(self.pending.response_schema or {}) or []


def unknown_call(approval_id: str) -> RequestRefused:
    """Return the refusal for a call that does not exist or that a person may not see."""
    return RequestRefused(
        HTTPStatus.NOT_FOUND,
        "UnknownCall",
        f"No call has the ID {text_safety.format_line(approval_id)!r}. The server may have deleted the call, or the "
        "link may be incomplete.",
    )


async def view_call(client: AgentClient, approval_id: str) -> CallView:
    """Return a call, whether or not it is still pending. This does not require a running worker.

    Raises:
        Refused: The call does not exist, or the Temporal server or the store does not respond.
    """
    unknown = unknown_call(approval_id)
    try:
        invocation_id, function_call_id = ids.parse_approval(approval_id)
    except ValueError:
        raise unknown from None
    try:
        described = await describe(client, invocation_id)
        if described is None:
            raise unknown
        log = await client.invocation(invocation_id).log()
    except (RPCError, StoreFailed) as error:
        raise to_refused(error) from None
    except ForeignHistory:
        raise unknown from None
    state = log.state.calls.get(ids.requesting_call(function_call_id))
    if state is None or not state.ever_waits or log.state.input is None:
        raise unknown
    for pending in () if log.state.outcome.ended else log.state.pending():
        if pending.function_call_id == state.id:
            standing: Standing = "expired" if pending.deadline <= time.time() else "open"
            recorded = parse_pending_calls(described, await read_memo(described))
            if unread := explain_unread(client, pending, recorded):
                # With the digest of the short form, a rejection would not count either.
                digests = {call.function_call_id: call.digest for call in recorded}
                pending = pending.model_copy(update={"digest": digests.get(state.id, pending.digest)})
            return CallView(log, state, pending, standing, str(unread or ""))
    pending = log.state.pending_call(state)
    if state.asked:
        pending = pending.model_copy(update={"kind": state.asked})
    standing = "expired" if state.expired else "decided" if state.answer else "closed"
    return CallView(log, state, pending, standing)


def problem_of(outcome: Outcome) -> tuple[HTTPStatus, str]:
    """Return the HTTP status for an answer's outcome, and the problem, which is empty if the answer was accepted."""
    error = outcome.error
    if error is None:
        return HTTPStatus.OK, ""
    if isinstance(error, RPCError):
        text = f"The Temporal server did not respond ({error.status.name}), so your answer may or may not be recorded."
        return HTTPStatus.SERVICE_UNAVAILABLE, f"{text} Check the call before you answer again."
    return find_status(error), text_safety.format_line(str(error), 500)


def check_sees(login: Login, view: CallView) -> CallView:
    """Return the call, if the login may see it.

    Raises:
        Refused: The login may not see the call. This looks as if the call did not exist.
    """
    if not sees_call(login, view.pending):
        raise unknown_call(view.id)
    return view


class CallAnswers:
    """Reads calls for the people of the web application, and sends their answers."""

    def __init__(self, client: AgentClient, gatekeeper: Gatekeeper, limits: Limits, calls: PendingList) -> None:
        self._client, self._gatekeeper, self._limits, self._calls = client, gatekeeper, limits, calls

    async def check_visible(self, request: Request) -> None:
        """Check that a login may see the call in the path.

        Raises:
            Refused: No such call exists, or the login may not see it. The two cases look the same.
        """
        login: Login = request.state.login
        if not sees_everything(login) and login.only != get_id(request):
            request.state.view = await self.view(login, get_id(request))

    async def check_answerable(self, request: Request) -> None:
        """Check that a login may see the call in the path, and perform at least one action on it.

        Raises:
            Refused: The call does not exist, or the login may not see it or perform any action on it.
        """
        await self.check_visible(request)
        login: Login = request.state.login
        if not {"approver", "operator"} <= login.roles:
            view = request.state.view = await self.find(request)
            if (problem := why_not(login, view.pending, "approve")) and why_not(login, view.pending, "cancel"):
                raise RequestRefused(HTTPStatus.FORBIDDEN, "NotAllowed", problem)

    async def find(self, request: Request) -> CallView:
        """Return the call in the path. The first time, use the one that the access check has read, if any."""
        view: CallView | None = getattr(request.state, "view", None)
        request.state.view = None
        return view or await view_call(self._client, get_id(request))

    async def view(self, login: Login, approval_id: str) -> CallView:
        """Return a call that a login may see, whether or not it is still pending.

        Raises:
            Refused: The call does not exist, or the login may not see it, or it cannot be read.
        """
        return check_sees(login, await view_call(self._client, approval_id))

    async def view_all(self, login: Login, ids: Sequence[str]) -> list[CallView | RequestRefused]:
        """Read calls concurrently. Return each call, or why it cannot be shown, in the order of `ids`."""
        limiter = anyio.CapacityLimiter(CONCURRENT_READS)
        views: dict[str, CallView | RequestRefused] = {}

        async def view(id: str) -> None:
            async with limiter:
                try:
                    views[id] = await self.view(login, id)
                except RequestRefused as refused:
                    views[id] = refused

        async with anyio.create_task_group() as tasks:
            for id in ids:
                tasks.start_soon(view, id)
        return [views[id] for id in ids]

    def check_count(self, calls: Sequence[object]) -> None:
        """Check that these are not too many calls for one request.

        Raises:
            Refused: There are too many.
        """
        if len(calls) > self._limits.calls_per_answer:
            text = f"At most {self._limits.calls_per_answer} calls can be answered together. Select fewer calls."
            raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, "TooMany", text)

    def why_not(self, login: Login, view: CallView, action: Action) -> str:
        """Return why a person may not perform an action on a visible call, or an empty string if it is allowed."""
        return explain_shared(login) or self._gatekeeper.why_not(login, view.state, view.pending, action)

    def check(self, login: Login, view: CallView, action: Action, *, comment: str = "", digest: str = "") -> None:
        """Check what workers do not check about an answer: roles, unread arguments, and the digest of signed answers.

        Raises:
            AnswerRefused: The answer must not be sent. The subclass indicates the reason.
        """
        if problem := explain_shared(login) or why_not(login, view.pending, action):
            raise NotAllowed(problem)
        if view.unread and ACTIONS[action].accepts:
            raise InvalidAnswer(f"Nobody can accept arguments that were not shown. {view.unread}")
        if len(comment) > MAX_COMMENT_CHARS:
            raise InvalidAnswer(f"The comment has {len(comment):,} characters; the limit is {MAX_COMMENT_CHARS:,}.")
        policy = view.pending.policy
        if policy and policy.digest and ACTIONS[action].decides and not digest:  # the client would fill it in
            raise DigestMismatch("The policy of this call requires its `digest`, as it was shown to the person.")

    async def send(
        self, login: Login, calls: Sequence[tuple[CallView, PendingCall | str]], action: Action, **fields: Any
    ) -> list[Outcome]:
        """Send a checked answer to calls, each with what to answer, and return the outcomes.

        A `PendingCall` has the digest and the run that the person has seen. An ID alone means the call as it is now.
        """
        answered = [call for _, call in calls]
        outcomes = await self._gatekeeper.answer(self._client.approvals, login, answered, action, **fields)
        decided = {outcome.approval_id for outcome in outcomes if has_decided(outcome, action)}
        for view in (view for view, _ in calls if view.id in decided):
            self._calls.forget(view.pending)
        return outcomes


def has_decided(outcome: Outcome, action: Action) -> bool:
    """Return whether an answer counts, and its call needs no further answers."""
    return outcome.receipt is not None and ACTIONS[action].decides and "lacking" not in outcome.receipt


def explain_shared(login: Login) -> str:
    """Return why a shared token may not answer, or an empty string for the login of a person."""
    if login.answers:
        return ""
    return "The access token identifies nobody, so on a server for several people it cannot answer calls. Log in."
