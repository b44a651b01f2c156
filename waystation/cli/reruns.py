"""The `waystation rerun` command: run a recorded tool call or model call again on this machine."""

import asyncio
import json as json_module
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from waystation.activities import DEMO, LogCache, Models, ScopeKeeper, SessionHistories
from waystation.cli.command_context import (
    AsJson,
    Called,
    CommandContext,
    CommandProblem,
    Exit,
    Source,
    parse_object,
    translate_file_errors,
)
from waystation.cli.output import Output
from waystation.cli.recordings import is_file, read_invocation
from waystation.cli.terminal_input import find_person
from waystation.client import AgentClient
from waystation.core.contract import Stores
from waystation.core.errors import AuthoringError, NoSuchEvent, UnknownAgent
from waystation.core.secrets import hide_named_secrets
from waystation.presentation import terminal
from waystation.replay import Recording, Workshop
from waystation.replay.activity_replay import (
    InvalidPrompt,
    ModelNotCalled,
    NoSuchActivity,
    NotApproved,
    PreparedCall,
    find_calls,
    find_model_call_number,
    parse_prompt,
)
from waystation.replay.comparison import Rerun
from waystation.worker.service_setup import create_lasting_services

NOTHING_RAN = "Nothing was run."
_FOR_TOOLS = ("call", "args", "unapproved")
_FOR_MODELS = ("model_call", "prompt", "write_prompt", "edit", "instruction", "model")

AgentFolders = Annotated[
    list[Path],
    typer.Option(metavar="DIR", help="Folder that contains agent packages, as in `waystation worker`."),
]
Call = Annotated[
    str | None, typer.Option(metavar="CALL", help="Call to run, such as fc-1, if the event has several calls.")
]
Args = Annotated[str | None, typer.Option(metavar="JSON", help="Arguments to use instead of the recorded ones.")]
Unapproved = Annotated[
    bool, typer.Option("--unapproved", help="Run a call that required an approval and never received it.")
]
ModelCall = Annotated[
    bool, typer.Option("--model-call", help="For an event with tool calls: run the model call that made them.")
]
PromptFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with an edited prompt, created with --write-prompt.")
]
NewPromptFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the prompt to this file instead of calling the model.")
]
Instruction = Annotated[
    str | None, typer.Option(metavar="TEXT", help="System instruction to use instead of the agent's.")
]
ModelName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Model to call, or `demo` for the agent's offline demo model.")
]
Artifacts = Annotated[
    str | None, typer.Option(metavar="URL", help="Folder or object store where workers store artifacts.")
]


async def rerun(
    ctx: CommandContext,
    source: Source,
    event: Annotated[int, typer.Argument(metavar="N", help="Event number, as listed by `waystation events`.", min=1)],
    agents: AgentFolders,
    called: Called = None,
    call: Call = None,
    args: Args = None,
    yes: Annotated[bool, typer.Option("--yes", help="Run a tool without asking for confirmation.")] = False,
    unapproved: Unapproved = False,
    model_call: ModelCall = False,
    prompt: PromptFile = None,
    write_prompt: NewPromptFile = None,
    edit: Annotated[bool, typer.Option("--edit", help="Edit the prompt in $EDITOR first.")] = False,
    instruction: Instruction = None,
    model: ModelName = None,
    artifacts: Artifacts = None,
    memory: Annotated[str | None, typer.Option(metavar="STORE", help="Where workers store memories.")] = None,
    credentials: Annotated[str | None, typer.Option(metavar="STORE", help="The workers' credential store.")] = None,
    json: AsJson = False,
) -> Exit:
    """Run the tool call or model call of an event again on this machine, and show how the result differs.

    A tool receives the recorded arguments and context, including the idempotency key. Its side effects are real, so
    the command asks for confirmation unless the tool's declared effect is `read`. Nothing is written to the server or
    the history.
    """
    arguments, kind, out = parse_object("--args", args), _find_kind(ctx), ctx.out
    client = None if is_file(source) else await ctx.connect()
    recording = await read_invocation(ctx, source, called)
    with _translate_errors(out):
        services = create_lasting_services(_create_stores(artifacts, memory, credentials))
        if client:
            await ctx.compare_stores(
                artifacts=services.artifacts, memory=services.memory, credentials=services.credentials
            )
        async with Workshop(
            agents,
            models=Models(DEMO if model == DEMO else None),
            services=services,
            conversations=_create_sessions(client) if client else None,
            on_heartbeat=lambda *details: _show_heartbeat(out, details),
        ) as workshop:
            if kind is None and not find_calls(recording, event):
                kind = "model" if find_model_call_number(recording, event) is not None else "tool"
            result: Rerun
            if kind == "model":
                edited = await _edit_prompt(out, workshop, recording, event, prompt, write_prompt, edit=edit)
                if write_prompt:
                    return Exit.OK
                result = await workshop.rerun_model(
                    recording,
                    event,
                    prompt=edited,
                    instruction=instruction,
                    model=None if model == DEMO else model,
                )
            else:
                planned = await workshop.planned(recording, event, call=call, args=arguments)
                if not yes and (planned.effect != "read" or planned.unapproved):
                    unapproved = _confirm(out, planned, unapproved=unapproved)
                result = await workshop.rerun_tool(recording, planned, unapproved=unapproved)
    out.record(result.to_json()) if json else out.show(result)
    return Exit.FAILED if result.failure else Exit.OK


@contextmanager
def _translate_errors(out: Output) -> Iterator[None]:
    """Translate errors that explain why a step cannot run. On Ctrl-C, warn that the tool may have had side effects."""
    try:
        yield
    except (NoSuchEvent, NoSuchActivity) as error:
        raise CommandProblem(Exit.UNKNOWN, str(error)) from None
    except UnknownAgent as error:  # the error's own message is written for workers
        raise CommandProblem(
            Exit.USAGE,
            f"The --agents folders contain no agent {error.agent!r}. They contain: {', '.join(error.known) or 'none'}.",
        ) from None
    except (AuthoringError, InvalidPrompt, ModelNotCalled) as error:
        raise CommandProblem(Exit.USAGE, str(error)) from None
    except NotApproved as error:
        raise CommandProblem(Exit.NOT_ALLOWED, f"{error} {NOTHING_RAN}") from None
    except asyncio.CancelledError:
        out.remark(
            "Stopping. The tool may already have had side effects. Press Ctrl-C again to stop without waiting for it."
        )
        raise


def _find_kind(ctx: CommandContext) -> Literal["model", "tool"] | None:
    """Return which kind of call the used options are for, or None if they are for both.

    Raises:
        CommandProblem: Some are only for one kind, and some only for the other.
    """
    for_models, for_tools = _used_options(ctx, _FOR_MODELS), _used_options(ctx, _FOR_TOOLS)
    if for_models and for_tools:
        raise CommandProblem(
            Exit.USAGE,
            f"{for_tools[0]} is for tool calls and {for_models[0]} is for model calls. Use only one of them.",
        )
    return "model" if for_models else "tool" if for_tools else None


def _used_options(ctx: CommandContext, names: Iterable[str]) -> list[str]:
    """Return which of the named options were used, in the form that users type."""
    return [f"--{name.replace('_', '-')}" for name in names if ctx.params[name] not in (None, False)]


def _create_stores(artifacts: str | None, memory: str | None, credentials: str | None) -> Stores:
    options: dict[str, Any] = {"artifacts": artifacts, "memory": memory, "credentials": credentials}
    return Stores(**{name: store for name, store in options.items() if store is not None})


def _create_sessions(client: AgentClient) -> SessionHistories:
    cache = LogCache(client.temporal, client.blobs)
    return SessionHistories(client.temporal, client.blobs, ScopeKeeper(client.temporal, cache))


def _confirm(out: Output, planned: PreparedCall, *, unapproved: bool) -> bool:
    """Ask the user to confirm that a call may run. Return whether it may run even without its required approval.

    Raises:
        Problem: The user declined, or there is no terminal.
    """
    person = None if out.json else find_person()
    if person is None:
        raise CommandProblem(
            Exit.USAGE,
            f"{planned.what} has the declared effect `{planned.effect}`, and there is no terminal to ask for "
            f"confirmation in. {NOTHING_RAN} Pass --yes to run it.",
        )
    out.line(terminal.escape(planned.what), style="bold yellow")
    out.line(terminal.format_json(hide_named_secrets(planned.args), indent=2))
    out.line(f"It will run on this machine with real side effects. Its declared effect is `{planned.effect}`.")
    out.line(
        f"It receives the recorded idempotency key, {terminal.escape(planned.idempotency_key)}. A service that honors "
        "the key will not repeat the effect, but any other service will."
    )
    if planned.unapproved and not unapproved:
        out.line(f"This call was never approved: {terminal.escape(planned.unapproved)}.", style="bold red")
        name = planned.call.name
        if person.ask(f"To run it anyway, type the tool's name, {terminal.escape(name)}") != name:
            raise CommandProblem(Exit.NOT_ALLOWED, NOTHING_RAN)
        return True
    if not person.agrees("Run it"):
        raise CommandProblem(Exit.FAILED, NOTHING_RAN)
    return unapproved


async def _edit_prompt(
    out: Output,
    workshop: Workshop,
    recording: Recording,
    event: int,
    file: Path | None,
    new_file: Path | None,
    *,
    edit: bool,
) -> str | None:
    """Return the prompt from `file` or, with `edit`, from an editor. If `new_file` is set, write the prompt there.

    Return None if the recorded prompt should be used, or if the prompt was written to `new_file`.

    Raises:
        Problem: A file cannot be read or written, or editing stopped or is not possible.
    """
    text = None
    if file is not None:
        with translate_file_errors(file):
            text = await asyncio.to_thread(file.read_text, encoding="utf-8")
    if not (new_file or edit):
        return text
    current = json_module.dumps(await workshop.prompt(recording, event), ensure_ascii=False, indent=2) + "\n"
    if new_file is not None:
        with translate_file_errors(new_file, "written"):
            await asyncio.to_thread(new_file.write_text, current, encoding="utf-8")
        out.remark(f"Edit {str(new_file)!r}, then pass it with --prompt.")
        return None
    person = find_person()
    edited = person.edit_until(_check_prompt, out, text or current, on_stop=NOTHING_RAN) if person else None
    if edited is None:
        raise CommandProblem(
            Exit.USAGE,
            f"--edit requires a terminal and $EDITOR. Use --write-prompt and --prompt instead. {NOTHING_RAN}",
        )
    return edited


def _check_prompt(text: str) -> str:
    parse_prompt(text)
    return text


def _show_heartbeat(out: Output, details: tuple[object, ...]) -> None:
    if details and out.console.is_terminal and not out.json:
        out.remark(terminal.clip_json([str(detail) for detail in details]))
