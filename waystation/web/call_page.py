"""The page of one call that waits, or has waited, for a person: what it is, and the forms that answer it."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from waystation.cli import render
from waystation.client.agent_client import AgentClient
from waystation.core.answer import Action, PendingCall
from waystation.core.payload import JsonObject
from waystation.core.summary import SECRET_NAMES
from waystation.web import forms, shown
from waystation.web.answering import MAX_COMMENT, TWIN_LIMIT_S, Answering
from waystation.web.call_view import (
    DONE,
    Looked,
    around,
    asked,
    conversation,
    decisions,
    hint,
    looked_up,
    refused_to,
    size,
    story,
)
from waystation.web.forms import Field
from waystation.web.logins import Login
from waystation.web.posted import Posted, posted
from waystation.web.rendering import page

AFTERWARDS = {
    **{action: f"The call was {DONE[action]}." for action in ("progress", "claim", "release")},
    **dict.fromkeys(("approve", "edit"), "Your approval counts; more people have to approve."),
}
"""What is said once an answer was taken after which the call may still wait."""
AGAIN = "This page is older than your login, or was open for long. Nothing was sent; look at the call again."
UNVERIFIED = (
    "This call counts only answers of people whose identity is verified, and this server cannot vouch for you. "
    "Whoever runs it can set that up: `waystation web --identity FILE`."
)
TWICE = "This form was sent before, and counts once."


class CallPages:
    """The pages of calls."""

    def __init__(self, client: AgentClient, answering: Answering, *, temporal_ui: str | None = None) -> None:
        self._client, self._answering = client, answering
        self._ui = temporal_ui.rstrip("/") if temporal_ui else None

    async def show(self, request: Request) -> Response:
        """Answer with the page of a call. Nothing is changed by looking."""
        looked = await looked_up(self._client, named(request))
        return self._page(request, looked, notice=AFTERWARDS.get(request.query_params.get("done", ""), ""))

    async def arguments(self, request: Request) -> Response:
        """Answer with all arguments as JSON."""
        looked = await looked_up(self._client, named(request))
        return Response(json.dumps(looked.pending.args, indent=2), media_type="application/json")

    async def edit(self, request: Request) -> Response:
        """Answer with the arguments as a form; or, when that was sent, with what it would change."""
        login: Login = request.state.login
        form = await posted(request, login) if request.method == "POST" else Posted(())
        looked = await looked_up(self._client, named(request))
        if looked.standing != "open" or "edit" not in decisions(looked.state):
            return self._page(request, looked, code=HTTPStatus.CONFLICT)
        args = looked.pending.args
        if "again" in form:
            return self._edit_page(request, looked, forms.of_arguments(_object(form.one("args")) or args))
        if request.method != "POST":
            return self._edit_page(request, looked, forms.of_arguments(args))
        if forms.WHOLE in form:
            try:
                wanted, fields = forms.object_of(form.text(forms.WHOLE)), list[Field]()
            except ValueError as error:
                return self._edit_page(request, looked, forms.of_arguments(args), form.text(forms.WHOLE), str(error))
        else:
            wanted, fields = forms.read(forms.of_arguments(args), form)
        if any(field.error for field in fields):
            return self._edit_page(request, looked, fields, problem="Some fields need another look.")
        if wanted == args:
            return self._edit_page(request, looked, forms.of_arguments(args), problem="Nothing was changed.")
        return page(
            "compare.html",
            login=login,
            call=looked.pending,
            rows=_differences(args, wanted),
            args=json.dumps(wanted),
            once=_once(login, looked),
            comment_needed=_needs_comment(looked.pending),
        )

    async def answer(self, request: Request) -> Response:
        """Take the form of an answer: send it, once, and show what became of it."""
        login: Login = request.state.login
        form = await posted(request, login)
        looked = await looked_up(self._client, named(request))
        sending = login.sending(form.one("nonce"), looked.id)
        if sending is None:
            return self._page(request, looked, code=HTTPStatus.CONFLICT, problem=AGAIN)
        if sending.taken:
            with suppress(TimeoutError):
                await asyncio.wait_for(sending.done.wait(), TWIN_LIMIT_S)
            looked = await looked_up(self._client, looked.id)
            return self._page(request, looked, code=HTTPStatus.CONFLICT, problem=TWICE)
        if looked.standing != "open":
            return self._page(request, looked, code=HTTPStatus.CONFLICT)
        try:
            action, fields = _answer(form, looked)
        except Incomplete as incomplete:
            return self._page(
                request,
                looked,
                code=HTTPStatus.UNPROCESSABLE_ENTITY,
                problem=str(incomplete),
                typed=form,
                fields=incomplete.fields,
            )
        # Nothing was awaited since it was seen to be free, so of two at once one is the second.
        sending.taken = True
        try:
            outcome = await self._answering.send(
                login,
                looked.id,
                action,
                digest=form.one("digest") or looked.pending.digest,
                answer_id=form.one("nonce"),
                **fields,
            )
        finally:
            sending.done.set()
        if outcome.counts:
            done = f"?done={action}" if action in AFTERWARDS else ""
            return RedirectResponse(f"/approvals/{quote(looked.id, safe='')}{done}", HTTPStatus.SEE_OTHER)
        looked = await looked_up(self._client, looked.id)
        return self._page(request, looked, code=outcome.status, problem=shown.line(outcome.message, 500))

    def _page(
        self,
        request: Request,
        looked: Looked,
        *,
        code: HTTPStatus = HTTPStatus.OK,
        notice: str = "",
        problem: str = "",
        typed: Posted | None = None,
        fields: Sequence[Field] | None = None,
    ) -> Response:
        login: Login = request.state.login
        call, typed = looked.pending, typed or Posted(())
        open_now = looked.standing == "open"
        why_not = self._why_not(looked, login, "reject")
        return page(
            "call.html",
            code=code,
            login=login,
            looked=looked,
            call=call,
            actions=decisions(looked.state) if open_now and not why_not else (),
            around=tuple(each for each in around(looked.state) if not self._why_not(looked, login, each))
            if open_now
            else (),
            why_not=why_not if open_now else "",
            rows=rows_of(call.args),
            whole=shown.value(call.args, head=shown.JSON_HEAD, tail=shown.JSON_TAIL),
            size=size(call.args),
            hint=shown.text(hint(call)),
            login_uri=_web_address(render.login_uri(call)),
            payload=None if call.payload is None or call.kind == "credential" else shown.value(call.payload),
            interim=None if call.interim is None else shown.value(call.interim),
            asked=asked(call),
            until=render.until(call.deadline, time.time()) if open_now else "",
            since=render.clock(call.requested_at) if call.requested_at else "",
            said=conversation(looked.log),
            story=story(looked.log, looked.state),
            fields=fields if fields is not None else _response_fields(call),
            limits=call.args.get("limits") or () if call.kind == "budget" else (),
            typed=typed,
            notice=notice if open_now else "",
            problem=problem,
            comment_needed=_needs_comment(call),
            once=_once(login, looked) if open_now else None,
            temporal=self._temporal_address(looked),
        )

    def _why_not(self, looked: Looked, login: Login, action: Action) -> str:
        if not login.browser:
            return "Log in with a browser to answer."
        who = self._answering.known_as(login)
        if who is None and looked.pending.policy is not None and looked.pending.policy.must_verify:
            return UNVERIFIED
        return refused_to(looked, action, login.person, who)

    def _edit_page(
        self, request: Request, looked: Looked, fields: Sequence[Field], typed: str | None = None, problem: str = ""
    ) -> Response:
        return page(
            "edit.html",
            code=HTTPStatus.UNPROCESSABLE_ENTITY if problem else HTTPStatus.OK,
            login=request.state.login,
            call=looked.pending,
            fields=fields,
            whole=forms.written(looked.pending.args) if typed is None else typed,
            open_whole=typed is not None or not fields,
            problem=problem,
        )

    def _temporal_address(self, looked: Looked) -> str | None:
        if self._ui is None:
            return None
        namespace, id = (quote(name, safe="") for name in (self._client.temporal.namespace, looked.invocation.id))
        return f"{self._ui}/namespaces/{namespace}/workflows/{id}"


class Incomplete(Exception):
    """A form lacks something, or has something that is not what it should be."""

    def __init__(self, message: str, fields: Sequence[Field] | None = None) -> None:
        self.fields = fields
        super().__init__(message)


def named(request: Request) -> str:
    """Return the approval id that a path names."""
    return unquote(request.path_params["id"], errors="replace")


def rows_of(args: JsonObject) -> list[dict[str, Any]]:
    """Return the arguments as rows of a table."""
    return [
        {"name": shown.text(name), "value": shown.value(value), "secret": bool(SECRET_NAMES.search(name))}
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
                "name": shown.text(name),
                "kind": kind,
                "was": shown.value(was[name]) if name in was else None,
                "wanted": shown.value(wanted[name]) if name in wanted else None,
            }
        )
    return rows


def _answer(form: Posted, looked: Looked) -> tuple[Action, JsonObject]:
    """Return what a form says.

    Raises:
        Incomplete: It lacks something.
    """
    wanted, call = form.one("action"), looked.pending
    remember = wanted == "approve-and-remember"
    action = next(
        (each for each in (*decisions(looked.state), *around(looked.state)) if each == wanted.partition("-")[0]), None
    )
    if action is None or (remember and (call.policy is None or call.policy.remember is None)):
        raise Incomplete("The call does not take this answer.")
    comment = form.text("comment").strip()
    if len(comment) > MAX_COMMENT:
        raise Incomplete(f"The comment has {len(comment):,} characters; at most {MAX_COMMENT:,} are taken.")
    if not comment and _needs_comment(call) and action not in ("claim", "release", "progress"):
        raise Incomplete("This answer needs a comment.")
    fields: JsonObject = {"comment": comment, "remember": remember}
    if action == "edit":
        fields["args"] = _object(form.one("args"))
        if fields["args"] is None:
            raise Incomplete("The arguments are missing; edit them again.")
    if action in ("respond", "progress"):
        fields["response"] = _response(form, call, action)
        if action == "progress":
            fields["wake"] = "wake" in form
    if action == "approve" and call.kind == "budget":
        fields["response"] = _grant(form, call)
    if action == "approve" and call.kind == "confirmation" and form.text("payload").strip():
        try:
            fields["response"] = forms.object_of(form.text("payload"))
        except ValueError as error:
            raise Incomplete(f"What goes with the approval: {error}") from None
    return action, fields


def _response(form: Posted, call: PendingCall, action: Action) -> JsonObject:
    drawn = _response_fields(call)
    if action == "respond" and drawn:
        values, again = forms.read(drawn, form)
        if any(field.error for field in again):
            raise Incomplete("Some fields need another look.", again)
        return values
    text = form.text("response" if action == "respond" else "news")
    if not text.strip():
        raise Incomplete("Write what the agent is told.")
    try:
        return forms.said(text)
    except ValueError as error:
        raise Incomplete(str(error)) from None


def _grant(form: Posted, call: PendingCall) -> JsonObject | None:
    given: JsonObject = {}
    for limit in call.args.get("limits") or ():
        if amount := form.one(f"limit.{limit}").strip():
            try:
                given[limit] = json.loads(amount)
            except ValueError:
                raise Incomplete(f"{shown.line(str(limit))}: write a number, such as 5000.") from None
    return given or None


def _response_fields(call: PendingCall) -> list[Field]:
    return forms.of_schema(call.response_schema) or [] if call.response_schema else []


def _needs_comment(call: PendingCall) -> bool:
    return call.policy is not None and call.policy.comment


def _object(text: str) -> JsonObject | None:
    try:
        return forms.object_of(text)
    except ValueError:
        return None


def _once(login: Login, looked: Looked) -> dict[str, str]:
    """Return what makes a form this login's own, about this very call, and good for one time."""
    return {"csrf": login.csrf, "nonce": login.offer(looked.id), "digest": looked.pending.digest}


def _web_address(uri: str | None) -> str | None:
    return uri if uri is not None and uri.startswith(("https://", "http://")) else None
