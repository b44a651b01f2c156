"""Pages that fork an invocation at one of its events, and that compare two invocations side by side."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from urllib.parse import quote, urlencode

import structlog
from starlette.requests import Request
from starlette.responses import Response

from waystation.approvers import sees_everything, sees_invocation
from waystation.client import AgentClient
from waystation.core.contract import Event, text_of
from waystation.core.errors import ForeignHistory, InvalidInput
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.presentation import terminal, text_safety
from waystation.replay import Recording, difference
from waystation.web.forms import Form, parse_object, read_form
from waystation.web.forms import InvalidForm as InvalidField
from waystation.web.http_responses import RequestRefused, redirect, render_page
from waystation.web.invocation_pages import InvocationPages, describe, parse_number
from waystation.web.logins import Login
from waystation.web.session_pages import wait_until_started
from waystation.web.starter import Starter

log = structlog.get_logger("waystation.web")

MAX_EVENTS = 500
"""Maximum number of pairs of events to compare. The first ones are shown."""
LISTED = 200
"""Maximum number of events that the form for a fork lists: those around the chosen event."""
MAX_INSTRUCTION_CHARS = 100_000


@dataclass(frozen=True, slots=True)
class Row:
    """Two corresponding events, as lines. A side is None if its invocation has no corresponding event."""

    left: tuple[int, list[terminal.Line]] | None
    right: tuple[int, list[terminal.Line]] | None
    same: bool


class ForkPages:
    """The pages that fork and compare invocations."""

    def __init__(self, client: AgentClient, invocations: InvocationPages, starter: Starter) -> None:
        self._client, self._invocations, self._starter = client, invocations, starter

    async def form(self, request: Request) -> Response:
        """Serve a form for a fork of the invocation at the event `?event=`, by default the last one."""
        number = request.query_params.get("event")
        return await self._form(request, event=parse_number(number, "event") if number else 0)

    async def _form(
        self,
        request: Request,
        *,
        event: int,
        form: Form | None = None,
        problem: str = "",
        code: HTTPStatus = HTTPStatus.OK,
    ) -> Response:
        invocation, _ = await self._invocations.find(request)
        log = await _read_log(invocation.log)
        form, numbers = form or Form(), [number for number, _ in _number(log)]
        chosen = event or log.state.event_count
        if chosen not in numbers:
            missing = f"{invocation.id!r} has no event {event}. " if event else ""
            listed = f"Choose one of the events {numbers[0]} to {numbers[-1]}." if numbers else "It has no events yet."
            raise RequestRefused(HTTPStatus.NOT_FOUND, "NoSuchEvent", missing + listed)
        first = max(0, min(numbers.index(chosen) - LISTED // 2, len(numbers) - LISTED))
        listed_events = list(_number(log))[first : first + LISTED]
        return render_page(
            "fork.html",
            code=code,
            login=request.state.login,
            id=invocation.id,
            events=[(number, list(terminal.format_event(each))) for number, each in listed_events],
            chosen=chosen,
            first=numbers[0],
            last=numbers[-1],
            message=form.get("message", _message_of(log)),
            typed=form,
            agents=list(dict.fromkeys(run.agent for run in log.state.runs.by_index.values())),
            problem=problem,
        )

    async def fork(self, request: Request) -> Response:
        """Start a fork with the changes in the form, and show it next to its source."""
        form, login = await read_form(request), request.state.login
        number = parse_number(form.get("event"), "event")
        source, _ = await self._invocations.find(request)
        fail = partial(self._form, request, event=number, form=form)
        try:
            changes = _parse_changes(form, _message_of(await _read_log(source.log)))
            fork = await self._starter.fork(login, source.id, number or None, **changes)
        except (InvalidField, InvalidInput) as error:
            return await fail(problem=str(error), code=HTTPStatus.UNPROCESSABLE_ENTITY)
        await wait_until_started(fork)
        path = f"/invocations/{quote(source.id, safe='')}/compare?{urlencode({'with': fork.id})}"
        return redirect(path)

    async def compare(self, request: Request) -> Response:
        """Serve the events of two invocations side by side, or the invocations to compare with."""
        login, other = request.state.login, request.query_params.get("with", "").strip()
        left, _ = await self._invocations.find(request)
        values: JsonObject = {"login": login, "id": left.id, "other": other}
        if not other:
            forks = [fork.id for fork in await self._client.forks.of(left.id)]
            return render_page("compare_runs.html", **values, forks=forks, rows=None)
        sides = await Recording.of(left), await self._read(login, other)
        result = difference(*sides)
        changes = [
            *((key, None, text_safety.format_value(value)) for key, value in result.state.added.items()),
            *(
                (key, text_safety.format_value(before), text_safety.format_value(after))
                for key, (before, after) in result.state.changed.items()
            ),
            *((key, text_safety.format_value(value), None) for key, value in result.state.removed.items()),
        ]
        return render_page(
            "compare_runs.html",
            **values,
            forks=[],
            rows=[
                Row(_side(sides[0], pair.left), _side(sides[1], pair.right), pair.same)
                for pair in result.pairs[:MAX_EVENTS]
            ],
            left_out=max(0, len(result.pairs) - MAX_EVENTS),
            differs=bool(result),
            changes=changes,
            is_open=not all(side.log.state.outcome.ended for side in sides),
        )

    async def _read(self, login: Login, id: str) -> Recording:
        """Return the recording of an invocation that a person may see.

        Raises:
            Refused: No such invocation exists, or the person may not see it. The two cases look the same.
        """
        unknown = RequestRefused(HTTPStatus.NOT_FOUND, "UnknownInvocation", f"No invocation has the ID {id!r}.")
        if await describe(self._client, id) is None:
            raise unknown
        recording = await Recording.of(self._client.invocation(id))
        started = recording.log.state.input
        is_visible = started is not None and sees_invocation(login, started.requesters, started.tenant)
        if not (is_visible or sees_everything(login)):
            raise unknown
        return recording


async def _read_log(read: Callable[[], Awaitable[Log]]) -> Log:
    try:
        return await read()
    except ForeignHistory as error:
        raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownInvocation", str(error)) from None


def _number(log: Log) -> Iterator[tuple[int, Event]]:
    yield from enumerate(log.state.events, log.state.events_before + 1)


def _message_of(log: Log) -> str:
    message = log.state.input.message if log.state.input else ""
    return message if isinstance(message, str) else text_of(message)


def _parse_changes(form: Form, message: str) -> JsonObject:
    """Return the arguments of `Forks.start` for what the form changes. `message` is the source's.

    Raises:
        InvalidField: The results are not an object of objects, or the instruction is too long.
    """
    changes: JsonObject = {name: form.get(name, "").strip() or None for name in ("agent", "instruction", "model")}
    if len(changes["instruction"] or "") > MAX_INSTRUCTION_CHARS:
        raise InvalidField(f"An instruction may have {MAX_INSTRUCTION_CHARS:,} characters.")
    if not (changes["instruction"] or changes["model"]):
        changes["agent"] = None  # the form always names one
    if (typed := form.get("message", "").strip()) and typed != message.strip():
        changes["message"] = typed
    if results := form.get("results", "").strip():
        changes["results"] = parse_object(results)
        if not all(isinstance(result, dict) for result in changes["results"].values()):
            raise InvalidField('Results: enter one object for each call, such as {"fc-1": {"status": "paid"}}.')
    return changes


def _side(recording: Recording, number: int | None) -> tuple[int, list[terminal.Line]] | None:
    event = recording.moment(number).event if number else None
    return (number, list(terminal.format_event(event))) if number and event else None
