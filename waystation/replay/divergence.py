"""The first divergence between what a history recorded and what the present workflow code does, in agent terms."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from temporalio.client import WorkflowHistory

from waystation.core import (
    ENGINE_ACTIVITIES,
    MEMO_PENDING,
    MODEL,
    WORKFLOW,
    AnswerCounted,
    AnswerIgnored,
    Began,
    Body,
    CallLost,
    CallReturned,
    CancelRequested,
    ChildReturned,
    DeadlinePassed,
    ForeignHistory,
    JsonObject,
    Log,
    MessageJoined,
    ModelLost,
    ModelReplied,
    StoreFailed,
    encode,
    ids,
    summary,
)
from waystation.history import log_of, run_ids_of, type_of
from waystation.replay.commands import UNKNOWN, Activation, Command, present_commands, recorded_tasks
from waystation.replay.comparison import ABSENT, json_differences

DIFFERENCES = 5
"""Of the parts in which two commands differ, how many are named."""
_CONSEQUENCES = {"memo": 1, "timer": 2, "accept": 2, "attributes": 3}
"""Commands that only follow from others, the least interesting last."""
_COMMANDS = {
    "timer": "wait {command.fields[seconds]:g} s at most",
    "child": "start {command.name} {command.id}",
    "signal": "send {command.name!r} to {command.id}",
    "cancel": "cancel {command.id}",
    "accept": "take an update",
    "cancelled": "end as cancelled",
    "continue": "continue as new",
}
_ENTRIES = {
    Began: "the start",
    ModelReplied: "model reply {body.number}",
    ModelLost: "model reply {body.number}",
    CallReturned: "the result of {body.outcome.function_call_id}",
    CallLost: "the result of {body.function_call_id}",
    ChildReturned: "the result of {body.function_call_id}",
    AnswerIgnored: "an answer that did not count",
    DeadlinePassed: "the deadline of {body.function_call_id}",
    MessageJoined: "a further message",
    CancelRequested: "the request to cancel",
}
_WAITS = {
    "confirmation": "approval of",
    "credential": "a login for",
    "long_running": "the answer to",
    "budget": "more budget:",
}


class Part(NamedTuple):
    """A field in which a command differs from the recorded one."""

    name: str
    """Such as `input.args.amount`."""
    recorded: Any
    now: Any

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        return {"name": self.name, "recorded": plain_of(self.recorded), "now": plain_of(self.now)}


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first thing that the present code does differently than it was recorded."""

    workflow_id: str
    run_id: str
    recorded: str
    """What was done then, such as `call pay(amount=200)`."""
    now: str
    """What the code does now, such as `wait for approval of pay(amount=200)`."""
    event: int | None
    """Number of the agent's event after which it happens; None for sessions and scopes, which have none."""
    after: str | None
    """What had happened last, such as `model reply 2`."""
    history_event: int
    """Id of the history event that records it, or else of the one after which it would be recorded."""
    line: str | None = None
    """The line of workflow code that does it, such as `workflows/perform.py:110 in call_tool`."""
    parts: Sequence[Part] = ()
    """The fields that differ, when both do the same with other particulars."""
    failure: str | None = None
    """Name of the error with which the workflow task fails now, when it does."""
    run: int = 1
    """Number of the run of the workflow."""
    runs: int = 1

    def __str__(self) -> str:
        """Return it as one line."""
        where = [f"after event {self.event}"] if self.event is not None else []
        where += [f"history event {self.history_event}"]
        after = f", after {self.after}" if self.after else ""
        line = f", in {self.line}" if self.line else ""
        run = f"Run {self.run} of {self.runs}: " if self.runs > 1 else ""
        return f"{run}recorded: {self.recorded}{after} ({', '.join(where)}); now: {self.now}{line}"

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        return {
            "workflow_id": self.workflow_id,
            "run_id": self.run_id,
            "run": self.run,
            "runs": self.runs,
            "recorded": self.recorded,
            "now": self.now,
            "event": self.event,
            "after": self.after,
            "history_event": self.history_event,
            "line": self.line,
            "failure": self.failure,
            "parts": [part.to_json() for part in self.parts],
        }


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A divergence in Temporal's terms. None as a command: no further command."""

    completed: int
    """Id of the event with which the workflow task was completed."""
    recorded: Command | None = None
    now: Command | None = None
    parts: Sequence[Part] = ()
    swapped: bool = False
    """Whether both make the same commands, in another order."""
    line: str | None = None
    failure: str | None = None
    """Why the workflow task fails now."""
    failure_type: str | None = None


def first_difference(history: WorkflowHistory, activations: Sequence[Activation], queue: str) -> Difference | None:
    """Compare a history, with payloads decoded, with what the code did when it was replayed.

    What the code did after the last recorded workflow task is no difference: nothing of it is recorded yet.

    Args:
        history: The history.
        activations: What the code did.
        queue: The replayer's own task queue.
    """
    started = history.events[0].workflow_execution_started_event_attributes
    own = run_ids_of(history.events)
    tasks = recorded_tasks(history.events)
    updated = False
    left = deque(activations)
    for start in sorted(tasks):
        completed, recorded = tasks[start]
        # Tasks without commands are replayed together with the one after them.
        done = []
        while left and left[0].started <= start:
            done.append(left.popleft())
        for activation in done:
            if activation.failure:
                failure, kind = activation.failure, activation.failure.application_failure_info.type
                return Difference(
                    completed=completed,
                    recorded=_most_telling(recorded),
                    line=activation.rests_in,
                    failure=failure.message.strip() or kind,
                    failure_type=kind,
                )
        if not done:
            if recorded and left:
                return Difference(completed=completed, recorded=_most_telling(recorded))
            continue
        updated = updated or any(command.kind == "accept" for command in recorded)
        present = present_commands(done, started, queue)
        for number, (one, other) in enumerate(zip_longest(recorded, present)):
            if one and other and _is_same(one, other):
                if parts := _parts(one, other, own, updated=updated):
                    return Difference(completed=completed, recorded=one, now=other, parts=parts, line=other.line)
                continue
            return _out_of_step(completed, recorded[number:], present[number:], done[-1].rests_in)
    return None


def _out_of_step(
    completed: int, recorded: Sequence[Command], present: Sequence[Command], rests_in: str | None
) -> Difference:
    """Compare the commands of a workflow task from the first on that is not the recorded one."""
    missing = [each for each in recorded if not any(_is_same(each, other) for other in present)]
    added = [each for each in present if not any(_is_same(each, other) for other in recorded)]
    swapped = bool(recorded and present and not missing and not added)
    one, other = (recorded[0], present[0]) if swapped else (_most_telling(missing), _most_telling(added))
    line = other.line if other else rests_in
    return Difference(completed=completed, recorded=one, now=other, swapped=swapped, line=line)


def _most_telling(commands: Sequence[Command]) -> Command | None:
    return min(commands, key=lambda each: _CONSEQUENCES.get(each.kind, 0), default=None)


def _is_same(one: Command, other: Command) -> bool:
    return (one.kind, one.name, one.id) == (other.kind, other.name, other.id)


def _parts(recorded: Command, now: Command, own: Sequence[str], *, updated: bool) -> list[Part]:
    """Return where two commands differ that do the same; `own`: the run's ids, `updated`: whether it had updates."""
    differences = json_differences(recorded.fields, now.fields)
    parts = (Part(each.place, each.recorded, each.now) for each in differences)
    return [part for part in parts if not _is_harmless(part, recorded, own, updated=updated)][:DIFFERENCES]


def _is_harmless(part: Part, command: Command, own: Sequence[str], *, updated: bool) -> bool:
    name, recorded, now = part
    if UNKNOWN in (recorded, now):
        return True
    # Recorded types gain optional fields, and some are written with their defaults, some without.
    if recorded is ABSENT and now in (None, "", False, 0, [], {}):
        return True
    # A replay knows a run by one id, where one that was reset had several.
    if name.endswith(".run_id") and recorded in own and now in own:
        return True
    # Results that were there before an update, and to which the code had nothing to do, come after it in a replay. So
    # which entries a command says were applied before it, and how far a session is, may be another command's.
    if updated and (name == "input.at" or name.startswith("input.new")):
        return True
    return command.kind == "answer" and name in ("result.open", "result.status") and now is not ABSENT


def describe_divergence(histories: Sequence[WorkflowHistory], run: int, difference: Difference) -> Divergence:
    """Return a difference in agent terms; `run` is the index of the history in which it is."""
    history = histories[run]
    log = _log_until(histories, run, difference.completed)
    entries = reversed(log.entries) if log else ()
    recorded, now = _describe_both(difference, log)
    started = history.events[0].workflow_execution_started_event_attributes
    return Divergence(
        workflow_id=history.workflow_id,
        run_id=started.original_execution_run_id,
        recorded=recorded,
        now=now,
        event=log.state.events_before + len(log.state.events) if log else None,
        after=next(filter(None, (_describe_entry(entry.body) for entry in entries)), None),
        history_event=difference.recorded.event_id if difference.recorded else difference.completed,
        line=difference.line,
        parts=difference.parts,
        failure=difference.failure_type,
        run=run + 1,
        runs=len(histories),
    )


def _log_until(histories: Sequence[WorkflowHistory], run: int, event_id: int) -> Log | None:
    """Return the log of an invocation right after a history event of one of its runs."""
    if type_of(histories[run]) != WORKFLOW or not event_id:  # 0: it differs before the workflow takes its first step
        return None
    cut = WorkflowHistory(histories[run].workflow_id, histories[run].events[:event_id])
    try:
        return log_of([*histories[:run], cut])
    except (ForeignHistory, StoreFailed):
        return None


def _describe_both(difference: Difference, log: Log | None) -> tuple[str, str]:
    one, other = describe_command(difference.recorded, log), describe_command(difference.now, log)
    if difference.failure:
        return one if difference.recorded else "something else", f"the workflow task fails: {difference.failure}"
    if difference.swapped:
        return f"{one}, before {other}", f"{other} first"
    if difference.parts and one == other:
        part = difference.parts[0]
        return f"{one}, with {part.name} {format_value(part.recorded)}", f"the same with {format_value(part.now)}"
    return one, other


def describe_command(command: Command | None, log: Log | None) -> str:
    """Return a command in agent terms; `log` is what had happened by then, when there is one."""
    if command is None:
        return "nothing"
    fields = command.fields
    params = fields.get("input")
    params = params if isinstance(params, dict) else {}
    match command.kind:
        case "activity":
            return _describe_activity(command.name, params, log)
        case "child" if command.name == WORKFLOW:
            return f"start agent {params.get('agent')} as {command.id}"
        case "memo":
            return _describe_memo(fields)
        case "attributes":
            return f"set search attributes {', '.join(f'{key}={_text(value)}' for key, value in fields.items())}"
        case "answer" | "complete" as kind:
            result = fields["result"]
            text = result.get("text") if isinstance(result, dict) else None
            return f"{'complete' if kind == 'complete' else 'answer an update'} with {_text(text or result)}"
        case "refuse" | "fail" as kind:
            does = "fail" if kind == "fail" else "refuse an update"
            return f"{does} with {fields['type']}: {summary.clip(fields['message'])}"
        case kind:
            return _COMMANDS[kind].format(command=command)


def _describe_activity(name: str, params: JsonObject, log: Log | None) -> str:
    if name == MODEL.name and params.get("phase") == "leave":
        return f"callbacks of {params.get('agent')}"
    if name in ENGINE_ACTIVITIES:
        return ENGINE_ACTIVITIES[name].description.format_map(defaultdict(lambda: None, params))
    if "." not in name or "function_call_id" not in params:
        return f"run activity {name}"
    args = params.get("args")
    if args is None and log and (call := log.state.calls.get(params["function_call_id"])):
        args = call.args
    return f"call {summary.call(name.rpartition('.')[2], args if isinstance(args, dict) else {})}"


def _describe_memo(fields: Mapping[str, Any]) -> str:
    if fields and MEMO_PENDING not in fields:
        return f"set memo {', '.join(fields)}"
    pending = fields.get(MEMO_PENDING)
    waits = []
    for call in pending if isinstance(pending, list) else ():
        args = call.get("args")
        shown = args if isinstance(args, dict) and set(args) != {"omitted_bytes"} else {}
        waits.append(
            f"{_WAITS.get(str(call.get('kind')), 'an answer to')} {summary.call(str(call.get('tool')), shown)}"
        )
    return f"wait for {' and '.join(waits)}" if waits else "say that nothing waits"


def _describe_entry(body: Body) -> str | None:
    """Return an entry of a log as what something comes after; None for one that only follows from others."""
    if isinstance(body, AnswerCounted):
        return f"the answer to {ids.requesting_call(body.function_call_id)}"
    template = _ENTRIES.get(type(body))
    return template.format(body=body) if template else None


def _text(value: Any) -> str:
    return summary.clip(value if isinstance(value, str) else encode(plain_of(value)).decode())


def format_value(value: Any) -> str:
    """Return a part on one line."""
    return "absent" if value is ABSENT else summary.clip(encode(plain_of(value)).decode())


def plain_of(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return None if value is ABSENT or value is UNKNOWN else value
