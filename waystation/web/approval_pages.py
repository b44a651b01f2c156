"""The pages of pending calls: the inbox, the page of one call with the forms that answer it, and several at once."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import urlencode

import anyio
import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from temporalio.service import RPCError

from waystation.client import AgentClient, Outcome
from waystation.core import (
    SECRET_NAMES,
    Action,
    Answer,
    CallState,
    ForeignHistory,
    JsonObject,
    Log,
    NotAllowed,
    PendingCall,
    StoreFailed,
    allowed,
    check_authority,
    check_claim,
    encode,
    ids,
    is_among_people,
)
from waystation.presentation import terminal, text_safety, words
from waystation.web import forms
from waystation.web.access import Gatekeeper, Login, call_path
from waystation.web.forms import Field, Form, InvalidInput, read_form
from waystation.web.invocations import describe, id_in_path
from waystation.web.limits import Limits
from waystation.web.responses import Refused, page, refused, status_of

log = structlog.get_logger("waystation.web")

TWIN_LIMIT_S = 20.0
"""How long the second of two clicks waits for the outcome of the first: longer than that may wait for a worker."""
MAX_COMMENT = 20_000
CONVERSATION_LINES = 8
"""Of the conversation, beside a call."""
NO_COMMENT = ("claim", "release", "progress")
"""Actions that settle nothing, so that no policy asks why."""
AFTERWARDS = {
    **{action: f"The call was {terminal.DONE[action]}." for action in ("progress", "claim", "release")},
    **dict.fromkeys(("approve", "edit"), "Your approval counts; more people have to approve."),
}
"""What is said once an answer was taken after which the call may still wait."""
AGAIN = "This page is older than your login, or was open for long. Nothing was sent; look at the call again."
UNVERIFIED = (
    "This call counts only answers of people whose identity is verified, and this server cannot vouch for you. "
    "Whoever runs it can set that up: `waystation web --identity FILE`."
)
TWICE = "This form was sent before, and counts once."
SEVERAL_TWICE = (
    "This form was sent before, or is older than your login. Nothing was sent now; look at what became of the calls."
)
LATE = "Your answer was not sent: the call waits no more."

AT_ONCE = 8
"""Calls that are read at the same time."""
MAX_FILTER = 300
SEVERAL = "several"
"""What the nonce of a form that answers several calls is for."""
UNKNOWN_OUTCOMES = (HTTPStatus.ACCEPTED, HTTPStatus.SERVICE_UNAVAILABLE)
"""Statuses of answers of which nobody knows yet whether they count."""
SEVERAL_ACTIONS: tuple[Action, ...] = ("approve", "reject")
DECISIONS: tuple[Action, ...] = ("approve", "reject", "edit", "respond", "progress")
FURTHER_ACTIONS: tuple[Action, ...] = ("claim", "release", "view", "waive", "cancel")
Standing = Literal["open", "decided", "expired", "closed"]


@dataclass(frozen=True, slots=True)
class CallView:
    """One call as its page shows it."""

    log: Log
    state: CallState
    pending: PendingCall
    standing: Standing

    @property
    def id(self) -> str:
        """The id of the call in the whole namespace."""
        return self.pending.approval_id

    @property
    def decision(self) -> str:
        """Who decided what and when; or why nobody can any more."""
        match self.standing:
            case "open":
                return "This call waits for an answer."
            case "expired":
                return "Nobody answered before the deadline. The call was not approved."
            case "decided" if self.state.answer:
                at = f", {terminal.clock(self.state.answered_at, zone=True)}" if self.state.answered_at else ""
                return f"This call was {words.decision(self.state)}{at}."
            case _:
                ended = self.log.state.outcome.ended
                over = ended.replace("_", " ") if ended else "going on without it"
                return f"This call waits no more: the invocation is {over}."

    @property
    def until(self) -> str:
        """Its deadline, and what is left of it."""
        return terminal.until(self.pending.deadline, time.time())

    @property
    def decisions(self) -> tuple[Action, ...]:
        """The decisions that the call takes, in the order in which a page offers them."""
        # What was asked for in a form is not answered by a mere yes.
        is_form = bool(self.state.call.response_schema) and self.state.gate != "waiting"
        return tuple(a for a in DECISIONS if a in allowed(self.state) and not (a == "approve" and is_form))

    @property
    def further_actions(self) -> tuple[Action, ...]:
        """What else can be done to it: claimed or released, noted as seen, waived or closed by an operator."""
        excluded = "claim" if self.state.claimed_by else "release"
        return tuple(a for a in FURTHER_ACTIONS if a in allowed(self.state) and a != excluded)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The arguments as rows of a table."""
        return _argument_rows(self.pending.args)

    @property
    def size(self) -> str:
        """How large the arguments are."""
        return f"{len(encode(self.pending.args)):,} bytes"

    @property
    def hint(self) -> text_safety.Shown:
        """The hint of the tool's author, when that is more than the usual words."""
        return text_safety.text(words.hint(self.pending))

    def showing(self, digest: str | None) -> PendingCall:
        """Return the call as a form has shown it: an answer holds for nothing else."""
        return self.pending.model_copy(update={"digest": digest or self.pending.digest})

    def response_fields(self) -> list[Field]:
        """Return the fields of the response that the call waits for, when its author says which there are."""
        schema = self.pending.response_schema
        return forms.of_schema(schema) or [] if schema else []


async def view_call(client: AgentClient, approval_id: str) -> CallView:
    """Return a call, whether or not it still waits. No worker has to run.

    Raises:
        Refused: There is no such call, or the server does not say.
    """
    unknown = Refused(
        HTTPStatus.NOT_FOUND,
        "UnknownCall",
        f"No call of the id {text_safety.line(approval_id)!r} waits or has waited here. It may be older than what the "
        "server keeps, or the link was not copied whole.",
    )
    try:
        invocation_id, call_id = ids.approved_call(approval_id)
    except ValueError:
        raise unknown from None
    try:
        if await describe(client, invocation_id) is None:
            raise unknown
        log = await client.invocation(invocation_id).log()
    except (RPCError, StoreFailed) as error:
        raise refused(error) from None
    except ForeignHistory:
        raise unknown from None
    state = log.state.calls.get(ids.requesting_call(call_id))
    if state is None or not state.ever_waits or log.state.input is None:
        raise unknown
    for pending in () if log.state.outcome.ended else log.state.pending():
        if pending.function_call_id == state.id:
            return CallView(log, state, pending, "expired" if pending.deadline <= time.time() else "open")
    was = state.pending(invocation_id, log.state.input.user_id, log.state.input.session_id, log.state.input.requester)
    if state.asked:
        was = was.model_copy(update={"kind": state.asked})
    standing: Standing = "expired" if state.expired else "decided" if state.answer else "closed"
    return CallView(log, state, was, standing)


async def send_answers(
    client: AgentClient,
    gatekeeper: Gatekeeper,
    login: Login,
    calls: Sequence[PendingCall],
    action: Action,
    **fields: Any,
) -> list[Outcome]:
    """Send the same answer of a person at a browser to some calls, each for what the call has shown."""
    fields = {key: value for key, value in fields.items() if value not in (None, "", False) or key == "wake"}
    fields |= {"by": login.subject or None, "token": gatekeeper.token_of(login)}
    outcomes = [outcome async for outcome in client.approvals.answer_all(calls, action, **fields)]
    for outcome in outcomes:
        if outcome.receipt is not None:
            log.info("answer.taken", approval_id=outcome.approval_id, action=action)
    return outcomes


def problem_of(outcome: Outcome) -> tuple[HTTPStatus, str]:
    """Return the status for an answer, and why it does not count."""
    error = outcome.error
    if error is None:
        return HTTPStatus.OK, ""
    if isinstance(error, RPCError):
        text = f"The Temporal server did not answer ({error.status.name}), so nobody knows whether this counts."
        return HTTPStatus.SERVICE_UNAVAILABLE, f"{text} Look at the call before you answer it again."
    return status_of(error), text_safety.line(str(error), 500)


def parse_answer(form: Form, view: CallView) -> tuple[Action, JsonObject]:
    """Return the action and the fields of the answer in a form.

    Raises:
        InvalidInput: It lacks something, or has something that is not what it should be.
    """
    wanted, call = form.get("action", ""), view.pending
    remember = wanted == "approve-and-remember"
    offered = [action for action in (*view.decisions, *view.further_actions) if action != "view"]
    action = next((action for action in offered if action == wanted.partition("-")[0]), None)
    if action is None or (remember and (call.policy is None or call.policy.remember is None)):
        raise InvalidInput("The call does not take this answer.")
    comment = form.get("comment", "").strip()
    if len(comment) > MAX_COMMENT:
        raise InvalidInput(f"The comment has {len(comment):,} characters; at most {MAX_COMMENT:,} are taken.")
    if not comment and words.needs_comment(call) and action not in NO_COMMENT:
        raise InvalidInput("This answer needs a comment.")
    fields: JsonObject = {"comment": comment, "remember": remember}
    match action:
        case "edit":
            fields["args"] = forms.parse_object(form.get("args", ""))
        case "respond":
            parts = view.response_fields()
            text = form.get("response", "")
            fields["response"] = forms.read(parts, form) if parts else forms.parse_response(text)
        case "progress":
            fields |= {"response": forms.parse_response(form.get("news", "")), "wake": "wake" in form}
        case "approve" if call.kind == "budget":
            fields["response"] = _grant(form, call)
        case "approve" if call.kind == "confirmation" and form.get("payload", "").strip():
            try:
                fields["response"] = forms.parse_object(form["payload"])
            except InvalidInput as error:
                raise InvalidInput(f"What goes with the approval: {error}") from None
    return action, fields


def _grant(form: Form, call: PendingCall) -> JsonObject | None:
    grant: JsonObject = {}
    for limit in call.args.get("limits") or ():
        if amount := form.get(f"limit.{limit}", "").strip():
            try:
                grant[limit] = json.loads(amount)
            except ValueError:
                raise InvalidInput(f"{text_safety.line(str(limit))}: write a number, such as 5000.") from None
    return grant or None


class ApprovalPages:
    """The pages of pending calls, which stay when the calls are decided."""

    def __init__(
        self, client: AgentClient, gatekeeper: Gatekeeper, limits: Limits, *, temporal_ui: str | None = None
    ) -> None:
        self._client, self._gatekeeper, self._limits = client, gatekeeper, limits
        self._ui = temporal_ui.rstrip("/") if temporal_ui else None

    def routes(self) -> list[Route]:
        """Return the pages."""
        return [
            Route("/approvals", partial(self._list, template="inbox.html")),
            Route("/approvals/rows", partial(self._list, template="inbox_rows.html")),
            Route("/approvals/several", self._several),
            Route("/approvals/several", self._answer_several, methods=["POST"]),
            Route("/approvals/{id}", self._show),
            Route("/approvals/{id}", self._answer, methods=["POST"]),
            Route("/approvals/{id}/edit", self._edit, methods=["GET", "POST"]),
            Route("/approvals/{id}/arguments.json", self._arguments),
            Route("/approvals/{id}/viewed", self._viewed, methods=["POST"]),
        ]

    async def _view(self, request: Request) -> CallView:
        return await view_call(self._client, id_in_path(request))

    async def _show(self, request: Request) -> Response:
        """Answer with the page of a call. Nothing is changed by looking."""
        notice = AFTERWARDS.get(request.query_params.get("done", ""), "")
        return self._page(request, await self._view(request), notice=notice)

    async def _viewed(self, request: Request) -> Response:
        """Note that somebody looked at a call, where a policy makes that matter; of one login once."""
        login: Login = request.state.login
        await read_form(request)
        view = await self._view(request)
        matters = view.standing == "open" and view.pending.policy is not None and "view" in view.further_actions
        if matters and not self._why_not(view, login, "view") and login.sees_first(view.id):
            await send_answers(self._client, self._gatekeeper, login, [view.pending], "view")
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _arguments(self, request: Request) -> Response:
        """Answer with all arguments as JSON."""
        view = await self._view(request)
        return Response(json.dumps(view.pending.args, indent=2), media_type="application/json")

    async def _edit(self, request: Request) -> Response:
        """Answer with the arguments as a form; or, when that was sent, with what it would change."""
        is_post = request.method == "POST"
        form = await read_form(request) if is_post else Form()
        view = await self._view(request)
        if view.standing != "open" or "edit" not in view.decisions:
            late = LATE if is_post and view.standing != "open" else ""
            return self._page(request, view, code=HTTPStatus.CONFLICT, problem=late)
        args, comment = view.pending.args, form.get("comment", "")
        edited = partial(self._edit_page, request, view, comment=comment)
        fields = forms.of_arguments(args)
        if not is_post or "begin" in form:
            return edited(fields)
        try:
            if "again" in form:
                return edited(forms.of_arguments(forms.parse_object(form.get("args", ""))))
            wanted = forms.parse_object(form[forms.WHOLE]) if forms.WHOLE in form else forms.read(fields, form)
        except InvalidInput as error:
            return edited(error.fields or fields, form.get(forms.WHOLE), str(error))
        # Python takes 1 and 1.0 and True for equal; a tool may not.
        if json.dumps(wanted, sort_keys=True) == json.dumps(args, sort_keys=True):
            return edited(fields, problem="Nothing was changed.")
        return page(
            "compare.html",
            login=request.state.login,
            call=view.pending,
            rows=_differences(args, wanted),
            args=json.dumps(wanted),
            once=_once(request.state.login, view),
            comment_needed=words.needs_comment(view.pending),
            comment=comment,
        )

    async def _answer(self, request: Request) -> Response:
        """Take the form of an answer: send it, once, and show what became of it."""
        login: Login = request.state.login
        form = await read_form(request)
        view = await self._view(request)
        conflict = partial(self._page, request, code=HTTPStatus.CONFLICT)
        use = login.form_use(form.get("nonce", ""), view.id)
        if use is None:
            return conflict(view, problem=AGAIN)
        if use.taken:
            with suppress(TimeoutError):
                await asyncio.wait_for(use.done.wait(), TWIN_LIMIT_S)
            return conflict(await self._view(request), problem=TWICE)
        if view.standing != "open":
            return conflict(view, problem=LATE)
        try:
            action, fields = parse_answer(form, view)
        except InvalidInput as error:
            code = HTTPStatus.UNPROCESSABLE_ENTITY
            return self._page(request, view, code=code, problem=str(error), typed=form, fields=error.fields)
        call = view.showing(form.get("digest"))
        # Nothing was awaited since it was seen to be free, so of two at once one is the second.
        use.taken = True
        try:
            (outcome,) = await send_answers(
                self._client, self._gatekeeper, login, [call], action, answer_id=form["nonce"], **fields
            )
        finally:
            use.done.set()
        if outcome.receipt is not None:
            done = f"?done={action}" if action in AFTERWARDS else ""
            return RedirectResponse(f"{call_path(view.id)}{done}", HTTPStatus.SEE_OTHER)
        status, problem = problem_of(outcome)
        if status is HTTPStatus.SERVICE_UNAVAILABLE:  # nor could the call be shown
            raise Refused(status, "NoServer", problem)
        view = await self._view(request)
        if action == "edit" and status is HTTPStatus.UNPROCESSABLE_ENTITY and view.standing == "open":
            again, whole = forms.of_arguments(fields["args"]), forms.format_json(fields["args"])
            return self._edit_page(request, view, again, whole, problem, comment=form.get("comment", ""))
        return self._page(request, view, code=status, problem=problem, typed=form)

    def _page(
        self,
        request: Request,
        view: CallView,
        *,
        code: HTTPStatus = HTTPStatus.OK,
        notice: str = "",
        problem: str = "",
        typed: Form | None = None,
        fields: Sequence[Field] | None = None,
    ) -> Response:
        login: Login = request.state.login
        call, is_open = view.pending, view.standing == "open"
        why_not = self._why_not(view, login, "reject")
        further = [
            action
            for action in view.further_actions
            if is_open and not login.only and not self._why_not(view, login, action)
        ]
        uri = terminal.login_uri(call)
        return page(
            "call.html",
            code=code,
            login=login,
            view=view,
            call=call,
            actions=self._offered(view, login) if is_open and not why_not else (),
            around=further,
            sees=is_open and call.policy is not None and login.browser and not login.only,
            path=call_path(view.id),
            why_not=why_not if is_open else "",
            terms=list(words.terms(call, options=False)),
            before=None if view.state.shown is None else _argument_rows(view.state.shown),
            whole=text_safety.value(call.args, head=text_safety.JSON_HEAD, tail=text_safety.JSON_TAIL),
            login_uri=uri if uri is not None and uri.startswith(("https://", "http://")) else None,
            payload=None if call.payload is None or call.kind == "credential" else text_safety.value(call.payload),
            interim=None if call.interim is None else text_safety.value(call.interim),
            said=_conversation(view.log),
            story=words.story(view.log, view.state),
            fields=fields if fields is not None else view.response_fields(),
            limits=call.args.get("limits") or () if call.kind == "budget" else (),
            typed=typed or Form(),
            notice=notice if is_open else "",
            problem=problem,
            comment_needed=words.needs_comment(view.pending),
            once=_once(login, view) if is_open else None,
            temporal_ui=self._ui,
            namespace=self._client.temporal.namespace,
        )

    def _offered(self, view: CallView, login: Login) -> tuple[Action, ...]:
        left_out = {"approve", "edit"} if is_among_people(login.subject, view.pending.approved_by) else set()
        if login.only:
            left_out |= {"edit", "progress"}  # arguments are edited on further pages, which a link does not open
        return tuple(action for action in view.decisions if action not in left_out)

    def _why_not(self, view: CallView, login: Login, action: Action) -> str:
        """Return why a person may not do that to the call; empty when that is allowed."""
        if not login.browser:
            return (
                "This link shows the call. To answer it, log in." if login.only else "Log in with a browser to answer."
            )
        who = self._gatekeeper.known_as(login)
        if who is None and view.pending.policy is not None and view.pending.policy.must_verify:
            return UNVERIFIED
        answer = Answer(function_call_id=view.state.id, action=action, by=login.person or None)
        input = view.log.state.input
        try:
            check_authority(view.state, answer, who, input.requesters if input else ())
            check_claim(view.state, answer, who)
        except NotAllowed as error:
            return str(error)
        return ""

    def _edit_page(
        self,
        request: Request,
        view: CallView,
        fields: Sequence[Field],
        typed: str | None = None,
        problem: str = "",
        *,
        comment: str,
    ) -> Response:
        return page(
            "edit.html",
            code=HTTPStatus.UNPROCESSABLE_ENTITY if problem else HTTPStatus.OK,
            login=request.state.login,
            call=view.pending,
            fields=fields,
            whole=forms.format_json(view.pending.args) if typed is None else typed,
            open_whole=typed is not None or not fields,
            problem=problem,
            comment=comment,
        )

    async def _list(self, request: Request, *, template: str) -> Response:
        """Answer with a page of what waits; or with the list alone, for a page that is kept fresh."""
        login: Login = request.state.login
        wanted = {name: request.query_params.get(name, "").strip()[:MAX_FILTER] for name in ("agent", "tool", "show")}
        start = request.query_params.get("page") or None
        params: dict[str, Any] = {name: wanted[name] or None for name in ("agent", "tool")}
        if wanted["show"] == "mine":
            params["person"] = login.names
        calls: list[PendingCall] = []
        following, most = start, self._limits.calls_per_page
        while True:
            try:
                found = await self._client.approvals.list(limit=most, page=following, **params)
            except ValueError:
                text = "There is no such page of the list."
                raise Refused(HTTPStatus.BAD_REQUEST, "InvalidRequest", text) from None
            calls += [call for call in found.calls if _is_shown(call, wanted["show"], login)]
            following = found.next
            # A page with little on it says nothing of those after it.
            if following is None or len(calls) >= most:
                break
        filters = {name: value for name, value in wanted.items() if value}
        return page(
            template,
            login=login,
            calls=calls,
            now=time.time(),
            wanted=wanted,
            filtered=bool(filters),
            first=start is None,
            here=urlencode({**filters, **({"page": start} if start else {})}),
            next=urlencode({**filters, "page": following}) if following else None,
            start=urlencode(filters),
        )

    async def _several(self, request: Request) -> Response:
        """Answer with some calls whole, to be answered together."""
        ids = list(dict.fromkeys(request.query_params.getlist("call")))
        if not ids:
            return RedirectResponse("/approvals", HTTPStatus.SEE_OTHER)
        self._check_count(ids)

        login: Login = request.state.login
        found = await self._view_all(ids)
        for view in found:
            if isinstance(view, Refused) and view.status is HTTPStatus.SERVICE_UNAVAILABLE:
                raise view
        views = [view for view in found if isinstance(view, CallView) and view.standing == "open"]
        return page(
            "several.html",
            login=login,
            views=views,
            gone=len(ids) - len(views),
            nonce=login.offer(SEVERAL),
            comment_needed=any(words.needs_comment(view.pending) for view in views),
            actions=[action for action in SEVERAL_ACTIONS if views and all(action in view.decisions for view in views)],
            mute=not login.browser,
        )

    async def _answer_several(self, request: Request) -> Response:
        """Take the form that answers several calls, and say of each what became of it."""
        login: Login = request.state.login
        form = await read_form(request)
        calls = [value.rpartition("|")[::2] for value in dict.fromkeys(form.getlist("call"))]
        self._check_count(calls)
        action = next((action for action in SEVERAL_ACTIONS if action == form.get("action")), None)
        comment = form.get("comment", "").strip()
        if action is None or not calls or len(comment) > MAX_COMMENT or not all(id for id, _ in calls):
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidRequest", "Choose what is answered, and how.")
        nonce = form.get("nonce", "")
        use = login.form_use(nonce, SEVERAL)
        if use is None or use.taken:
            raise Refused(HTTPStatus.CONFLICT, "SentBefore", SEVERAL_TWICE)
        use.taken = True

        problems: dict[str, str] = {}
        sent: list[PendingCall] = []
        try:
            for (id, digest), view in zip(calls, await self._view_all([id for id, _ in calls]), strict=True):
                try:
                    sent.append(_open_call(view, form, digest))
                except InvalidInput as problem:
                    problems[id] = str(problem)
            fields = {"answer_id": nonce, "comment": comment}
            outcomes = await send_answers(self._client, self._gatekeeper, login, sent, action, **fields)
        finally:
            use.done.set()
        results = {outcome.approval_id: problem_of(outcome) for outcome in outcomes}
        counts = {id for id, (status, _) in results.items() if status is HTTPStatus.OK}
        problems |= {id: text for id, (_, text) in results.items() if text}
        lines = [
            {
                "id": id,
                "shown": text_safety.line(id),
                "counts": id in counts,
                "text": text_safety.line(problems.get(id, terminal.DONE[action]), 500),
            }
            for id, _ in calls
        ]
        return page(
            "results.html",
            login=login,
            lines=lines,
            counted=len(counts),
            open=sum(status in UNKNOWN_OUTCOMES for status, _ in results.values()),
        )

    async def _view_all(self, ids: Sequence[str]) -> list[CallView | Refused]:
        """Return calls in the order of their ids, some read at a time; or why one cannot be shown."""
        free = anyio.CapacityLimiter(AT_ONCE)
        found: dict[str, CallView | Refused] = {}

        async def view(id: str) -> None:
            async with free:
                try:
                    found[id] = await view_call(self._client, id)
                except Refused as refused:
                    found[id] = refused

        async with anyio.create_task_group() as tasks:
            for id in ids:
                tasks.start_soon(view, id)
        return [found[id] for id in ids]

    def _check_count(self, calls: Sequence[object]) -> None:
        if len(calls) > self._limits.calls_per_answer:
            text = f"At most {self._limits.calls_per_answer} calls are answered together; tick fewer."
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "TooMany", text)


def _open_call(view: CallView | Refused, form: Form, digest: str) -> PendingCall:
    """Return the call that an answer to several is for, as the form has shown it.

    Raises:
        InvalidInput: It is not to be answered like this.
    """
    if isinstance(view, Refused):
        raise InvalidInput(view.message)
    if view.standing != "open":
        raise InvalidInput(view.decision)
    parse_answer(form, view)
    return view.showing(digest)


def _is_shown(call: PendingCall, show: str, login: Login) -> bool:
    return {"claimed": call.claimed_by in login.names, "free": call.claimed_by is None}.get(show, True)


def _argument_rows(args: JsonObject) -> list[dict[str, Any]]:
    return [
        {"name": text_safety.text(name), "value": text_safety.value(value), "secret": bool(SECRET_NAMES.search(name))}
        for name, value in args.items()
    ]


def _differences(was: JsonObject, wanted: JsonObject) -> list[dict[str, Any]]:
    rows = []
    for name in dict.fromkeys((*was, *wanted)):
        kind = "added" if name not in was else "removed" if name not in wanted else "changed"
        if kind == "changed" and json.dumps(was[name]) == json.dumps(wanted[name]):
            kind = "unchanged"
        rows.append(
            {
                "name": text_safety.text(name),
                "kind": kind,
                "secret": bool(SECRET_NAMES.search(name)),
                "was": text_safety.value(was[name]) if name in was else None,
                "wanted": text_safety.value(wanted[name]) if name in wanted else None,
            }
        )
    return rows


def _conversation(log: Log) -> list[terminal.Line]:
    """Return the last lines of the conversation."""
    lines: list[terminal.Line] = []
    for event in reversed(log.state.events):
        said = (line for line in terminal.lines_of(event) if line.kind in ("text", "error"))
        lines = [replace(line, text=text_safety.line(line.text, words.MAX_SAID)) for line in said] + lines
        if len(lines) >= CONVERSATION_LINES:
            break
    return lines[-CONVERSATION_LINES:]


def _once(login: Login, view: CallView) -> dict[str, str]:
    """Return the fields that make a form this login's own, about this very call, and good for one time."""
    return {"csrf": login.csrf, "nonce": login.offer(view.id), "digest": view.pending.digest}
