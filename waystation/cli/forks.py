"""`waystation fork` and `forks`: start an invocation that goes on from an event of another one; list them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, TypeVar

import typer
from rich.text import Text

from waystation.cli.command_context import (
    AsJson,
    By,
    CommandContext,
    Detach,
    Exit,
    InvocationId,
    Problem,
    parse_json_object,
)
from waystation.cli.invocations import follow
from waystation.cli.recordings import check_on_server
from waystation.cli.terminal_input import present
from waystation.client import Invocation
from waystation.configuration import login_name
from waystation.core import Action, CallState, Log, summary
from waystation.presentation import terminal

T = TypeVar("T")

ACTIONS: dict[str, Action] = {"approve": "approve", "reject": "reject"}


async def fork(
    ctx: CommandContext,
    id: InvocationId,
    event: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of the last event that is taken over.")],
    message: Annotated[str | None, typer.Option(help="What the user says instead.")] = None,
    instruction: Annotated[
        str | None, typer.Option(help="Instead of the agent's own; workers need --allow-overrides for it.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model instead of the agent's own; likewise.")] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose --instruction and --model; by default the one started.")
    ] = None,
    result: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL=JSON", help="A response, an object, to a call that then does not run, such as fc-2."
        ),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="CALL=ACTION", help="approve or reject a call, once it waits in the fork."),
    ] = None,
    by: By = None,
    new_id: Annotated[str | None, typer.Option("--id", help="Id of the fork; by default ID~1, ID~2, ….")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before calls run that may change something.")] = False,
    detach: Detach = False,
    json: AsJson = False,
) -> Exit:
    """Start an invocation that goes on from event N of another one, and follow it.

    What was recorded up to there does not happen again. Calls that had no result by then run; those that wait for a
    person wait anew. To have a model asked again, name the event before its reply.
    """
    check_on_server(id)
    client, out = await ctx.connect(), ctx.out
    results = _parse_pairs("--result", 'CALL=JSON, such as fc-2={"price": 7}', result or (), parse_json_object)
    shape = "CALL=approve or CALL=reject, such as fc-2=reject"
    answers: dict[str, Action] = _parse_pairs("--answer", shape, answer or (), ACTIONS.__getitem__)
    if both := sorted(results.keys() & answers.keys()):
        text = f"--result and --answer both name {both[0]}; a call that has a result waits for nobody."
        raise Problem(Exit.USAGE, text)
    prepared = await client.forks.prepare(
        id, event, message=message, instruction=instruction, model=model, agent=agent, results=results, id=new_id
    )
    _check_unanswered(prepared.log, answers, event)
    _agree([call for call in prepared.log.state.performing() if call.call.effect != "read"], yes=yes)
    invocation = await prepared.start()
    about = f", a fork of {terminal.safe(id)} from its event {event}"
    record = {"fork": {"id": invocation.id, "source": id, "event": event}}
    out.result(record, Text.assemble((terminal.safe(invocation.id), "bold cyan"), about))
    return await _follow(ctx, invocation, answers, by or login_name(), detach=detach)


async def _follow(
    ctx: CommandContext, invocation: Invocation, answers: Mapping[str, Action], by: str | None, *, detach: bool
) -> Exit:
    """Follow a fork, and give its calls their answers as they wait."""
    left = dict(answers)
    answering = [asyncio.ensure_future(_answer(invocation, left, call_id, by)) for call_id in answers]
    try:
        ended = await follow(ctx, await ctx.connect(), invocation, detach=detach and not answers)
        for call_id, action in left.items():
            ctx.out.remark(
                f"{call_id} never waited for a person in this fork: --answer {call_id}={action} was not needed."
            )
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
        if any(call.function_call_id == call_id for call in log.state.pending()):
            await invocation.answer(left.pop(call_id), call_id, by=by)
            return


def _check_unanswered(log: Log, answers: Mapping[str, Action], event: int) -> None:
    for call_id in answers:
        if (call := log.state.calls.get(call_id)) and call.closed:
            text = f"{call_id} has its response by event {event} and waits for nobody in the fork; leave --answer out."
            raise Problem(Exit.USAGE, f"{text} To answer it anew, name an event before that.")


def _agree(calls: Sequence[CallState], *, yes: bool) -> None:
    if not calls or yes:
        return
    named = ", ".join(f"{summary.call(call.name, call.args)} ({call.call.effect})" for call in calls)
    person = present()
    if person is None:
        text = f"These calls had no result by that event and would run, perhaps once more: {named}. --yes agrees to it."
        raise Problem(Exit.USAGE, text)
    if not person.agrees(f"These calls had no result by that event and run now, perhaps once more: {named}. Go on?"):
        raise Problem(Exit.USAGE, "Nothing was started.")


async def forks(ctx: CommandContext, id: InvocationId, json: AsJson = False) -> Exit:
    """Print of what an invocation is a fork, and which forks it has."""
    check_on_server(id)
    client, out = await ctx.connect(), ctx.out
    started = (await client.invocation(id).log()).state.input
    source = started.fork if started else None
    found = await client.forks.of(id)
    of = {"invocation_id": source.invocation_id, "event": source.event} if source else None
    record = {"invocation_id": id, "fork_of": of, "forks": [{"id": each.id, "event": each.event} for each in found]}
    lines = [f"{id} is a fork of {source.invocation_id} from its event {source.event}."] if source else []
    for each in found:
        lines.append(f"{each.id} is a fork of it{'' if each.event is None else f' from its event {each.event}'}.")
    out.result(record, "\n".join(map(terminal.safe, lines or [f"{id} is no fork, and has none."])))
    return Exit.OK


def _parse_pairs(option: str, shape: str, pairs: Sequence[str], parse: Callable[[str], T]) -> dict[str, T]:
    """Parse `CALL=VALUE`, each call once.

    Raises:
        Problem: Something is not of that shape.
    """
    values: dict[str, T] = {}
    for pair in pairs:
        call_id, _, text = pair.partition("=")
        value = None
        with suppress(ValueError, KeyError):
            value = parse(text)
        if not call_id or value is None:
            raise Problem(Exit.USAGE, f"{option} {pair!r} is not {shape}.")
        if call_id in values:
            raise Problem(Exit.USAGE, f"{option} names {call_id} twice; give each call once.")
        values[call_id] = value
    return values
