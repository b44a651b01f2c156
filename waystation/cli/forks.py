"""Start forks, having asked before something runs that may change the world, and find them."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from waystation.cli.answers import user
from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.cli.person import present
from waystation.cli.target import Target
from waystation.cli.watch import Watcher
from waystation.client import AgentClient, Invocation
from waystation.core import summary
from waystation.core.answer import Action
from waystation.core.call import CallState
from waystation.core.log import Log
from waystation.core.payload import JsonObject, decode
from waystation.presentation import terminal

ACTIONS: tuple[Action, ...] = ("approve", "reject")
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a fork is to be."""

    source: str
    event: int
    message: str | None
    instruction: str | None
    model: str | None
    agent: str | None
    results: Mapping[str, JsonObject]
    id: str | None


async def fork(
    client: AgentClient,
    out: Output,
    target: Target,
    wanted: Wanted,
    *,
    answers: Mapping[str, Action],
    by: str | None,
    yes: bool,
    detach: bool,
) -> Exit:
    """Start a fork and follow it to its end.

    Raises:
        Problem: Calls would run that nobody agreed to.
    """
    if both := sorted(wanted.results.keys() & answers.keys()):
        text = f"--result and --answer both name {both[0]}; a call that has a result waits for nobody."
        raise Problem(Exit.USAGE, text)
    prepared = await client.forks.prepare(
        wanted.source,
        wanted.event,
        message=wanted.message,
        instruction=wanted.instruction,
        model=wanted.model,
        agent=wanted.agent,
        results=wanted.results,
        id=wanted.id,
    )
    _not_closed(prepared.log, answers, wanted.event)
    _agree([call for call in prepared.log.performing() if call.call.effect != "read"], yes=yes)
    invocation = await prepared.start()
    if out.json:
        out.record({"fork": {"id": invocation.id, "source": wanted.source, "event": wanted.event}})
    else:
        about = f", a fork of {terminal.safe(wanted.source)} from its event {wanted.event}"
        out.line(Text.assemble((terminal.safe(invocation.id), "bold cyan"), about))
    left = dict(answers)
    answering = [asyncio.ensure_future(_answer(invocation, left, call_id, by or user())) for call_id in answers]
    try:
        ended = await Watcher(client, invocation, out, target).to_the_end(detach=detach and not answers)
        for call_id, action in left.items():
            out.remark(f"{call_id} never waited for a person in this fork: --answer {call_id}={action} was not needed.")
        return ended
    finally:
        for task in answering:
            task.cancel()
        for raised in await asyncio.gather(*answering, return_exceptions=True):
            if isinstance(raised, Exception):
                raise raised


async def _answer(invocation: Invocation, left: dict[str, Action], call_id: str, by: str | None) -> None:
    """Give a call its answer, which is no longer left then, as soon as it waits."""
    async for log in invocation.follow():
        if any(call.function_call_id == call_id for call in log.pending()):
            await invocation.answer(left.pop(call_id), call_id, by=by)
            return


def _not_closed(log: Log, answers: Mapping[str, Action], event: int) -> None:
    for call_id in answers:
        if (call := log.calls.get(call_id)) and call.closed:
            text = f"{call_id} has its response by event {event} and waits for nobody in the fork; leave --answer out."
            raise Problem(Exit.USAGE, f"{text} To answer it anew, name an event before that.")


def _agree(calls: Sequence[CallState], *, yes: bool) -> None:
    if not calls or yes:
        return
    named = ", ".join(f"{summary.call(call.name, call.args)} ({call.call.effect})" for call in calls)
    asked = present()
    if asked is None:
        text = f"These calls had no result by that event and would run, perhaps once more: {named}. --yes agrees to it."
        raise Problem(Exit.USAGE, text)
    if not asked.agrees(f"These calls had no result by that event and run now, perhaps once more: {named}. Go on?"):
        raise Problem(Exit.USAGE, "Nothing was started.")


async def forks(client: AgentClient, out: Output, *, id: str) -> Exit:
    """Write what an invocation goes on from, and what goes on from it."""
    started = (await client.invocation(id).log()).input
    source = started.fork if started else None
    found = await client.forks.of(id)
    if out.json:
        of = {"invocation_id": source.invocation_id, "event": source.event} if source else None
        out.record(
            {"invocation_id": id, "fork_of": of, "forks": [{"id": each.id, "event": each.event} for each in found]}
        )
        return Exit.OK
    if source:
        out.line(
            f"{terminal.safe(id)} is a fork of {terminal.safe(source.invocation_id)} from its event {source.event}."
        )
    for each in found:
        out.line(
            f"{terminal.safe(each.id)} is a fork of it{'' if each.event is None else f' from its event {each.event}'}."
        )
    if not (source or found):
        out.line(f"{terminal.safe(id)} is no fork, and has none.")
    return Exit.OK


def results_of(given: Sequence[str]) -> dict[str, JsonObject]:
    """Read `CALL=JSON`.

    Raises:
        Problem: It is something else.
    """
    results: dict[str, JsonObject] = {}
    for each in given:
        call_id, _, text = each.partition("=")
        try:
            response = decode(text)
        except ValueError:
            response = None
        if not call_id or not isinstance(response, dict):
            raise Problem(Exit.USAGE, f'--result {each!r} is not CALL=JSON, such as fc-2={{"price": 7}}.')
        if call_id in results:
            raise Problem(Exit.USAGE, f"--result names {call_id} twice; a call has one response.")
        results[call_id] = response
    return results


def answers_of(given: Sequence[str]) -> dict[str, Action]:
    """Read `CALL=ACTION`.

    Raises:
        Problem: It is something else.
    """
    answers: dict[str, Action] = {}
    for each in given:
        call_id, _, name = each.partition("=")
        action = next((action for action in ACTIONS if action == name), None)
        if not call_id or action is None:
            raise Problem(Exit.USAGE, f"--answer {each!r} is not CALL=approve or CALL=reject, such as fc-2=reject.")
        if call_id in answers:
            raise Problem(Exit.USAGE, f"--answer names {call_id} twice; a call has one answer.")
        answers[call_id] = action
    return answers
