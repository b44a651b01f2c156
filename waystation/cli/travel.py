"""`--at`, `--diff`, `prompt` and `diff`: what an invocation was at its moments."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from temporalio.service import RPCError

from waystation.cli.exits import Exit, Problem
from waystation.cli.lines import Lines
from waystation.cli.output import Output
from waystation.cli.recordings import Recordings, is_file
from waystation.cli.stepping import Stepping, keys
from waystation.cli.target import Target
from waystation.core.errors import WaystationError
from waystation.core.payload import JsonObject
from waystation.core.wire import SESSION_WORKFLOW
from waystation.presentation import recording_views, terminal
from waystation.presentation.cursor import Walk
from waystation.replay.difference import MomentDifference, PromptDifference, RecordingDifference, difference
from waystation.replay.prompt import Prompt
from waystation.replay.prompt_lookup import prompt_at
from waystation.replay.recording import Moment, Recording


async def found(target: Target, out: Output, source: str, called: str | None = None) -> Recording:
    """Return a recording, or one of an agent that it called; `called` may name several calls, `fc-1/fc-2`.

    Raises:
        Problem: There is no such recording.
    """
    recording = await Recordings(target).invocation(source, called)
    if recording.lacking:
        out.remark(
            f"{len(recording.lacking)} large values are shown in short form; --store says where workers keep them."
        )
    return recording


async def events(recording: Recording, out: Output, at: int | None, diff: tuple[int, int] | None) -> Exit:
    """Write the events up to a moment, or those between two, and what then waited."""
    moment = recording.moment(diff[1] if diff else at)
    between = difference(recording.moment(diff[0]), moment) if diff else None
    for event in moment.events if between is None else between.events:
        out.record(event.to_json()) if out.json else out.event(event, numbered=True)
    if not out.json:
        if moment.pending or between is not None:
            out.line()
        _write_waits(out, moment)
        if between is not None:
            out.show(between)
    return Exit.OK


async def state(recording: Recording, out: Output, at: int | None, diff: tuple[int, int] | None) -> Exit:
    """Write the state at a moment, or what became of it between two."""
    if diff is None:
        held = recording.moment(at).state
        out.record(held) if out.json else out.line(terminal.state(held))
        return Exit.OK
    found = difference(*(recording.moment(number) for number in diff))
    out.record(_changed(found)) if out.json else out.show(found)
    return Exit.OK


async def pending(recording: Recording, out: Output, at: int | None) -> Exit:
    """Write what waited for a person at a moment."""
    moment = recording.moment(at)
    if out.json:
        for call in moment.pending:
            out.record(call.model_dump(mode="json"))
    else:
        out.line(recording_views.where(moment))
        _write_waits(out, moment)
        if not moment.pending:
            out.line("Nothing waited for a person.")
    return Exit.OK


def _write_waits(out: Output, moment: Moment) -> None:
    for call in moment.pending:
        out.show(recording_views.wait(call, moment))


def _changed(found: MomentDifference) -> JsonObject:
    return {"from": found.before.number, "to": found.after.number, **found.state.to_json()}


@dataclass(frozen=True, slots=True)
class Prompting:
    """How a prompt is asked for."""

    agents: Sequence[Path]
    callbacks: bool = False
    session: str | None = None

    async def at(self, recording: Recording, number: int | None, target: Target, session: Recording | None) -> Prompt:
        """Return the prompt at an event."""
        return await prompt_at(
            recording,
            number,
            agents=self.agents or None,
            callbacks=self.callbacks,
            session=session,
            store=target.store,
        )


async def prompt(
    recording: Recording,
    out: Output,
    target: Target,
    at: int | None,
    diff: tuple[int, int] | None,
    asking: Prompting,
) -> Exit:
    """Write a prompt, or what one has that another has not."""
    session = await _session(recording, out, target, asking.session)
    if diff is None:
        shown = await asking.at(recording, at, target, session)
        out.record(asdict(shown)) if out.json else out.show(shown)
        return Exit.OK
    before, after = [await asking.at(recording, number, target, session) for number in diff]
    differing = difference(before, after)
    out.record(_prompts(differing)) if out.json else out.show(differing)
    return Exit.OK


async def _session(recording: Recording, out: Output, target: Target, given: str | None) -> Recording | None:
    """Return what is recorded of the session that an invocation belongs to, where it can be had."""
    link = recording.log.input.session if recording.log.input else None
    if given is not None:
        session = await Recordings(target).get(given)
        if session.kind != SESSION_WORKFLOW:
            raise Problem(Exit.USAGE, f"--session {given!r} is a history of {session.kind!r}; name the session's.")
        if link is None or link.id != session.id:
            belongs = f"belongs to {link.id!r}" if link else "belongs to no session"
            raise Problem(Exit.USAGE, f"--session {given!r} is of {session.id!r}; {recording.source!r} {belongs}.")
        return session
    if link is None or is_file(recording.source):
        return None
    try:
        return await Recordings(target).get(link.id)
    except (WaystationError, RPCError) as error:
        out.remark(f"The session {link.id!r} cannot be read: {error}")
        return None


def _prompts(found: PromptDifference) -> JsonObject:
    return {
        "from": found.before.at,
        "to": found.after.at,
        "contents": [{"sign": sign, "content": content} for sign, content in found.contents],
        "instruction": list(found.instruction),
        "tools": found.tools.to_json(),
        "config": found.config.to_json(),
    }


async def diff(target: Target, out: Output, left: str, right: str, *, every: bool) -> Exit:
    """Write the events of two recordings beside each other, and where they part."""
    recordings = Recordings(target)
    differing = difference(await recordings.invocation(left), await recordings.invocation(right))
    if out.json:
        out.record(_sides(differing))
    else:
        out.show(recording_views.recording_difference(differing, context=None if every else recording_views.CONTEXT))
    return Exit.FAILED if differing else Exit.OK


def _sides(found: RecordingDifference) -> JsonObject:
    return {
        "left": found.left.source,
        "right": found.right.source,
        "first": {"left": found.first.left, "right": found.first.right} if found.first else None,
        "state": found.state.to_json(),
        "pairs": [{"left": pair.left, "right": pair.right, "same": pair.same} for pair in found.pairs],
    }


async def debug(recording: Recording, out: Output, target: Target, at: int | None, asking: Prompting) -> Exit:
    """Step through a recording."""
    walk = Walk(recording)
    if at is not None:
        walk.go(at)

    async def prompt(walk: Walk) -> Prompt:
        session = await _session(walk.recording, out, target, asking.session)
        return await asking.at(walk.recording, walk.moment.number, target, session)

    return await Stepping(walk, out, prompt, Lines(keys)).run()
