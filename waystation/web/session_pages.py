"""Pages for sessions: the list, and the conversation of one session with a form to continue it.

The pages are complete without JavaScript. The script of an open conversation fetches the turns that have changed, and
follows the event streams of open invocations for a model's partial text.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import structlog
from starlette.requests import Request
from starlette.responses import Response
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError

from waystation.approvers import is_requester, sees_invocation
from waystation.client import AgentClient, Invocation, Sent, Session, SessionEntry, parse_session_id, read_session_entry
from waystation.core import ids
from waystation.core.contract import DEFAULT_USER, SESSION_WORKFLOW
from waystation.core.errors import (
    ForeignHistory,
    InputValidationError,
    InvalidInput,
    MessageUnconfirmed,
    SessionRefused,
    StoreFailed,
    WaystationError,
)
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.history import describe_workflow
from waystation.presentation import text_safety
from waystation.web.approval_pages import ApprovalPages
from waystation.web.forms import Form, read_form
from waystation.web.http_responses import RequestRefused, find_status, redirect, render_page
from waystation.web.invocation_pages import get_id, parse_number
from waystation.web.json_api import ANY_AGENT
from waystation.web.list_query import MAX_FILTER_CHARS
from waystation.web.logins import Login
from waystation.web.shared_reads import SharedReads
from waystation.web.starter import Starter, tenant_of
from waystation.web.turn_views import TurnView, make_title, make_turn, sum_tokens

if TYPE_CHECKING:
    from waystation.artifacts import BaseArtifactService

log = structlog.get_logger("waystation.web")

LISTED = 30
"""Maximum number of sessions on a page of the list."""
SCANNED = 2_000
"""Maximum number of sessions, latest first, that the list reads to find those that match."""
SHOWN_TURNS = 30
"""Maximum number of turns on the page of a session, which shows the latest turns."""
SHOWN_ARTIFACTS = 100
CONFIRM_WITHIN = timedelta(seconds=5)
"""How long to wait until a worker confirms a message. After that, the page says that none did."""
START_LIMIT_S = 3.0
"""How long to wait until a worker has begun an invocation."""
QUERY_LIMIT_S = 1.0
"""How long to wait for a worker to list the queued messages."""
UNCONFIRMED = (
    "No worker has confirmed the message yet. If the server received it, the agent replies as soon as a worker runs. "
    "If you send it again from this page, it still counts only once."
)


@dataclass(frozen=True, slots=True)
class Place:
    """A session that the path of a request names."""

    session: Session
    described: WorkflowExecutionDescription
    entry: SessionEntry

    @property
    def path(self) -> str:
        """The URL path of the session's page."""
        return format_session_path(self.session.id)

    @property
    def refuses(self) -> str:
        """Why the session accepts no messages, or an empty string if it does."""
        if self.described.status is not WorkflowExecutionStatus.RUNNING:
            return "This session has ended. Start a new chat to talk to the agent."
        return "This session is closed and accepts no more messages." if self.entry.status == "closed" else ""


def format_session_path(id: str) -> str:
    """Return the URL path of a session's page, given its workflow ID."""
    return f"/sessions/{quote(id, safe='')}"


class SessionPages:
    """The list of sessions, and the page of one session."""

    def __init__(
        self,
        client: AgentClient,
        approvals: ApprovalPages,
        starter: Starter,
        artifacts: "str | Path | BaseArtifactService",
        reads: SharedReads,
    ) -> None:
        self._client, self._approvals, self._starter, self._artifacts = client, approvals, starter, artifacts
        self._reads = reads

    async def check_visible(self, request: Request) -> None:
        """Check that a login may see the session in the path: as a viewer, or because it is the person's own session.

        Raises:
            Refused: No such session exists, or the login may not see it. The two cases look the same.
        """
        request.state.place = await self.find(request.state.login, get_id(request))

    async def find(self, login: Login, id: str) -> Place:
        """Return a session that a login may see, given its workflow ID.

        Raises:
            Refused: No such session exists, or the login may not see it. The two cases look the same.
        """
        unknown = RequestRefused(HTTPStatus.NOT_FOUND, "UnknownSession", f"No session has the ID {id!r}.")
        if (names := parse_session_id(id)) is None:
            raise unknown
        (app, tenant), user = ids.parse_app_key(names[0]), names[1]
        if not sees_invocation(login, (user,), tenant):
            raise unknown
        described = await describe_workflow(self._client.temporal, id)
        if described is None or described.workflow_type != SESSION_WORKFLOW:
            raise unknown
        session = self._client.session(agent=ANY_AGENT, session_id=names[2], user_id=user, app=app, tenant=tenant)
        return Place(session, described, await read_session_entry(described, names))

    async def check_own(self, request: Request) -> None:
        """Check that a login may send messages to the session in the path.

        Raises:
            Refused: The session does not exist, or belongs to another person.
        """
        await self.check_visible(request)
        if problem := _why_not(request.state.login, request.state.place):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "NotAllowed", problem)

    async def index(self, request: Request) -> Response:
        """Serve a page of the sessions that the login may see, latest first."""
        params, login = request.query_params, request.state.login
        search, start = params.get("q", "").strip()[:MAX_FILTER_CHARS], parse_number(params.get("start"), "start")
        rows, has_more, is_cut = await self.list(login, search, start)
        more = urlencode({**({"q": search} if search else {}), "start": start + LISTED}) if has_more else None
        return render_page(
            "sessions.html", login=login, rows=rows, search=search, start=start, next=more, is_cut=is_cut
        )

    async def list(self, login: Login, search: str, start: int) -> tuple[Sequence[JsonObject], bool, bool]:
        """Return the sessions that a login may see, whether there are more, and whether not all were searched."""
        words = search.lower().split()
        found: Sequence[SessionEntry] = []
        skipped, read = 0, 0
        async for entry in self._client.sessions.list(tenant=(tenant_of(login))):
            read += 1
            if _is_listed(login, entry) and _matches(entry, words):
                skipped += 1
                if skipped > start:
                    found = [*found, entry]
            if len(found) > LISTED or read >= SCANNED:
                break
        return await self._read_rows(found[:LISTED]), len(found) > LISTED, read >= SCANNED

    async def _read_rows(self, entries: Sequence[SessionEntry]) -> Sequence[JsonObject]:
        ids = tuple(entry.id for entry in entries)
        activities = await self._reads.read(("activities", ids), lambda: self._client.sessions.find_activities(ids))
        return [
            {
                "entry": entry,
                "path": format_session_path(entry.id),
                "turns": activities[entry.id].turns,
                "last": (activities[entry.id].last_at or entry.started_at).timestamp(),
            }
            for entry in entries
        ]

    async def page(self, request: Request) -> Response:
        """Serve the conversation of a session."""
        return await self._page(request)

    async def _page(
        self, request: Request, *, problem: str = "", notice: str = "", form: Form | None = None, **options: Any
    ) -> Response:
        place, login = request.state.place, request.state.login
        turns, panels = await asyncio.gather(self._read_turns(request, place), self._read_panels(place))
        form = form or Form()
        return render_page(
            "session.html",
            login=login,
            place=place,
            turns=turns,
            queued=await self._find_queued(place, turns),
            title=make_title(turns[0].log if turns and turns[0].number == 1 else None),
            tokens=sum_tokens([turn.log for turn in turns]),
            panels=False,  # they are elsewhere on the page
            **panels,
            refuses=place.refuses,
            why_not=_why_not(login, place),
            is_operator="operator" in login.roles,
            problem=problem,
            notice=notice,
            typed=form.get("message", ""),
            message_id=form.get("message_id") or secrets.token_urlsafe(12),
            **options,
        )

    async def _read_panels(self, place: Place) -> JsonObject:
        """Return the state and the artifacts of a session, as the page shows them."""
        state, artifacts = await asyncio.gather(place.session.state(), self.list_artifacts(place))
        head, tail = text_safety.JSON_HEAD, text_safety.JSON_TAIL
        return {
            "state": text_safety.format_value(state, head=head, tail=tail) if state else None,
            "artifacts": artifacts,
        }

    async def _read_turns(self, request: Request, place: Place) -> Sequence[TurnView]:
        """Return the latest turns, each with the pending calls that the person may see."""
        try:
            logs = await place.session.logs(last=SHOWN_TURNS)
        except ForeignHistory as error:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownSession", str(error)) from None
        turns = list(map(make_turn, logs))
        waiting = [f"{turn.id}/{call.function_call_id}" for turn in turns for call in _pending(turn.log)]
        if any(turn.is_open for turn in turns):
            # Called agents have calls of their own, which only visibility lists.
            pending = await self._reads.read(("pending of", place.session.id), place.session.pending)
            waiting += [call.approval_id for call in pending]
        for id in dict.fromkeys(waiting):
            turn = next((turn for turn in turns if id.startswith(f"{turn.id}/")), None)
            card = await self._approvals.make_card(request.state.login, id) if turn else None
            if turn and card:
                turn.cards.append(card)
        return turns

    async def _find_queued(self, place: Place, turns: Sequence[TurnView]) -> Sequence[str]:
        """Return the beginnings of the messages that are queued, or nothing if no worker lists them."""
        if not any(turn.status == "running" for turn in turns):  # a message is queued only behind a running turn
            return []
        try:
            async with asyncio.timeout(QUERY_LIMIT_S):
                invocations = await place.session.invocations()
        except (RPCError, TimeoutError):
            return []
        return [str(each.get("message") or "…") for each in invocations if each.get("status") == "queued"]

    async def turns(self, request: Request) -> Response:
        """Serve the turns that differ from those that the page already shows, whose keys are in `?known=`."""
        place, known = request.state.place, set(request.query_params.get("known", "").split(","))
        turns = await self._read_turns(request, place)
        queued = await self._find_queued(place, turns)
        changed = [turn for turn in turns if turn.key not in known]
        panels = await self._read_panels(place) if changed else {}
        return render_page(
            "turns.html",
            login=request.state.login,
            place=place,
            turns=changed,
            panels=bool(changed),
            tokens=sum_tokens([turn.log for turn in turns]),
            **panels,
            queued=queued,
            is_operator="operator" in request.state.login.roles,
        )

    async def send(self, request: Request) -> Response:
        """Send a message to the session, and show the conversation."""
        form, place, login = await read_form(request), request.state.place, request.state.login
        fail = partial(self._page, request, form=form)
        if not (message := form.get("message", "").strip()):
            return await fail(problem="Enter a message.", code=HTTPStatus.UNPROCESSABLE_ENTITY)
        try:
            sent = await self._starter.send(
                login,
                place.session,
                message,
                message_id=form.get("message_id") or None,
                streaming=True,
                create=False,
                confirm_within=CONFIRM_WITHIN,
            )
        except MessageUnconfirmed:
            return await fail(notice=UNCONFIRMED, code=HTTPStatus.ACCEPTED)
        except (SessionRefused, InvalidInput) as error:
            return await fail(problem=str(error), code=find_status(error))
        await wait_until_started(sent)
        return redirect(f"{place.path}#end")

    async def close(self, request: Request) -> Response:
        """Close the session: it accepts no more messages."""
        await read_form(request)
        if not await self.end(request):
            text = "No worker has confirmed that the session is closed yet. It may still be closed later."
            return await self._page(request, notice=text, code=HTTPStatus.ACCEPTED)
        return redirect(request.state.place.path)

    async def end(self, request: Request) -> bool:
        """Close the session in the path, and return whether a worker has confirmed it."""
        place: Place = request.state.place
        try:
            await place.session.close(confirm_within=CONFIRM_WITHIN)
        except MessageUnconfirmed:
            return False
        log.info("session.closed", session_id=place.session.id, by=request.state.login.subject)
        return True

    def open_artifacts(self) -> Any:
        """Return the service with the artifacts."""
        if isinstance(self._artifacts, str | Path):
            from waystation.artifacts import ObjectStoreArtifactService  # slow to import: it loads object stores

            self._artifacts = ObjectStoreArtifactService(self._artifacts)
        return self._artifacts

    async def list_artifacts(self, place: Place) -> JsonObject:
        """Return the session's artifacts, and a problem if the store is unavailable."""
        names = place.session.given.artifact_scope
        try:
            service = self.open_artifacts()
            found = await service.list_artifact_keys(**names)
            latest = await asyncio.gather(
                *(service.get_artifact_version(**names, filename=name) for name in found[:SHOWN_ARTIFACTS])
            )
        except (StoreFailed, InputValidationError) as error:
            return {"rows": [], "left_out": 0, "problem": str(error)}
        rows = [(name, version) for name, version in zip(found, latest, strict=False) if version is not None]
        return {"rows": rows, "left_out": max(0, len(found) - SHOWN_ARTIFACTS), "problem": ""}

    async def artifact(self, request: Request) -> Response:
        """Serve the content of an artifact as a download, never as something that the browser opens."""
        params = request.query_params
        if not (name := params.get("name", "")):
            raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidRequest", "Name an artifact: ?name=NAME.")
        version = parse_number(params.get("version"), "version") if params.get("version") else None
        return await self.download(request.state.place, name, version)

    async def download(self, place: Place, name: str, version: int | None) -> Response:
        """Return the content of an artifact of a session, by default its latest version.

        Raises:
            Refused: There is no such artifact, or its name is not valid.
        """
        try:
            scope = place.session.given.artifact_scope
            part = await self.open_artifacts().load_artifact(**scope, filename=name, version=version)
        except InputValidationError as error:
            raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidInput", str(error)) from None
        content = _content_of(part)
        if content is None:
            text = f"The session has no artifact {text_safety.format_line(name)!r} with content in this server's store."
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownArtifact", text)
        file = text_safety.format_line(name.rpartition("/")[2]) or "artifact"
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(file, safe='')}"}
        # The recorded media type comes from a model or a tool, so do not repeat it.
        return Response(content, media_type="application/octet-stream", headers=headers)


async def wait_until_started(invocation: Invocation) -> None:
    """Wait a moment until a new invocation has events, so that the page that follows shows it."""
    if isinstance(invocation, Sent) and invocation.status != "started":  # it waits for another one
        return
    with suppress(TimeoutError, WaystationError):
        async with asyncio.timeout(START_LIMIT_S):
            async for latest in invocation.follow():
                if latest.state.events:
                    return


def _pending(log: Log) -> list[Any]:
    return [] if log.state.outcome.ended else log.state.pending()


def _content_of(part: Any) -> bytes | None:
    if part is None:
        return None
    if part.inline_data is not None:
        return part.inline_data.data or b""
    return None if part.text is None else part.text.encode("utf-8", "surrogatepass")


def _why_not(login: Login, place: Place) -> str:
    """Return why a person may not send messages to a session, or an empty string if they may.

    Without a provider, everybody may also continue the sessions of the default user, which belong to nobody.
    """
    names = place.session.given
    is_own = names.tenant == tenant_of(login) and is_requester(login, (names.user_id,))
    if not is_own and (login.verified or names.user_id not in (login.subject, DEFAULT_USER)):
        return f"Only {text_safety.format_line(names.user_id)} can send messages to this session."
    return "" if "author" in login.roles else "To send messages, you need the role 'author'."


def _is_listed(login: Login, entry: SessionEntry) -> bool:
    return sees_invocation(login, (entry.user_id,), entry.tenant)


def _matches(entry: SessionEntry, words: list[str]) -> bool:
    text = " ".join((entry.session_id, entry.user_id, entry.agent, entry.status, entry.app)).lower()
    return all(word in text for word in words)
