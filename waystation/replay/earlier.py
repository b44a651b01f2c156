"""What earlier versions recorded otherwise than this one would, or a replay repeats otherwise: no difference.

Everything else that differs is one: a version that has to record something else needs a line here, and a reason.
"""

from collections.abc import Sequence
from typing import Any

from waystation.core.scope import DELIVERY_ACTIVITY
from waystation.core.wire import COLLECT_ACTIVITY, SESSION_ARCHIVE_ACTIVITY, WORKFLOW
from waystation.replay.commands import Command
from waystation.replay.leaves import ABSENT

_LEFT_OUT: tuple[Any, ...] = (None, "", False, 0, [], {})


def is_the_replayers(name: str) -> bool:
    """Whether a part may differ because a replay is given updates otherwise than the first run was.

    Results that were there before an update, and to which the code had nothing to do, come after it in a replay. Which
    entries a command says were applied before it is then another order or another command's; readers take either.
    """
    return name == "input.at" or name.startswith("input.new")


def names_this_run(name: str, recorded: Any, now: Any, own: Sequence[str]) -> bool:
    """Whether a part differs only because a replay knows a run by one id, where one that was reset had several.

    Args:
        name: The part, such as `input.session.run_id`.
        recorded: What it was then.
        now: What it is now.
        own: The ids that the run had.
    """
    return name.endswith(".run_id") and recorded in own and now in own


def is_no_difference(command: Command, name: str, recorded: Any, now: Any) -> bool:
    """Whether a part of a command differs only because an earlier version recorded it.

    Args:
        command: As it was recorded.
        name: The part, such as `input.args.amount`.
        recorded: What it was then, or `ABSENT`.
        now: What it is now, or `ABSENT`.
    """
    if recorded is ABSENT:
        # Recorded types only gain optional fields, and some are written with their defaults, some without.
        return now in _LEFT_OUT or _came_later(command, name)
    match command.kind, command.name, name:
        case "activity", _, "input.ended" if command.name == COLLECT_ACTIVITY:  # the activity finds out by itself
            return now is ABSENT
        case "activity", _, _ if command.name in _ONCE:
            return bool(_ONCE[command.name].get(name) == recorded)
        # How far a session is, as an update was told: a replay is given updates otherwise than the first run was.
        case "answer", _, "result.open" | "result.status":
            return now is not ABSENT
        case "fail", _, "details":  # what it used is told with a failure, too
            return bool(recorded == 0)
        case _:
            return False


_ONCE = {
    DELIVERY_ACTIVITY: {"heartbeat_timeout": 0.0},
    COLLECT_ACTIVITY: {"heartbeat_timeout": 0.0},
    SESSION_ARCHIVE_ACTIVITY: {"heartbeat_timeout": 0.0, "retry.maximum_attempts": 20, "retry.maximum_interval": 60.0},
}
"""Options of activities as they once were."""


def _came_later(command: Command, name: str) -> bool:
    if command.kind == "child" and command.name == WORKFLOW:
        # A called agent has a share of the budget, and is found by search attributes, from its start.
        return name == "input.budget" or name.startswith("search_attributes.Waystation")
    return command.kind == "complete" and name == "result.spent"
