"""`waystation rerun`: run a recorded step again, having asked the person in front of the terminal first."""

import asyncio
import json as json_module
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from waystation.activities.log_cache import LogCache
from waystation.activities.model_choice import DEMO, Models
from waystation.activities.scope_delivery import ScopeKeeper
from waystation.activities.session_history import Sessions
from waystation.cli.command_context import (
    AsJson,
    Called,
    CommandContext,
    Exit,
    Problem,
    Source,
    file_problems,
    parse_object,
)
from waystation.cli.output import Output
from waystation.cli.recordings import is_file, read_invocation
from waystation.cli.terminal_input import present
from waystation.client import AgentClient
from waystation.core import AuthoringError, NoSuchEvent, Stores, UnknownAgent
from waystation.presentation import terminal
from waystation.replay.activity_replay import (
    NoSuchStep,
    NotApproved,
    NotAPrompt,
    NotAsked,
    PlannedCall,
    Workshop,
    calls_in,
    model_number,
    parse_prompt,
)
from waystation.replay.comparison import Rerun
from waystation.replay.recording import Recording
from waystation.worker.services import lasting_services

NOTHING_RAN = "Nothing was run."


async def rerun(
    ctx: CommandContext,
    source: Source,
    event: Annotated[int, typer.Argument(metavar="N", help="Number of an event, as `events` lists them.", min=1)],
    agents: Annotated[list[Path], typer.Option(metavar="DIR", help="Where agents are found, as for a worker.")],
    called: Called = None,
    call: Annotated[
        str | None, typer.Option(metavar="CALL", help="The call, such as fc-1, when the event has several.")
    ] = None,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="Instead of the recorded arguments.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a tool runs.")] = False,
    unapproved: Annotated[
        bool, typer.Option("--unapproved", help="Run a call that needed an approval and never had it.")
    ] = False,
    model_call: Annotated[
        bool, typer.Option("--model-call", help="Of an event with calls: the model call that made them.")
    ] = False,
    prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An edited prompt, as --write-prompt wrote it.")
    ] = None,
    write_prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the prompt, and do not call the model.")
    ] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Edit the prompt in $EDITOR first.")] = False,
    instruction: Annotated[str | None, typer.Option(metavar="TEXT", help="Instead of the system instruction.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Ask this model; `demo` for the agent's offline stand-in.")
    ] = None,
    artifacts: Annotated[
        str | None, typer.Option(metavar="URL", help="Where artifacts are: a folder or object store.")
    ] = None,
    memory: Annotated[Path | None, typer.Option(metavar="FILE", help="Where memories are.")] = None,
    credentials: Annotated[str | None, typer.Option(metavar="URL", help="Where credentials are.")] = None,
    json: AsJson = False,
) -> Exit:
    """Run the tool call or the model call of an event again, on this machine, and show what differs.

    A tool gets the recorded arguments and context, the idempotency key included, and what it does is real: it is asked
    for first, unless its effect is `read`. Nothing is written to the server or the history.
    """
    arguments = parse_object("--args", args)
    for_models = _given(ctx, "model_call", "prompt", "write_prompt", "edit", "instruction", "model")
    for_tools = _given(ctx, "call", "args", "unapproved")
    if for_models and for_tools:
        text = f"{for_tools[0]} is for tool calls, {for_models[0]} for model calls; give one of them."
        raise Problem(Exit.USAGE, text)
    out = ctx.out
    client = None if is_file(source) else await ctx.connect()
    recording = await read_invocation(ctx, source, called)
    stores: dict[str, Any] = {"artifacts": artifacts, "memory": memory, "credentials": credentials}
    with _problems(out):
        async with Workshop(
            agents,
            models=Models(DEMO if model == DEMO else None),
            services=lasting_services(Stores(**{name: store for name, store in stores.items() if store is not None})),
            conversations=_sessions(client) if client else None,
            on_heartbeat=lambda *details: _show_heartbeat(out, details),
        ) as workshop:
            of_model = not calls_in(recording, event) and model_number(recording, event) is not None
            result: Rerun
            if for_models or (of_model and not for_tools):
                edited = await _edited_prompt(out, workshop, recording, event, prompt, write_prompt, edit=edit)
                if write_prompt:
                    return Exit.OK
                named = None if model == DEMO else model
                result = await workshop.rerun_model(
                    recording, event, prompt=edited, instruction=instruction, model=named
                )
            else:
                planned = await workshop.planned(recording, event, call=call, args=arguments)
                if not yes and (planned.effect != "read" or planned.unapproved):
                    unapproved = _agree(out, planned, unapproved=unapproved)
                result = await workshop.rerun_tool(recording, planned, unapproved=unapproved)
    out.record(result.to_json()) if json else out.show(result)
    return Exit.FAILED if result.failure else Exit.OK


@contextmanager
def _problems(out: Output) -> Iterator[None]:
    """Turn the errors of a step that cannot be run into those of a command."""
    try:
        yield
    except (NoSuchEvent, NoSuchStep) as error:
        raise Problem(Exit.UNKNOWN, str(error)) from None
    except UnknownAgent as error:  # whose message is that of a worker
        known = ", ".join(error.known) or "none"
        raise Problem(Exit.USAGE, f"No agent of --agents is named {error.agent!r}; there are: {known}.") from None
    except (AuthoringError, NotAPrompt, NotAsked) as error:
        raise Problem(Exit.USAGE, str(error)) from None
    except NotApproved as error:
        raise Problem(Exit.NOT_ALLOWED, f"{error} {NOTHING_RAN}") from None
    except asyncio.CancelledError:
        out.remark(
            "Stopping. Whether a tool took effect, only it can tell; Ctrl-C once more leaves one that does not end."
        )
        raise


def _given(ctx: CommandContext, *names: str) -> list[str]:
    """Return which of some options were given, as they are written."""
    return [f"--{name.replace('_', '-')}" for name in names if ctx.params[name] not in (None, False)]


def _sessions(client: AgentClient) -> Sessions:
    keeper = ScopeKeeper(client.temporal, LogCache(client.temporal, client.blobs))
    return Sessions(client.temporal, client.blobs, keeper)


def _agree(out: Output, planned: PlannedCall, *, unapproved: bool) -> bool:
    """Ask whether a call may run; return whether also unapproved.

    Raises:
        Problem: It may not, or nobody can be asked.
    """
    person = None if out.json else present()
    if person is None:
        text = f"{planned.what} has the effect `{planned.effect}`, and nobody can be asked here: --yes runs it."
        raise Problem(Exit.USAGE, f"{text} {NOTHING_RAN}")
    out.line(terminal.safe(planned.what), style="bold yellow")
    shown = {name: terminal.unsecret(name, value) for name, value in planned.args.items()}
    out.line(terminal.safe_json(shown, indent=2))
    out.line(f"It runs on this machine, and what it does is real: its effect is `{planned.effect}`.")
    out.line(
        f"It is given the recorded idempotency key, {terminal.safe(planned.idempotency_key)}: what honours it does "
        "nothing twice, and what does not, does."
    )
    if planned.unapproved and not unapproved:
        out.line(f"Nobody has ever approved this call: {terminal.safe(planned.unapproved)}.", style="bold red")
        name = planned.call.name
        if person.ask(f"To run it all the same, type the tool's name, {terminal.safe(name)}") != name:
            raise Problem(Exit.NOT_ALLOWED, NOTHING_RAN)
        return True
    if not person.agrees("Run it"):
        raise Problem(Exit.FAILED, NOTHING_RAN)
    return unapproved


async def _edited_prompt(
    out: Output,
    workshop: Workshop,
    recording: Recording,
    event: int,
    file: Path | None,
    write_to: Path | None,
    *,
    edit: bool,
) -> str | None:
    """Return the prompt to ask with, from a file or an editor; None for the recorded one. Or write it to a file."""
    text = None
    if file is not None:
        with file_problems(file):
            text = await asyncio.to_thread(file.read_text, encoding="utf-8")
    if not (write_to or edit):
        return text
    current = json_module.dumps(await workshop.prompt(recording, event), ensure_ascii=False, indent=2) + "\n"
    if write_to is not None:
        with file_problems(write_to, "written"):
            await asyncio.to_thread(write_to.write_text, current, encoding="utf-8")
        out.remark(f"Edit {str(write_to)!r}, and give it to --prompt.")
        return None
    person = present()
    edited = person.edited_into(_prompt, out, current if text is None else text, undone=NOTHING_RAN) if person else None
    if edited is None:
        remedy = "--edit needs a terminal and $EDITOR; --write-prompt and --prompt do not."
        raise Problem(Exit.USAGE, f"{remedy} {NOTHING_RAN}")
    return edited


def _prompt(text: str) -> str:
    parse_prompt(text)
    return text


def _show_heartbeat(out: Output, details: tuple[object, ...]) -> None:
    if details and out.console.is_terminal and not out.json:
        out.remark(terminal.short_json([str(detail) for detail in details]))
