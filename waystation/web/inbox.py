"""The list of everything that waits for a person, and several answers at once."""

import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import anyio
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from waystation.client import AgentClient
from waystation.core.answer import Action, PendingCall
from waystation.presentation import terminal, text_safety
from waystation.web.answering import MAX_COMMENT, Answering, Outcome
from waystation.web.call_page import rows_of
from waystation.web.call_view import Looked, asked, decisions, hint, looked_up, size
from waystation.web.logins import Login
from waystation.web.posted import posted
from waystation.web.rendering import page
from waystation.web.streams import Refused

LISTED = 50
"""Calls on a page of the list; those of one invocation are never parted, so there may be a few more."""
MOST = 50
"""Calls that are answered with one click."""
AT_ONCE = 8
MAX_FILTER = 300
TWICE = (
    "This form was sent before, or is older than your login. Nothing was sent now; look at what became of the calls."
)


class Inbox:
    """The pages about many calls."""

    def __init__(self, client: AgentClient, answering: Answering) -> None:
        self._client, self._answering = client, answering

    async def show(self, request: Request) -> Response:
        """Answer with a page of what waits."""
        return await self._listed(request, "inbox.html")

    async def rows(self, request: Request) -> Response:
        """Answer with the list alone, for a page that is kept fresh."""
        return await self._listed(request, "inbox_rows.html")

    async def _listed(self, request: Request, template: str) -> Response:
        login: Login = request.state.login
        wanted = {name: request.query_params.get(name, "").strip()[:MAX_FILTER] for name in ("agent", "tool", "show")}
        place = request.query_params.get("page") or None
        given: dict[str, Any] = {name: wanted[name] or None for name in ("agent", "tool")}
        if wanted["show"] == "mine":
            given["person"] = login.names
        calls: list[PendingCall] = []
        following = place
        while True:
            try:
                found = await self._client.approvals.list(limit=LISTED, page=following, **given)
            except ValueError:
                text = "There is no such page of the list."
                raise Refused(HTTPStatus.BAD_REQUEST, "InvalidRequest", text) from None
            calls += [call for call in found.calls if _is_shown(call, wanted["show"], login)]
            following = found.next
            # A page with little on it says nothing of those after it.
            if following is None or len(calls) >= LISTED:
                break
        filters = {name: value for name, value in wanted.items() if value}
        return page(
            template,
            login=login,
            rows=[_row(call) for call in calls],
            wanted=wanted,
            filtered=bool(filters),
            first=place is None,
            here=urlencode({**filters, **({"page": place} if place else {})}),
            next=urlencode({**filters, "page": following}) if following else None,
            start=urlencode(filters),
        )

    async def several(self, request: Request) -> Response:
        """Answer with some calls whole, to be answered together."""
        ids = list(dict.fromkeys(request.query_params.getlist("call")))
        if not ids:
            return RedirectResponse("/approvals", HTTPStatus.SEE_OTHER)
        login: Login = request.state.login
        looked = await self._looked_up(ids)
        open_now = [each for each in looked if isinstance(each, Looked) and each.standing == "open"]
        return page(
            "several.html",
            login=login,
            calls=[_whole(each) for each in open_now],
            gone=len(ids) - len(open_now),
            nonce=login.offer("several"),
            comment_needed=any(each.pending.policy and each.pending.policy.comment for each in open_now),
            actions=[action for action in ("approve", "reject") if _all_take(open_now, action)],
            mute=not login.browser,
        )

    async def answer_several(self, request: Request) -> Response:
        """Take the form that answers several calls, and say of each what became of it."""
        login: Login = request.state.login
        form = await posted(request, login)
        pairs = [each.rpartition("|") for each in form.all("call")][: MOST + 1]
        _bound(len(pairs))
        action = next((each for each in _SEVERAL if each == form.one("action")), None)
        comment = form.text("comment").strip()
        if action is None or not pairs or len(comment) > MAX_COMMENT or not all(id for id, _, _ in pairs):
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidRequest", "Choose what is answered, and how.")
        nonce = form.one("nonce")
        sending = login.sending(nonce, "several")
        if sending is None or sending.taken:
            raise Refused(HTTPStatus.CONFLICT, "SentBefore", TWICE)
        sending.taken = True
        results: dict[str, Outcome] = {}
        free = anyio.CapacityLimiter(AT_ONCE)

        async def send(id: str, digest: str) -> None:
            async with free:
                try:
                    looked = await looked_up(self._client, id)
                except Refused as refused:
                    results[id] = Outcome(HTTPStatus.CONFLICT, refused.message)  # nothing was sent
                    return
                if looked.standing != "open":
                    results[id] = Outcome(HTTPStatus.CONFLICT, looked.decision)
                elif action not in decisions(looked.state):
                    results[id] = Outcome(HTTPStatus.UNPROCESSABLE_ENTITY, "The call does not take this answer.")
                elif looked.pending.policy and looked.pending.policy.comment and not comment:
                    results[id] = Outcome(HTTPStatus.UNPROCESSABLE_ENTITY, "This answer needs a comment.")
                else:
                    results[id] = await self._answering.send(
                        login, looked.id, action, digest=digest, answer_id=nonce, comment=comment
                    )

        try:
            async with anyio.create_task_group() as tasks:
                for id, _, digest in pairs:
                    tasks.start_soon(send, id, digest)
        finally:
            sending.done.set()
        lines = [
            {
                "id": id,
                "shown": text_safety.line(id),
                "counts": results[id].counts,
                "text": f"{terminal.DONE[action]}"
                if results[id].counts
                else text_safety.line(results[id].message, 500),
            }
            for id, _, _ in pairs
        ]
        return page(
            "results.html",
            login=login,
            lines=lines,
            counted=sum(outcome.counts for outcome in results.values()),
            open=sum(outcome.open for outcome in results.values()),
        )

    async def _looked_up(self, ids: Sequence[str]) -> list[Looked | Refused]:
        _bound(len(ids))
        found: dict[str, Looked | Refused] = {}
        free = anyio.CapacityLimiter(AT_ONCE)

        async def look(id: str) -> None:
            async with free:
                try:
                    found[id] = await looked_up(self._client, id)
                except Refused as refused:
                    found[id] = refused

        async with anyio.create_task_group() as tasks:
            for id in ids:
                tasks.start_soon(look, id)
        for refused in found.values():
            if isinstance(refused, Refused) and refused.status is HTTPStatus.SERVICE_UNAVAILABLE:
                raise refused
        return [found[id] for id in ids]


_SEVERAL: tuple[Action, ...] = ("approve", "reject")


def _bound(count: int) -> None:
    if count > MOST:
        text = f"At most {MOST} calls are answered together; tick fewer."
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "TooMany", text)


def _is_shown(call: PendingCall, which: str, login: Login) -> bool:
    match which:
        case "claimed":
            return call.claimed_by in login.names
        case "free":
            return call.claimed_by is None
        case _:
            return True


def _all_take(looked: Sequence[Looked], action: str) -> bool:
    return bool(looked) and all(action in decisions(each.state) for each in looked)


def _row(call: PendingCall) -> dict[str, Any]:
    now = time.time()
    policy = call.policy
    left = call.deadline - now
    return {
        "id": call.approval_id,
        "tool": text_safety.line(call.tool),
        "line": _line(call),
        "agent": text_safety.line(call.agent),
        "age": text_safety.duration(now - call.requested_at),
        "until": terminal.until(call.deadline, now),
        "soon": left < 3_600,
        "who": ", ".join(text_safety.line(each, 60) for each in policy.asked(call.level)) if policy else "",
        "approved": f"{len(call.approved_by)} of {policy.quorum}" if policy and policy.quorum > 1 else "",
        "claimed": text_safety.line(call.claimed_by) if call.claimed_by else "",
    }


def _line(call: PendingCall) -> str:
    # A memo has only small arguments; the page of the call reads the history.
    if set(call.args) == {"omitted_bytes"}:
        return text_safety.line(f"{call.tool}(…), {call.args['omitted_bytes']:,} bytes of arguments")
    return text_safety.call(call.tool, call.args)


def _whole(looked: Looked) -> dict[str, Any]:
    call = looked.pending
    return {
        "id": call.approval_id,
        "value": f"{call.approval_id}|{call.digest}",
        "tool": text_safety.text(call.tool),
        "agent": text_safety.text(call.agent),
        "rows": rows_of(call.args),
        "size": size(call.args),
        "digest": call.digest,
        "hint": text_safety.text(hint(call)),
        "asked": asked(call),
        "requester": text_safety.line(call.requester or call.user_id),
        "until": terminal.until(call.deadline, time.time()),
    }
