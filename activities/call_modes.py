"""The modes in which activities run tool calls: as an ordinary activity, as that of a held call, or as a local one."""

from dataclasses import dataclass

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from waystation.activities.activity_attempt import Heartbeater, activity_failure
from waystation.core.contract import ToolCallInput, ToolOutcome
from waystation.core.log import CallState, HoldReason, responses
from waystation.core.payload import JsonObject
from waystation.core.projection import HELD_TOOL

events = structlog.get_logger("waystation.activities")

STARTS = "waystation_starts"
"""Field of the last heartbeat detail of a held call: how many attempts have started the tool."""
MAX_QUICK_BYTES = 32_000
"""Maximum size of the result of a local activity. A call with a larger result runs again as an ordinary activity."""
MAX_STARTS = 4
"""How many times the tool of a held call may start; with effect `once`, it may start only once. There is a limit
because the tool may crash the worker. The tool's `retries` are added."""


@dataclass(frozen=True, slots=True)
class CallMode:
    """The mode of an ordinary activity. The server retries it, unless the call has the effect `once`."""

    params: ToolCallInput
    heart: Heartbeater
    attempt: int
    """Number of the first attempt at the tool in this attempt of the activity."""
    is_single: bool
    """Whether the server makes no further attempt after this one."""
    retries_tool: bool
    """Whether a tool that raised runs again within this attempt of the activity."""
    waits: bool = True
    """Whether the attempt waits for a store or a toolset that does not respond."""
    reports_missing: bool = True
    """Whether the model receives an error if the agent's toolsets no longer list the tool. If not, the ordinary
    activity decides."""
    is_held: bool = False
    starts: int = 0
    """For a held call: how many attempts have started the tool."""

    def find_lost_start(self, call: CallState) -> ToolOutcome | None:
        """Return the outcome of a held call that lost its worker, or None if the tool may start."""
        if self.starts < (1 if self.params.effect == "once" else MAX_STARTS + self.params.retries):
            return None
        text = f"The worker running `{call.name}` was lost. {responses.unknown_effect(self.starts)}"
        return error_outcome(call, text, "OutcomeUnknown")

    async def note_start(self) -> None:
        """Record that the tool is about to start, if later attempts have to know."""

    def forget_start(self) -> None:
        """Record that this attempt does not count as a start."""

    def check_size(self, size: int) -> None:
        """Check that the activity can return a result of `size` bytes.

        Raises:
            ApplicationError: Another activity has to run the call.
        """

    def hold(self, reason: HoldReason, text: str) -> ApplicationError:
        """Return the error for a call whose tool only reads and waits for something outside."""
        return activity_failure("tool_call.held", "CallHeld", text, hold=reason, hold_after=1)

    def fail(self, hold: HoldReason, kind: str, text: str, *, has_begun: bool = False) -> ApplicationError:
        """Return the error for a call that this worker cannot run. `has_begun` is whether the tool ran in part.

        The call is held after its first attempt, because further attempts would count against the tool's retries.
        """
        info = activity.info()
        runs = info.attempt - 1 + has_begun
        if not runs or self.params.effect == "read":
            text = f"{text} The tool did not run."
        else:
            earlier = f"An earlier attempt may have run `{info.activity_type.partition('.')[2]}`."
            kind, text = "OutcomeUnknown", f"{earlier} {responses.unknown_effect(runs)} {text}"
        return activity_failure("tool_call.held", kind, text, hold=hold, hold_after=1)


class HeldMode(CallMode):
    """The mode of a held call. The server repeats the activity until a worker can run the call."""

    async def note_start(self) -> None:
        """See `CallMode`."""
        await self.heart.mark({STARTS: self.starts + 1})

    def forget_start(self) -> None:
        """See `CallMode`."""
        self.heart.replace_mark({STARTS: self.starts})

    def fail(self, hold: HoldReason, kind: str, text: str, *, has_begun: bool = False) -> ApplicationError:
        """See `CallMode`. The call is held already."""
        return activity_failure("tool_call.held", kind, text, hold=hold, hold_after=1, started=self.starts > 0)


class LocalMode(CallMode):
    """The mode of a quick call, as a local activity. It leaves what it cannot do at once to an ordinary activity."""

    def check_size(self, size: int) -> None:
        """See `CallMode`."""
        if size > MAX_QUICK_BYTES:
            text = f"The result is {size} bytes; a local activity returns at most {MAX_QUICK_BYTES}."
            raise self.fail("worker_stopped", "Declined", text)

    def fail(self, hold: HoldReason, kind: str, text: str, *, has_begun: bool = False) -> ApplicationError:
        """See `CallMode`. The ordinary activity decides whether the call is held."""
        events.info("tool_call.declined", invocation_id=activity.info().workflow_id, problem=text)
        benign = ApplicationErrorCategory.BENIGN
        return ApplicationError("Runs as an ordinary activity.", type="Declined", category=benign)


def choose_mode(params: ToolCallInput, heart: Heartbeater) -> CallMode:
    """Return the mode of the current activity."""
    info, once = activity.info(), params.effect == "once"
    if info.is_local:
        return LocalMode(params, heart, info.attempt, once, once, waits=False, reports_missing=False)
    if info.activity_type != HELD_TOOL.name:
        return CallMode(params, heart, info.attempt, once, once)
    heart.pause()  # until the start is noted, because a heartbeat would overwrite the number of starts
    details = info.heartbeat_details
    starts = int(details[-1][STARTS]) if details else 0
    about: JsonObject = {"is_single": False, "retries_tool": True, "waits": False, "is_held": True}
    return HeldMode(params, heart, attempt=1, starts=starts, **about)


def error_outcome(call: CallState, text: str, error_type: str) -> ToolOutcome:
    """Return the outcome of a call with an error that the model receives."""
    response: JsonObject = {"error": text}
    if error_type != "UnknownTool":  # ADK does not have an error type for this
        response["error_type"] = error_type
    return ToolOutcome(function_call_id=call.id, response=response, error_type=error_type)
