"""The list of everything that waits for a person, and several answers at once."""

import time
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import anyio
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from waystation.client import AgentClient
from waystation.core import Action, PendingCall
from waystation.presentation import terminal, text_safety
from waystation.web.call_page import MAX_COMMENT, CallView, problem_of, send_answers, view_call
from waystation.web.forms import read_form
from waystation.web.limits import Limits
from waystation.web.login import Gatekeeper, Login
from waystation.web.responses import Refused, page

AT_ONCE = 8
"""Calls that are read at the same time."""
MAX_FILTER = 300
SEVERAL = "several"
"""What the nonce of a form that answers several calls is for."""
UNKNOWN_OUTCOMES = (HTTPStatus.ACCEPTED, HTTPStatus.SERVICE_UNAVAILABLE)
"""Statuses of answers of which nobody knows yet whether they count."""
SEVERAL_ACTIONS: tuple[Action, ...] = ("approve", "reject")
TWICE = (
    "This form was sent before, or is older than your login. Nothing was sent now; look at what became of the calls."
)


class Inbox:
    """The pages about many calls."""

    def __init__(self, client: AgentClient, gatekeeper: Gatekeeper, limits: Limits) -> None:
        self._client, self._gatekeeper, self._limits = client, gatekeeper, limits

    def routes(self) -> list[Route]:
        """Return the pages."""
        return [
            Route("/approvals", partial(self._list, template="inbox.html")),
            Route("/approvals/rows", partial(self._list, template="inbox_rows.html")),
            Route("/approvals/several", self._several),
            Route("/approvals/several", self._answer_several, methods=["POST"]),
        ]

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
            rows=[_row(call) for call in calls],
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

        found = await self._view_all(ids)
        for refused in found:
            if isinstance(refused, Refused) and refused.status is HTTPStatus.SERVICE_UNAVAILABLE:
                raise refused
        login: Login = request.state.login
        views = [each for each in found if isinstance(each, CallView) and each.standing == "open"]
        return page(
            "several.html",
            login=login,
            calls=[_whole(view) for view in views],
            gone=len(ids) - len(views),
            nonce=login.offer(SEVERAL),
            comment_needed=any(view.needs_comment for view in views),
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
            raise Refused(HTTPStatus.CONFLICT, "SentBefore", TWICE)
        use.taken = True

        problems: dict[str, str] = {}
        sent: list[PendingCall] = []
        try:
            for (id, digest), view in zip(calls, await self._view_all([id for id, _ in calls]), strict=True):
                if isinstance(view, Refused):
                    problems[id] = view.message
                elif view.standing != "open":
                    problems[id] = view.decision
                elif action not in view.decisions:
                    problems[id] = "The call does not take this answer."
                elif view.needs_comment and not comment:
                    problems[id] = "This answer needs a comment."
                else:
                    sent.append(view.showing(digest))
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
        most = self._limits.calls_per_answer
        if len(calls) > most:
            text = f"At most {most} calls are answered together; tick fewer."
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "TooMany", text)


def _is_shown(call: PendingCall, which: str, login: Login) -> bool:
    match which:
        case "claimed":
            return call.claimed_by in login.names
        case "free":
            return call.claimed_by is None
        case _:
            return True


def _row(call: PendingCall) -> dict[str, Any]:
    now = time.time()
    policy = call.policy
    line = text_safety.call(call.tool, call.args)
    if set(call.args) == {"omitted_bytes"}:
        # A memo has only small arguments; the page of the call reads the history.
        line = text_safety.line(f"{call.tool}(…), {call.args['omitted_bytes']:,} bytes of arguments")
    return {
        "id": call.approval_id,
        "tool": text_safety.line(call.tool),
        "line": line,
        "agent": text_safety.line(call.agent),
        "age": text_safety.duration(now - call.requested_at),
        "until": terminal.until(call.deadline, now),
        "soon": call.deadline - now < 3_600,
        "who": ", ".join(text_safety.line(each, 60) for each in policy.asked(call.level)) if policy else "",
        "approved": f"{len(call.approved_by)} of {policy.quorum}" if policy and policy.quorum > 1 else "",
        "claimed": text_safety.line(call.claimed_by) if call.claimed_by else "",
    }


def _whole(view: CallView) -> dict[str, Any]:
    call = view.pending
    return {
        "view": view,
        "value": f"{call.approval_id}|{call.digest}",
        "tool": text_safety.text(call.tool),
        "agent": text_safety.text(call.agent),
        "requester": text_safety.line(call.requester or call.user_id),
        "until": terminal.until(call.deadline, time.time()),
    }
