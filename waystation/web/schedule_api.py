"""The JSON API for schedules: create, list, read, pause, continue, trigger and delete them."""

import uuid
from datetime import datetime
from http import HTTPStatus
from typing import Annotated

import structlog
from pydantic import ConfigDict, Field, model_validator
from starlette.requests import Request
from temporalio.client import ScheduleAlreadyRunningError, ScheduleHandle
from temporalio.service import RPCError, RPCStatusCode

from waystation.approvers import check_role, sees_invocation
from waystation.client import AgentClient, ScheduledStart, make_times
from waystation.core.errors import InvalidInput, NotAllowed
from waystation.web.http_responses import RequestRefused
from waystation.web.invocation_pages import get_id
from waystation.web.logins import Login
from waystation.web.starter import StartBody, Starter, identify_starter, make_own_id, tenant_of
from waystation.web.typed_routes import Body, ReplyBody, set_status

log = structlog.get_logger("waystation.web")


class ScheduleBody(StartBody):
    """A message that starts an invocation at regular times. Set `cron` or `every_s`."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": [one], "properties": {one: {"type": kind}, other: {"type": "null"}}}
                for one, kind, other in (("cron", "string", "every_s"), ("every_s", "number", "cron"))
            ]
        }
    )

    cron: str | None = Field(default=None, min_length=1, max_length=200)
    """A cron expression such as `0 9 * * 1-5`."""
    time_zone: str | None = Field(default=None, min_length=1, max_length=100)
    """The time zone of the cron expression, such as `Europe/Berlin`. Without it, times are in UTC."""
    every_s: float | None = Field(default=None, ge=1, le=366 * 86_400.0)
    priority: int | None = Field(default=None, ge=1, le=5)
    """Waiting tasks with a lower number run first. Without it, the number is 3."""

    @model_validator(mode="after")
    def _check_times(self) -> "ScheduleBody":
        if (self.cron is None) == (self.every_s is None):
            raise ValueError("set one of `cron` and `every_s`")
        return self


class NoteBody(Body):
    """Why the schedule changes."""

    note: Annotated[str, Field(max_length=1_000)] = ""


class ScheduleItem(ReplyBody):
    """A schedule."""

    id: str
    agent: str
    app: str
    user_id: str
    requester: str | None
    tenant: str | None
    signed: bool
    """Whether workers verify the requester. If not, policies that exclude requesters let nobody approve."""
    message: str
    """The beginning of the message."""
    cron: str | None
    every_s: float | None
    paused: bool
    note: str
    """Why the schedule was paused or continued."""
    next_times: tuple[datetime, ...]
    started: tuple[str, ...]
    """The IDs of the latest invocations, newest last."""


class ScheduleList(ReplyBody):
    """The schedules that the caller may see."""

    schedules: tuple[ScheduleItem, ...]
    complete: bool
    """False if the namespace has more schedules than were read."""


class CreatedSchedule(ReplyBody):
    """A schedule that was created."""

    schedule_id: str
    existed: bool
    """Whether an earlier request with the same key has created it."""


class ChangedSchedule(ReplyBody):
    """A schedule that was changed."""

    schedule_id: str


class ScheduleApi:
    """The routes for schedules."""

    def __init__(self, client: AgentClient, starter: Starter) -> None:
        self._client, self._starter = client, starter

    async def check_visible(self, request: Request) -> None:
        """Check that the person may see the schedule in the path.

        Raises:
            Refused: There is no such schedule, or the person may not see it.
        """
        found = await self._client.schedules.read(get_id(request))
        if found is None or not _is_visible(request.state.login, found):
            text = f"There is no schedule {get_id(request)!r} that you may see."
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownSchedule", text)
        request.state.schedule = found

    async def check_changeable(self, request: Request) -> None:
        """Check that the schedule is the person's own, or that the person is an operator.

        Raises:
            Refused: The person may not see the schedule.
            NotAllowed: The person may not change it.
        """
        await self.check_visible(request)
        check_role(request.state.login, "author" if self._is_own(request) else "operator")

    async def check_own(self, request: Request) -> None:
        """Check that the schedule is the person's own. No record would name others as requesters.

        Raises:
            Refused: The person may not see the schedule.
            NotAllowed: The person may not trigger it.
        """
        await self.check_visible(request)
        check_role(request.state.login, "author")
        if not self._is_own(request):
            raise NotAllowed("Only the requester of a schedule may trigger it. Start an invocation in your own name.")

    async def list_schedules(self, request: Request) -> ScheduleList:
        """List the schedules that the caller may see."""
        found, is_complete = await self._client.schedules.list()
        items = [_make_item(each) for each in found if _is_visible(request.state.login, each)]
        return ScheduleList(schedules=tuple(items), complete=is_complete)

    async def create_schedule(self, request: Request, body: ScheduleBody, key: str | None) -> CreatedSchedule:
        """Create a schedule that starts invocations in the name of the caller.

        The status is 200 if an earlier request with the same key has created it, or else 201.
        """
        options, existed = dict(body), False
        times = make_times(options.pop("cron"), options.pop("every_s"), options.pop("time_zone"))
        options["id"] = make_own_id(request.state.login, body.app, body.agent, key or uuid.uuid4().hex)
        given = {name: value for name, value in options.items() if value is not None}
        try:
            await self._starter.schedule(request.state.login, **given, spec=times)
        except ScheduleAlreadyRunningError:
            existed = True
            set_status(request, HTTPStatus.OK)
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            raise InvalidInput(f"The server refuses this schedule: {error.message}. Correct its times.") from None
        return CreatedSchedule(schedule_id=options["id"], existed=existed)

    async def read_schedule(self, request: Request) -> ScheduleItem:
        """Read a schedule."""
        return _make_item(request.state.schedule)

    async def pause_schedule(self, request: Request, body: NoteBody) -> ChangedSchedule:
        """Pause a schedule. Its running invocations continue."""
        await self._find(request, "paused").pause(note=body.note or None)
        return ChangedSchedule(schedule_id=get_id(request))

    async def unpause_schedule(self, request: Request, body: NoteBody) -> ChangedSchedule:
        """Continue a paused schedule."""
        await self._find(request, "continued").unpause(note=body.note or None)
        return ChangedSchedule(schedule_id=get_id(request))

    async def trigger_schedule(self, request: Request, body: Body) -> ChangedSchedule:
        """Start an invocation of the caller's own schedule now, unless the previous one is still running."""
        await self._find(request, "triggered").trigger()
        return ChangedSchedule(schedule_id=get_id(request))

    async def delete_schedule(self, request: Request, body: Body) -> ChangedSchedule:
        """Delete a schedule. Its running invocations continue."""
        await self._find(request, "deleted").delete()
        return ChangedSchedule(schedule_id=get_id(request))

    def _find(self, request: Request, change: str) -> ScheduleHandle:
        log.info(f"schedule.{change}", schedule_id=get_id(request), by=request.state.login.subject)
        return self._client.temporal.get_schedule_handle(get_id(request))

    def _is_own(self, request: Request) -> bool:
        schedule: ScheduledStart = request.state.schedule
        login = request.state.login
        return identify_starter(login) in schedule.input.requesters and tenant_of(login) == schedule.input.tenant


def _is_visible(login: Login, schedule: ScheduledStart) -> bool:
    return sees_invocation(login, schedule.input.requesters, schedule.input.tenant)


def _make_item(found: ScheduledStart) -> ScheduleItem:
    names = ("agent", "app", "user_id", "requester", "tenant")
    shown = ("id", "message", "cron", "every_s", "paused", "note", "next_times", "started")
    return ScheduleItem(
        **{name: getattr(found.input, name) for name in names},
        **{name: getattr(found, name) for name in shown},
        signed=found.input.schedule == found.id and found.input.token is not None,
    )
