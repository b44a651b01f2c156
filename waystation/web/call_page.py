"""The page of one call that waits, or has waited, for a person: what it is, and the forms that answer it."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from waystation.client import AgentClient
from waystation.core.answer import Action
from waystation.core.payload import JsonObject
from waystation.core.summary import SECRET_NAMES
from waystation.presentation import terminal, text_safety
from waystation.presentation.call_history import story
from waystation.web import forms
from waystation.web.answer_form import Incomplete, answer_in, needs_comment, object_in, response_fields
from waystation.web.answering import TWIN_LIMIT_S, Answering
from waystation.web.call_view import (
    Looked,
    around,
    asked,
    conversation,
    decisions,
    hint,
    looked_up,
    refused_to,
    size,
)
from waystation.web.forms import Field
from waystation.web.logins import Login
from waystation.web.posted import Posted, posted
from waystation.web.rendering import page
from waystation.web.streams import Refused

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
LATE = "Your answer was not sent: the call waits no more."


class CallPages:
    """The pages of calls."""

    def __init__(self, client: AgentClient, answering: Answering, *, temporal_ui: str | None = None) -> None:
        self._client, self._answering = client, answering
        self._ui = temporal_ui.rstrip("/") if temporal_ui else None

    async def show(self, request: Request) -> Response:
        """Answer with the page of a call. Nothing is changed by looking."""
        looked = await looked_up(self._client, named(request))
        return self._page(request, looked, notice=AFTERWARDS.get(request.query_params.get("done", ""), ""))

    async def viewed(self, request: Request) -> Response:
        """Note that somebody looked at a call, where a policy makes that matter; of one login once."""
        login: Login = request.state.login
        await posted(request, login)
        looked = await looked_up(self._client, named(request))
        matters = looked.pending.policy is not None and "view" in around(looked.state)
        may = looked.standing == "open" and matters and not self._why_not(looked, login, "view")
        if may and login.sees_first(looked.id):
            await self._answering.send(login, looked.id, "view")
        return Response(status_code=HTTPStatus.NO_CONTENT)

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
            late = LATE if request.method == "POST" and looked.standing != "open" else ""
            return self._page(request, looked, code=HTTPStatus.CONFLICT, problem=late)
        args = looked.pending.args
        edited = partial(self._edit_page, request, looked, comment=form.text("comment"))
        if "again" in form:
            return edited(forms.of_arguments(object_in(form.one("args")) or args))
        if request.method != "POST" or "begin" in form:
            return edited(forms.of_arguments(args))
        if forms.WHOLE in form:
            try:
                wanted, fields = forms.object_of(form.text(forms.WHOLE)), list[Field]()
            except ValueError as error:
                return edited(forms.of_arguments(args), form.text(forms.WHOLE), str(error))
        else:
            wanted, fields = forms.read(forms.of_arguments(args), form)
        if any(field.error for field in fields):
            return edited(fields, problem="Some fields need another look.")
        if _same(wanted, args):
            return edited(forms.of_arguments(args), problem="Nothing was changed.")
        return page(
            "compare.html",
            login=login,
            call=looked.pending,
            rows=_differences(args, wanted),
            args=json.dumps(wanted),
            once=_once(login, looked),
            comment_needed=needs_comment(looked.pending),
            comment=form.text("comment"),
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
            return self._page(request, looked, code=HTTPStatus.CONFLICT, problem=LATE)
        try:
            action, fields = answer_in(form, looked)
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
            return RedirectResponse(f"{_place(looked)}{done}", HTTPStatus.SEE_OTHER)
        problem = text_safety.line(outcome.message, 500)
        if outcome.status is HTTPStatus.SERVICE_UNAVAILABLE:  # nor could the call be shown
            raise Refused(outcome.status, "NoServer", problem)
        looked = await looked_up(self._client, looked.id)
        if action == "edit" and outcome.status is HTTPStatus.UNPROCESSABLE_ENTITY and looked.standing == "open":
            wanted = fields["args"]
            said = form.text("comment")
            return self._edit_page(
                request, looked, forms.of_arguments(wanted), forms.written(wanted), problem, comment=said
            )
        return self._page(request, looked, code=outcome.status, problem=problem, typed=form)

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
            actions=self._offered(looked, login) if open_now and not why_not else (),
            around=self._around(looked, login) if open_now and not login.only else (),
            sees=open_now and call.policy is not None and login.browser and not login.only,
            path=_place(looked),
            why_not=why_not if open_now else "",
            rows=rows_of(call.args),
            before=None if looked.state.shown is None else rows_of(looked.state.shown),
            whole=text_safety.value(call.args, head=text_safety.JSON_HEAD, tail=text_safety.JSON_TAIL),
            size=size(call.args),
            hint=text_safety.text(hint(call)),
            login_uri=_web_address(terminal.login_uri(call)),
            payload=None if call.payload is None or call.kind == "credential" else text_safety.value(call.payload),
            interim=None if call.interim is None else text_safety.value(call.interim),
            asked=asked(call),
            until=terminal.until(call.deadline, time.time()) if open_now else "",
            since=call.requested_at,
            said=conversation(looked.log),
            story=story(looked.log, looked.state),
            fields=fields if fields is not None else response_fields(call),
            limits=call.args.get("limits") or () if call.kind == "budget" else (),
            typed=typed,
            notice=notice if open_now else "",
            problem=problem,
            comment_needed=needs_comment(call),
            once=_once(login, looked) if open_now else None,
            temporal=self._temporal_address(looked),
        )

    def _offered(self, looked: Looked, login: Login) -> tuple[Action, ...]:
        who = self._answering.known_as(login)
        possible = decisions(looked.state)
        if (who.subject if who else login.person) in looked.pending.approved_by:  # of several who have to
            possible = tuple(each for each in possible if each not in ("approve", "edit"))
        # Arguments are edited on further pages, which a link does not open.
        return tuple(each for each in possible if each in ("approve", "reject", "respond")) if login.only else possible

    def _around(self, looked: Looked, login: Login) -> tuple[Action, ...]:
        return tuple(each for each in around(looked.state) if not self._why_not(looked, login, each))

    def _why_not(self, looked: Looked, login: Login, action: Action) -> str:
        if not login.browser:
            return (
                "This link shows the call. To answer it, log in." if login.only else "Log in with a browser to answer."
            )
        who = self._answering.known_as(login)
        if who is None and looked.pending.policy is not None and looked.pending.policy.must_verify:
            return UNVERIFIED
        return refused_to(looked, action, login.person, who)

    def _edit_page(
        self,
        request: Request,
        looked: Looked,
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
            call=looked.pending,
            fields=fields,
            whole=forms.written(looked.pending.args) if typed is None else typed,
            open_whole=typed is not None or not fields,
            problem=problem,
            comment=comment,
        )

    def _temporal_address(self, looked: Looked) -> str | None:
        if self._ui is None:
            return None
        namespace, id = (quote(name, safe="") for name in (self._client.temporal.namespace, looked.invocation.id))
        return f"{self._ui}/namespaces/{namespace}/workflows/{id}"


def named(request: Request) -> str:
    """Return the approval id that a path names."""
    return unquote(request.path_params["id"], errors="replace")


def rows_of(args: JsonObject) -> list[dict[str, Any]]:
    """Return the arguments as rows of a table."""
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


def _place(looked: Looked) -> str:
    return f"/approvals/{quote(looked.id, safe='')}"


def _same(one: JsonObject, other: JsonObject) -> bool:
    # Python takes 1 and 1.0 and True for equal; a tool may not.
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _once(login: Login, looked: Looked) -> dict[str, str]:
    """Return what makes a form this login's own, about this very call, and good for one time."""
    return {"csrf": login.csrf, "nonce": login.offer(looked.id), "digest": looked.pending.digest}


def _web_address(uri: str | None) -> str | None:
    return uri if uri is not None and uri.startswith(("https://", "http://")) else None
