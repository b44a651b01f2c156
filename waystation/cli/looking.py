"""The options of the commands that look back: `events`, `state`, `prompt`, `diff`, `debug`. See `travel`."""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waystation.cli.command import run_command, run_offline_command

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target
    from waystation.client import AgentClient
    from waystation.replay.recording import Recording

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line, and nothing else.")]
Source = Annotated[str, typer.Argument(metavar="ID|FILE", help="An invocation, or its history as JSON.")]
At = Annotated[int | None, typer.Option("--at", metavar="N", min=0, help="As it was right after event N; 0: before 1.")]
Between = Annotated[
    tuple[int, int] | None, typer.Option("--diff", metavar="N M", help="What changed from event N to event M.")
]
Called = Annotated[
    str | None, typer.Option("--called", metavar="CALL", help="The agent that this call began, such as fc-1.")
]

Agents = Annotated[
    list[Path] | None, typer.Option("--agents", metavar="DIR", help="Where the agent is found, as for a worker.")
]
Callbacks = Annotated[
    bool, typer.Option("--callbacks", help="Run `before_model` callbacks here; without it they do not run.")
]
Session = Annotated[
    str | None, typer.Option(metavar="ID|FILE", help="Of a file: the session's history, for what was said before.")
]


def events(
    ctx: typer.Context,
    source: Source,
    at: At = None,
    diff: Between = None,
    called: Called = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the invocation ends.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Follow, and show text while a model says it.")] = False,
    json: AsJson = False,
) -> None:
    """Print what happened in an invocation, each event with its number. No worker has to run."""
    if _in_the_past(source, at, diff, called):
        if follow or stream:
            raise typer.BadParameter("only what goes on can be followed, not a file or a moment", param_hint="--follow")
        from waystation.cli.travel import events as past

        _look(ctx, source, lambda found, out, _target: past(found, out, at, diff), json=json, called=called)
        return

    async def action(client: "AgentClient", out: "Output", target: "Target") -> int:
        from waystation.cli.watch import events

        return await events(client, out, target, id=source, follow=follow, stream=stream)

    run_command(ctx, action, json=json, invocation=source)


def state(
    ctx: typer.Context,
    source: Source,
    at: At = None,
    diff: Between = None,
    called: Called = None,
    json: AsJson = False,
) -> None:
    """Print the state of an invocation. No worker has to run."""
    if _in_the_past(source, at, diff, called):
        from waystation.cli.travel import state as past

        _look(ctx, source, lambda found, out, _target: past(found, out, at, diff), json=json, called=called)
        return

    async def action(client: "AgentClient", out: "Output", _target: "Target") -> int:
        from waystation.cli.histories import state

        return await state(client, out, id=source)

    run_command(ctx, action, json=json, invocation=source)


def prompt(
    ctx: typer.Context,
    source: Source,
    at: At = None,
    diff: Between = None,
    called: Called = None,
    agents: Agents = None,
    callbacks: Callbacks = False,
    session: Session = None,
    json: AsJson = False,
) -> None:
    """Print what the model was shown: the prompt that gave event N, or, where no model replied, the next one after it.

    Without --agents only the contents: instruction, tools and settings are the agent's, and no history holds them.
    """
    from waystation.cli.travel import Prompting
    from waystation.cli.travel import prompt as shown

    asking = Prompting(agents or (), callbacks, session)
    _look(ctx, source, lambda found, out, target: shown(found, out, target, at, diff, asking), json=json, called=called)


def diff(
    ctx: typer.Context,
    left: Annotated[str, typer.Argument(metavar="A", help="An invocation, or its history as JSON.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    every: Annotated[bool, typer.Option("--all", help="Show everything that is the same, too.")] = False,
    json: AsJson = False,
) -> None:
    """Print the events of two invocations side by side, and where they first differ. Ids and times are no difference.

    The exit code is 0 when the same happened in both, else 1.
    """

    async def action(out: "Output", target: "Target") -> int:
        from waystation.cli.travel import diff

        return await diff(target, out, left, right, every=every)

    run_offline_command(ctx, action, json=json, invocation=left)


def debug(
    ctx: typer.Context,
    source: Source,
    at: At = None,
    called: Called = None,
    agents: Agents = None,
    callbacks: Callbacks = False,
    session: Session = None,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="With --at: Python's debugger, in the workflow code that made event N.")
    ] = False,
) -> None:
    """Step through what happened, event by event, forwards and backwards; `h` lists the commands.

    Commands may also be piped in, one a line.
    """
    if pdb:
        if at is None:
            raise typer.BadParameter("say at which event, with --at N", param_hint="--pdb")
        from waystation.cli.breaking import stop_at

        _look(ctx, source, lambda found, out, _target: stop_at(found.moment(at), out), json=False, called=called)
        return
    from waystation.cli.travel import Prompting, debug

    asking = Prompting(agents or (), callbacks, session)
    _look(ctx, source, lambda found, out, target: debug(found, out, target, at, asking), json=False, called=called)


def look_at_pending(
    ctx: typer.Context,
    source: str | None,
    at: int | None,
    called: str | None,
    *,
    filters: Iterable[str],
    json: bool,
) -> bool:
    """Print what waited at a moment, or in a file; return whether that is what was asked for."""
    if source is None and at is not None:
        raise typer.BadParameter("name the invocation, or the file, whose moment it is", param_hint="--at")
    if source is None and called is not None:
        raise typer.BadParameter("name the invocation, or the file, whose call it is", param_hint="--called")
    if source is None or not _in_the_past(source, at, called):
        return False
    if narrowing := [name for name in filters if ctx.params.get(name) is not None]:
        hint = ", ".join(f"--{name.replace('_', '-')}" for name in narrowing)
        raise typer.BadParameter("narrows what waits now; of a moment, or a file, everything is shown", param_hint=hint)
    from waystation.cli.travel import pending as past

    _look(ctx, source, lambda found, out, _target: past(found, out, at), json=json, called=called)
    return True


LOOKING: tuple[Callable[..., None], ...] = (events, state, prompt, diff, debug)


def _in_the_past(source: str, *options: Any) -> bool:
    from waystation.cli.recordings import is_file

    return any(option is not None for option in options) or is_file(source)


def _look(
    ctx: typer.Context,
    source: str,
    action: "Callable[[Recording, Output, Target], Awaitable[int]]",
    *,
    json: bool,
    called: str | None = None,
) -> None:
    """Perform a command on a recording."""

    if ctx.params.get("at") is not None and ctx.params.get("diff") is not None:
        raise typer.BadParameter("a moment or what changed between two, not both", param_hint="--at, --diff")

    async def looked(out: "Output", target: "Target") -> int:
        from waystation.cli.travel import found

        return await action(await found(target, out, source, called), out, target)

    run_offline_command(ctx, looked, json=json, invocation=source)
