"""Schedules that start invocations: list and read them."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from temporalio.client import (
    Client,
    ScheduleActionExecutionStartWorkflow,
    ScheduleDescription,
    ScheduleIntervalSpec,
    ScheduleListActionStartWorkflow,
    ScheduleSpec,
)
from temporalio.service import RPCError

from waystation.core import summary
from waystation.core.contract import WORKFLOW, InvocationInput
from waystation.core.errors import WaystationError
from waystation.history import is_not_found

MAX_LISTED = 500
AT_ONCE = 10


@dataclass(frozen=True, slots=True)
class ScheduledStart:
    """A schedule, and what it starts."""

    id: str
    input: InvocationInput
    cron: str | None
    every_s: float | None
    paused: bool
    note: str
    """Why the schedule was paused or continued, as the last person wrote."""
    next_times: tuple[datetime, ...]
    started: tuple[str, ...]
    """IDs of the latest invocations, newest last."""

    @property
    def message(self) -> str:
        """The beginning of the message."""
        return summary.message(self.input.message)


class Schedules:
    """The schedules of a namespace that start invocations."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal

    async def list(self) -> tuple[list[ScheduledStart], bool]:
        """Return the schedules by ID, at most `MAX_LISTED`, and whether these are all.

        Raises:
            RPCError: The server does not list schedules.
        """
        ids: list[str] = []
        async for listed in await self._temporal.list_schedules():
            action = listed.schedule.action if listed.schedule else None
            if isinstance(action, ScheduleListActionStartWorkflow) and action.workflow == WORKFLOW:
                ids.append(listed.id)
            if len(ids) > MAX_LISTED:
                break
        places = asyncio.Semaphore(AT_ONCE)

        async def read(id: str) -> ScheduledStart | None:
            async with places:
                return await self.read(id)

        found = await asyncio.gather(*(read(id) for id in sorted(ids[:MAX_LISTED])))
        return [each for each in found if each], len(ids) <= MAX_LISTED

    async def read(self, id: str) -> ScheduledStart | None:
        """Return a schedule, or None if it does not exist, or starts nothing that this client can read.

        Raises:
            RPCError: The server does not respond.
        """
        try:
            described = await self._temporal.get_schedule_handle(id).describe()
        except RPCError as error:
            if not is_not_found(error):
                raise
            return None
        if (started := await read_input(self._temporal, described)) is None:
            return None
        spec, state = described.schedule.spec, described.schedule.state
        actions = (each.action for each in described.info.recent_actions)
        return ScheduledStart(
            id=id,
            input=started,
            cron=next((calendar.comment for calendar in spec.calendars if calendar.comment), None),
            every_s=spec.intervals[0].every.total_seconds() if spec.intervals else None,
            paused=state.paused,
            note=state.note or "",
            next_times=tuple(described.info.next_action_times),
            started=tuple(
                each.workflow_id for each in actions if isinstance(each, ScheduleActionExecutionStartWorkflow)
            ),
        )


def make_times(cron: str | None, every_s: float | None, time_zone: str | None = None) -> ScheduleSpec:
    """Return the times of a schedule: those of a cron expression, or one in each interval."""
    if cron is None:
        return ScheduleSpec(intervals=[ScheduleIntervalSpec(timedelta(seconds=every_s or 0))])
    # The server keeps no cron expression, but its comment.
    text = cron if "#" in cron else f"{cron} # {cron}"
    return ScheduleSpec(cron_expressions=[text], time_zone_name=time_zone)


async def read_input(temporal: Client, description: ScheduleDescription) -> InvocationInput | None:
    """Return the input of the invocations that a schedule starts, or None if this client cannot read it."""
    action = description.raw_description.schedule.action.start_workflow
    if action.workflow_type.name != WORKFLOW:
        return None
    try:
        [value] = await temporal.data_converter.decode(action.input.payloads)
        return InvocationInput.model_validate(value)
    except (ValueError, RuntimeError, WaystationError):
        return None
