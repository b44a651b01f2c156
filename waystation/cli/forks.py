"""The `waystation fork` and `forks` commands: start a new invocation from an event of another, and list such forks."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, TypeVar

import typer
from rich.text import Text

from waystation.cli.command_context import (
    AsJson,
    By,
    CommandContext,
    CommandProblem,
    Detach,
    Exit,
    InvocationId,
    TokenFile,
    parse_json_object,
    read_token,
)
from waystation.cli.invocations import follow
from waystation.cli.recordings import check_on_server
from waystation.cli.terminal_input import find_person
from waystation.client import Invocation
from waystation.configuration import login_name
from waystation.core import summary
from waystation.core.actions import Action
from waystation.core.log import CallState
from waystation.core.payload import JsonObject
from waystation.presentation import terminal

T = TypeVar("T")

ACTIONS: dict[str, Action] = {"approve": "approve", "reject": "reject"}


async def fork(
    ctx: CommandContext,
    id: InvocationId,
    event: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of the last event to keep in the fork.")],
    message: Annotated[str | None, typer.Option(help="User message to use instead of the recorded one.")] = None,
    instruction: Annotated[
        str | None,
        typer.Option(help="Instruction to use instead of the agent's. The worker must run with --allow-overrides."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model to use instead of the agent's. The worker must run with --allow-overrides."),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Agent that --instruction and --model apply to. Default: the invocation's root agent."
        ),
    ] = None,
    result: Annotated[
        list[str] | None,
        typer.Option(metavar="CALL=JSON", help="Response to use for a call instead of running it, such as fc-2={}."),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL=ACTION", help="Answer to send when a call in the fork is waiting: approve or reject."
        ),
    ] = None,
    by: By = None,
    new_id: Annotated[
        str | None, typer.Option("--id", help="Invocation ID of the fork. Default: ID~1, ID~2, and so on.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Run calls that may have side effects, without asking first.")
    ] = False,
    token_file: TokenFile = None,
    detach: Detach = False,
    json: AsJson = False,
) -> Exit:
    """Start an invocation that continues from event N of another one, and follow it.

    Steps recorded up to event N do not run again. Calls that had no result at that event run now, and calls that were
    waiting for a person wait again. To ask the model again, pass the number of the event before its reply.
    """
    check_on_server(id)
    results, answers = _parse_calls(result or (), answer or ())
    prepared = await (await ctx.connect()).forks.prepare(
        id, event, message=message, instruction=instruction, model=model, agent=agent, results=results, id=new_id
    )
    if closed := [call.id for call in prepared.log.state.calls.values() if call.closed and call.id in answers]:
        raise CommandProblem(
            Exit.USAGE,
            f"{closed[0]} already has its response at event {event}, so it will not wait in the fork. Remove its "
            "--answer, or fork from an earlier event to answer it again.",
        )
    if not yes:
        _confirm([call for call in prepared.log.state.performing() if call.call.effect != "read"])
    invocation = await prepared.start(token=read_token(token_file))
    ctx.out.result(
        {"fork": {"id": invocation.id, "source": id, "event": event}},
        Text.assemble(
            (terminal.escape(invocation.id), "bold cyan"), f", a fork of {terminal.escape(id)} from its event {event}"
        ),
    )
    return await _follow(ctx, invocation, answers, by or login_name(), detach=detach)


def _parse_calls(results: Sequence[str], answers: Sequence[str]) -> tuple[dict[str, JsonObject], dict[str, Action]]:
    """Parse the options with responses and with answers, by the IDs of their calls.

    Raises:
        CommandProblem: An option is not valid, or a call is in both.
    """
    responses = _parse_pairs("--result", 'CALL=JSON, such as fc-2={"price": 7}', results, parse_json_object)
    actions = _parse_pairs("--answer", "CALL=approve or CALL=reject", answers, ACTIONS.__getitem__)
    if both := sorted(responses.keys() & actions.keys()):
        raise CommandProblem(
            Exit.USAGE,
            f"{both[0]} is in both --result and --answer. A call with a result never waits for an answer. Remove one "
            "of the two options.",
        )
    return responses, actions


async def _follow(
    ctx: CommandContext, invocation: Invocation, answers: dict[str, Action], by: str | None, *, detach: bool
) -> Exit:
    """Follow a fork, and send each answer as soon as its call is pending. Report answers that were not used."""
    unused = dict(answers)
    tasks = [asyncio.ensure_future(_answer(invocation, unused, call_id, by)) for call_id in answers]
    try:
        code = await follow(ctx, await ctx.connect(), invocation, detach=detach and not answers)
        for call_id, action in unused.items():
            ctx.out.remark(f"--answer {call_id}={action} was not used, because the call never waited in this fork.")
        return code
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


async def _answer(invocation: Invocation, unused: dict[str, Action], call_id: str, by: str | None) -> None:
    """Answer a call as soon as it is pending, and remove it from `unused`."""
    async for log in invocation.follow():
        for call in log.state.pending():
            if call.function_call_id == call_id:
                await invocation.answer(unused.pop(call_id), call_id, by=by, **call.as_seen)
                return


def _confirm(calls: Sequence[CallState]) -> None:
    """Ask the user for confirmation before running calls that may have side effects.

    Raises:
        Problem: The user declined, or there is no terminal.
    """
    if not calls:
        return
    names = ", ".join(f"{summary.call(call.name, call.args)} ({call.call.effect})" for call in calls)
    text = f"These calls have no result at that event, so they will run now, possibly for the second time: {names}."
    person = find_person()
    if person is None:
        raise CommandProblem(Exit.USAGE, f"{text} Pass --yes to run them.")
    if not person.agrees(f"{text} Continue?"):
        raise CommandProblem(Exit.USAGE, "No fork was started.")


async def forks(ctx: CommandContext, id: InvocationId, json: AsJson = False) -> Exit:
    """List the forks of an invocation. If it is a fork itself, also print which invocation it was forked from."""
    check_on_server(id)
    client = await ctx.connect()
    started = (await client.invocation(id).log()).state.input
    source = started.fork if started else None
    children = await client.forks.of(id)
    record = {
        "invocation_id": id,
        "fork_of": {"invocation_id": source.invocation_id, "event": source.event} if source else None,
        "forks": [{"id": child.id, "event": child.event} for child in children],
    }
    lines = [f"{id} is a fork of {source.invocation_id} from its event {source.event}."] if source else []
    lines += [
        f"{child.id} is a fork of {id}{'' if child.event is None else f' from its event {child.event}'}."
        for child in children
    ]
    ctx.out.result(record, "\n".join(map(terminal.escape, lines or [f"{id} is not a fork and has no forks."])))
    return Exit.OK


def _parse_pairs(option: str, form: str, pairs: Sequence[str], parse: Callable[[str], T]) -> dict[str, T]:
    """Parse `CALL=VALUE` options into a dictionary.

    Raises:
        Problem: An option does not have this form, its value is invalid, or two options name the same call.
    """
    values: dict[str, T] = {}
    for pair in pairs:
        call_id, _, text = pair.partition("=")
        value = None
        with suppress(ValueError, KeyError):
            value = parse(text)
        if not call_id or value is None:
            raise CommandProblem(Exit.USAGE, f"{option} {pair!r} does not have the form {form}.")
        if call_id in values:
            raise CommandProblem(Exit.USAGE, f"{option} names {call_id} twice. Name each call only once.")
        values[call_id] = value
    return values
