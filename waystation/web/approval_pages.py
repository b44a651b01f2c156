"""Pages for pending calls: the inbox, one call with the forms to answer it, and several calls at once."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError

from waystation.approvers import Gatekeeper, sees_invocation
from waystation.client import AgentClient
from waystation.core.actions import ACTIONS, Action
from waystation.core.approval import PendingCall, is_among_people
from waystation.core.errors import AnswerRefused
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.secrets import has_named_secret
from waystation.presentation import terminal, text_safety, words
from waystation.presentation.argument_layout import lay_out_arguments
from waystation.web import forms
from waystation.web.call_answers import CallAnswers, CallView, problem_of
from waystation.web.forms import Field, Form, InvalidForm, read_form
from waystation.web.http_responses import RequestRefused, find_status, redirect, render_page
from waystation.web.inbox_pages import summarize_progress
from waystation.web.limits import Limits
from waystation.web.logins import Login
from waystation.web.paths import format_call_path, sanitize_next
from waystation.web.pending_list import InboxQuery, Neighbors, PendingList

TWIN_LIMIT_S = 20.0
"""How long the second of two clicks on a button waits for the outcome of the first, which may depend on a worker."""
CONVERSATION_LINES = 8
"""Number of lines of the conversation to show with a call."""
NOTICES: dict[str, str] = {
    row.name: "Your approval was accepted. More people have to approve."
    if row.approves
    else f"The call was {row.effect}."
    for row in ACTIONS.values()
    if row.approves or not row.decides
}
"""Notices to show after answers that may leave the call pending."""
STALE_FORM = "This page is older than your login, or was open for too long. Nothing was sent; check the call again."
SENT_TWICE = "This form was already sent. It counts only once."
SEVERAL_SENT_TWICE = "This form was already sent, or is older than your login. Nothing was sent; check the calls."
TOO_LATE = "Your answer was not sent: the call is no longer pending."

BULK = [row for row in ACTIONS.values() if row.in_bulk]
SEVERAL = "several"
"""The subject of nonces for forms that answer several calls; see `Login.offer_form`."""
UNKNOWN_OUTCOMES = (HTTPStatus.ACCEPTED, HTTPStatus.SERVICE_UNAVAILABLE)
"""HTTP statuses for answers whose outcome is unknown, and which may still be accepted."""
AND_NEXT = "-and-next"
"""The end of the value of a button that answers a call and then shows the next one."""
PLACE_AGE_S = 15.0
"""Maximum age of the list in which a call's neighbors are found."""


def parse_answer(form: Form, view: CallView) -> tuple[Action, JsonObject]:
    """Return the action and the fields of the answer that a form contains.

    Raises:
        InvalidInput: A field is missing or invalid, or the call does not accept the action.
    """
    button, call = form.get("action", ""), view.pending
    remember = button == "approve-and-remember"
    offered = [action for action in (*view.decisions, *view.further_actions) if action != "view"]
    action = next((action for action in offered if action == button.partition("-")[0]), None)
    if action is None or (remember and (call.policy is None or call.policy.remember is None)):
        raise InvalidForm("The call does not accept this answer.")
    comment = form.get("comment", "").strip()
    if not comment and words.needs_comment(call, ACTIONS[action]):
        raise InvalidForm("This answer requires a comment.")
    fields: JsonObject = {"comment": comment, "remember": remember}
    match action:
        case "edit":
            fields["args"] = forms.parse_object(form.get("args", ""))
        case "respond" | "replace":
            inputs, text = view.response_fields(), form.get("response", "")
            fields["response"] = forms.parse_fields(inputs, form) if inputs else forms.parse_response(text)
        case "ran" if form.get("response", "").strip():
            fields["response"] = forms.parse_response(form["response"])
        case "progress":
            fields |= {"response": forms.parse_response(form.get("news", "")), "wake": "wake" in form}
        case "approve" if call.kind == "budget":
            fields["response"] = _grant(form, call)
        case "approve" if call.kind == "confirmation" and form.get("payload", "").strip():
            try:
                fields["response"] = forms.parse_object(form["payload"])
            except InvalidForm as error:
                raise InvalidForm(f"Payload of the approval: {error}") from None
    return action, fields


def _grant(form: Form, call: PendingCall) -> JsonObject | None:
    grant: JsonObject = {}
    for limit in call.args.get("limits") or ():
        if amount := form.get(f"limit.{limit}", "").strip():
            try:
                grant[limit] = json.loads(amount)
            except ValueError:
                raise InvalidForm(f"{text_safety.format_line(str(limit))}: enter a number, such as 5000.") from None
    return grant or None


class ApprovalPages:
    """The inbox and the pages for calls. A call's page is still available after the decision."""

    def __init__(
        self,
        client: AgentClient,
        gatekeeper: Gatekeeper,
        limits: Limits,
        calls: PendingList,
        *,
        temporal_ui: str | None = None,
    ) -> None:
        self._client, self._calls = client, calls
        self.answers = CallAnswers(client, gatekeeper, limits, calls)
        self._ui = temporal_ui.rstrip("/") if temporal_ui else None

    async def call(self, request: Request) -> Response:
        """Serve the page of a call. Opening the page does not change the call."""
        view, notice = await self.answers.find(request), NOTICES.get(request.query_params.get("done", ""), "")
        missing = await self._client.agents.find_missing_tool(view.pending) if view.standing == "open" else None
        await self._find_place(request, view, InboxQuery.parse_or_default(request.query_params))
        return self._page(request, view, notice=notice or missing or "")

    async def make_card(self, login: Login, approval_id: str) -> JsonObject | None:
        """Return what another page needs to offer an answer to an open call, or None if it cannot be shown there.

        The form is the one of the call's page: it has the same hidden fields, and is sent to the same route.
        """
        try:
            view = await self.answers.view(login, approval_id)
        except RequestRefused as refused:
            if refused.status is HTTPStatus.NOT_FOUND:
                return None
            raise
        why_not = self._why_not(view, login, "reject")
        return (
            None
            if view.standing != "open"
            else {
                "view": view,
                "path": format_call_path(view.id),
                "actions": () if why_not else self._offered(view, login),
                "why_not": why_not,
                "comment_needed": words.needs_comment(view.pending),
                # A function, because each form that is offered replaces the oldest one of the login.
                "hidden": partial(_make_form_fields, login, view),
            }
        )

    async def _find_place(self, request: Request, view: CallView, query: InboxQuery) -> Neighbors | None:
        """Find the place of a call in the inbox, for the links to its neighbors. None if there is no inbox."""
        login: Login = request.state.login
        request.state.query = query
        if login.only or not login.browser:
            return None
        with suppress(RPCError):
            selection = await self._calls.select(login, query, max_age_s=PLACE_AGE_S)
            request.state.waiting = selection.waiting
            request.state.neighbors = selection.find_neighbors(view.id)
        return getattr(request.state, "neighbors", None)

    async def viewed(self, request: Request) -> Response:
        """Record, once per login, that a person has viewed an open call with an approval policy."""
        login: Login = request.state.login
        await read_form(request)
        view = await self.answers.find(request)
        is_relevant = view.standing == "open" and view.pending.policy is not None and "view" in view.further_actions
        if is_relevant and not self._why_not(view, login, "view") and login.is_first_view(view.id):
            await self.answers.send(login, [(view, view.pending)], "view")
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def arguments(self, request: Request) -> Response:
        """Serve the call's complete arguments as JSON."""
        view = await self.answers.find(request)
        if view.unread:
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "StoreFailed", view.unread)
        return Response(json.dumps(view.pending.args, indent=2), media_type="application/json")

    async def edit(self, request: Request) -> Response:
        """Serve a form for editing the arguments or, once the form was sent, a comparison with the original ones."""
        is_post = request.method == "POST"
        form = await read_form(request) if is_post else Form()
        view = await self.answers.find(request)
        if view.standing != "open" or "edit" not in view.decisions:
            late = TOO_LATE if is_post and view.standing != "open" else ""
            return self._page(request, view, code=HTTPStatus.CONFLICT, problem=late)
        args, comment = view.pending.args, form.get("comment", "")
        edit_page = partial(self._edit_page, request, view, comment=comment)
        fields = forms.make_argument_fields(args)
        if not is_post or "begin" in form:
            return edit_page(fields)
        try:
            if "again" in form:
                return edit_page(forms.make_argument_fields(forms.parse_object(form.get("args", ""))))
            is_json = forms.WHOLE in form
            new_args = forms.parse_object(form[forms.WHOLE]) if is_json else forms.parse_fields(fields, form)
        except InvalidForm as error:
            return edit_page(error.fields or fields, form.get(forms.WHOLE), str(error))
        # Compare as JSON: in Python, 1 == 1.0 == True, but a tool may treat these values differently.
        if json.dumps(new_args, sort_keys=True) == json.dumps(args, sort_keys=True):
            return edit_page(fields, problem="Nothing was changed.")
        return render_page(
            "compare.html",
            login=request.state.login,
            call=view.pending,
            rows=_compare_arguments(args, new_args),
            args=json.dumps(new_args),
            hidden=_make_form_fields(request.state.login, view),
            comment_needed=words.needs_comment(view.pending),
            comment=comment,
        )

    async def answer(self, request: Request) -> Response:
        """Send the answer in a form, but only once, and show the outcome."""
        login: Login = request.state.login
        form = await read_form(request)
        view = await self.answers.find(request)
        conflict = partial(self._page, request, code=HTTPStatus.CONFLICT)
        query = InboxQuery.parse_or_default(dict(parse_qsl(form.get("list", ""))))
        leads_on = form.get("action", "").endswith(AND_NEXT)
        # The place is found before the call is answered, because the answer removes the call from the list.
        place = await self._find_place(request, view, query) if leads_on else None
        request.state.query = query  # the page of a refused answer keeps the filters of the list
        use = login.find_form(form.get("nonce", ""), view.id)
        if use is None:
            return conflict(view, problem=STALE_FORM)
        if use.sent:
            with suppress(TimeoutError):
                await asyncio.wait_for(use.done.wait(), TWIN_LIMIT_S)
            return conflict(await self.answers.find(request), problem=SENT_TWICE)
        if view.standing != "open":
            return conflict(view, problem=TOO_LATE)
        try:
            action, fields = parse_answer(form, view)
        except InvalidForm as error:
            code = HTTPStatus.UNPROCESSABLE_ENTITY
            return self._page(request, view, code=code, problem=str(error), typed=form, fields=error.fields)
        call = view.with_version(form.get("digest", ""))
        try:
            self.answers.check(login, view, action, comment=fields["comment"], digest=call.digest)
        except AnswerRefused as refused:
            return self._page(request, view, code=find_status(refused), problem=str(refused), typed=form)
        # There is no `await` since the check above, so only one of two simultaneous requests gets here.
        use.sent = True
        try:
            (outcome,) = await self.answers.send(login, [(view, call)], action, answer_id=form["nonce"], **fields)
        finally:
            use.done.set()
        if outcome.receipt is not None:
            return redirect(_format_next_path(view, form, action, query, place))
        status, problem = problem_of(outcome)
        if status is HTTPStatus.SERVICE_UNAVAILABLE:  # the call cannot be shown either
            raise RequestRefused(status, "NoServer", problem)
        view = await self.answers.find(request)
        if action == "edit" and status is HTTPStatus.UNPROCESSABLE_ENTITY and view.standing == "open":
            again, whole = forms.make_argument_fields(fields["args"]), forms.format_json(fields["args"])
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
        query: InboxQuery = getattr(request.state, "query", InboxQuery())
        why_not = self._why_not(view, login, "reject")
        further = [
            action
            for action in view.further_actions
            if is_open and not login.only and not self._why_not(view, login, action)
        ]
        uri = terminal.get_login_uri(call)
        return render_page(
            "call.html",
            code=code,
            login=login,
            view=view,
            call=call,
            actions=self._offered(view, login) if is_open and not why_not else (),
            further=further,
            records_view=is_open and call.policy is not None and login.browser and not login.only,
            path=format_call_path(view.id),
            query=query.encode(),
            neighbors=getattr(request.state, "neighbors", None),
            waiting=getattr(request.state, "waiting", 0),
            progress=summarize_progress(view.log, view.state.id),
            now=time.time(),
            why_not=why_not if is_open else "",
            terms=list(words.list_terms(call, options=False)),
            before=None if view.state.requested is None else lay_out_arguments(view.state.requested),
            description=[text_safety.format_text(part) for part in words.split_description(view.state.call)],
            whole=text_safety.format_value(call.args, head=text_safety.JSON_HEAD, tail=text_safety.JSON_TAIL),
            login_uri=uri if uri is not None and uri.startswith(("https://", "http://")) else None,
            payload=None
            if call.payload is None or call.kind == "credential"
            else text_safety.format_value(call.payload),
            interim=None if call.interim is None else text_safety.format_value(call.interim),
            conversation=_last_lines(view.log),
            story=words.story(view.log, view.state),
            fields=fields if fields is not None else view.response_fields(),
            limits=call.args.get("limits") or () if call.kind == "budget" else (),
            typed=typed or Form(),
            notice=notice if is_open else "",
            problem=problem,
            comment_needed=words.needs_comment(view.pending),
            hidden=_make_form_fields(login, view) if is_open else None,
            temporal_ui=self._ui,
            namespace=self._client.temporal.namespace,
            sees_invocation=sees_invocation(login, (call.requester, call.user_id), call.tenant),
        )

    def _offered(self, view: CallView, login: Login) -> tuple[Action, ...]:
        has_approved = is_among_people(login.subject, view.pending.approved_by)
        rows = [ACTIONS[action] for action in view.decisions]
        return tuple(
            row.name
            for row in rows
            if not (row.approves and has_approved)
            and not (row.name in ("edit", "progress") and login.only)  # a link opens only this page
            and not (row.advances and view.pending.requesters is None)  # anybody could be the requester
        )

    def _why_not(self, view: CallView, login: Login, action: Action) -> str:
        """Return why a person may not perform an action on a call, or an empty string if it is allowed."""
        if not login.browser:
            return (
                "This link only shows the call. Log in to answer." if login.only else "Log in with a browser to answer."
            )
        return self.answers.why_not(login, view, action)

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
        return render_page(
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

    async def several(self, request: Request) -> Response:
        """Serve a page that shows those selected calls that are open in full, with a form to answer them together."""
        ids = list(dict.fromkeys(request.query_params.getlist("call")))
        if not ids:
            return redirect("/approvals")
        self.answers.check_count(ids)

        login: Login = request.state.login
        results = await self.answers.view_all(login, ids)
        for view in results:
            if isinstance(view, RequestRefused) and view.status is HTTPStatus.SERVICE_UNAVAILABLE:
                raise view
        views = [view for view in results if isinstance(view, CallView) and view.standing == "open"]
        return render_page(
            "several.html",
            login=login,
            views=views,
            closed=len(ids) - len(views),
            now=time.time(),
            nonce=login.offer_form(SEVERAL),
            comment_needed=any(words.needs_comment(view.pending) for view in views),
            actions=[row.name for row in BULK if views and all(row.name in view.decisions for view in views)],
            read_only=not login.browser,
        )

    async def answer_several(self, request: Request) -> Response:
        """Answer several calls with one form, and show the outcome of each."""
        login: Login = request.state.login
        form = await read_form(request)
        calls = [value.rpartition("|")[::2] for value in dict.fromkeys(form.getlist("call"))]
        self.answers.check_count(calls)
        action = next((row.name for row in BULK if row.name == form.get("action")), None)
        comment = form.get("comment", "").strip()
        if action is None or not calls or not all(id for id, _ in calls):
            text = "Select a call, and choose an answer."
            raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidRequest", text)
        nonce = form.get("nonce", "")
        use = login.find_form(nonce, SEVERAL)
        if use is None or use.sent:
            raise RequestRefused(HTTPStatus.CONFLICT, "SentBefore", SEVERAL_SENT_TWICE)
        use.sent = True

        problems: dict[str, str] = {}
        sent: list[tuple[CallView, PendingCall]] = []
        try:
            for (id, version), view in zip(
                calls, await self.answers.view_all(login, [id for id, _ in calls]), strict=True
            ):
                try:
                    sent.append(self._check_open(view, form, version, login))
                except (InvalidForm, AnswerRefused) as problem:
                    problems[id] = str(problem)
            fields = {"answer_id": nonce, "comment": comment}
            outcomes = await self.answers.send(login, sent, action, **fields)
        finally:
            use.done.set()
        results = {outcome.approval_id: problem_of(outcome) for outcome in outcomes}
        counts = {id for id, (status, _) in results.items() if status is HTTPStatus.OK}
        problems |= {id: text for id, (_, text) in results.items() if text}
        lines = [
            {
                "id": id,
                "label": text_safety.format_line(id),
                "counts": id in counts,
                "text": text_safety.format_line(problems.get(id, ACTIONS[action].effect), 500),
            }
            for id, _ in calls
        ]
        return render_page(
            "results.html",
            login=login,
            lines=lines,
            counted=len(counts),
            open=sum(status in UNKNOWN_OUTCOMES for status, _ in results.values()),
        )

    def _check_open(
        self, view: CallView | RequestRefused, form: Form, version: str, login: Login
    ) -> tuple[CallView, PendingCall]:
        """Return one of the calls that a form answers, and the call with the digest and the run from the form.

        Raises:
            InvalidInput: The call cannot be shown, is not open or does not accept the answer.
            AnswerRefused: The person is not allowed to answer it.
        """
        if isinstance(view, RequestRefused):
            raise InvalidForm(view.message)
        if view.standing != "open":
            raise InvalidForm(view.decision)
        action, fields = parse_answer(form, view)
        call = view.with_version(version)
        self.answers.check(login, view, action, comment=fields["comment"], digest=call.digest)
        return view, call


def _compare_arguments(old: JsonObject, new: JsonObject) -> list[dict[str, Any]]:
    rows = []
    for name in dict.fromkeys((*old, *new)):
        kind = "added" if name not in old else "removed" if name not in new else "changed"
        if kind == "changed" and json.dumps(old[name]) == json.dumps(new[name]):
            kind = "unchanged"
        rows.append(
            {
                "name": text_safety.format_text(name),
                "kind": kind,
                "secret": any(has_named_secret(args[name], name) for args in (old, new) if name in args),
                "old": text_safety.format_value(old[name], reveal=True) if name in old else None,
                "new": text_safety.format_value(new[name], reveal=True) if name in new else None,
            }
        )
    return rows


def _last_lines(log: Log) -> list[terminal.Line]:
    lines: list[terminal.Line] = []
    for event in reversed(log.state.events):
        texts = (line for line in terminal.format_event(event) if line.kind in ("text", "error"))
        lines = [
            replace(line, text=text_safety.format_line(line.text, words.MAX_SHOWN_CHARS)) for line in texts
        ] + lines
        if len(lines) >= CONVERSATION_LINES:
            break
    return lines[-CONVERSATION_LINES:]


def _format_next_path(view: CallView, form: Form, action: Action, query: InboxQuery, place: Neighbors | None) -> str:
    """Return the path of the page to show after an answer.

    This is the page of the next call for a button whose value ends with `-and-next`, the page that the form names, or
    the page of the call.
    """
    if next := form.get("next", ""):
        return sanitize_next(next)
    if form.get("action", "").endswith(AND_NEXT):
        path = format_call_path(place.following) if place and place.following else "/approvals"
        return f"{path}?{query.encode()}".rstrip("?")
    params = {**dict(parse_qsl(query.encode())), **({"done": action} if action in NOTICES else {})}
    return f"{format_call_path(view.id)}?{urlencode(params)}".rstrip("?")


def _make_form_fields(login: Login, view: CallView) -> dict[str, str]:
    """Return the hidden fields that tie a form to this login and call, and that allow it to be sent only once."""
    return {"csrf": login.csrf, "nonce": login.offer_form(view.id), "digest": view.version}
