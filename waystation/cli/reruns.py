"""Run a recorded step again: ask the person in front of the terminal first, and show the difference."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waystation.activities.log_cache import LogCache
from waystation.activities.model_choice import DEMO, Models
from waystation.activities.scope_delivery import ScopeKeeper
from waystation.activities.session_history import Sessions
from waystation.cli.asking import edited_into
from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.cli.person import Person, present
from waystation.cli.recordings import Recordings, is_file
from waystation.cli.target import Target
from waystation.client import AgentClient
from waystation.core.errors import AuthoringError, NoSuchEvent, UnknownAgent
from waystation.core.payload import JsonObject
from waystation.core.settings import Stores
from waystation.presentation import terminal
from waystation.replay.activity_replay import NotApproved, NotAPrompt, NotAsked, PlannedCall, Workshop, parse_prompt
from waystation.replay.recorded_activities import NoSuchStep, calls_in, model_number
from waystation.replay.recording import Recording
from waystation.replay.rerun_result import Rerun
from waystation.worker.services import lasting_services

NOTHING_RAN = "Nothing was run."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the options say."""

    source: str
    event: int
    called: str | None = None
    agents: Sequence[Path]
    call: str | None = None
    args: JsonObject | None = None
    yes: bool = False
    unapproved: bool = False
    model_call: bool = False
    prompt: Path | None = None
    write_prompt: Path | None = None
    edit: bool = False
    instruction: str | None = None
    model: str | None = None
    services: dict[str, Any] = field(default_factory=dict)

    @property
    def of_model(self) -> list[str]:
        """The options that are for model calls."""
        given = {
            "--model-call": self.model_call,
            "--prompt": self.prompt,
            "--write-prompt": self.write_prompt,
            "--edit": self.edit,
            "--instruction": self.instruction is not None,
            "--model": self.model,
        }
        return [name for name, value in given.items() if value]

    @property
    def of_tool(self) -> list[str]:
        """The options that are for tool calls."""
        given = {"--call": self.call, "--args": self.args is not None, "--unapproved": self.unapproved}
        return [name for name, value in given.items() if value]


async def rerun(target: Target, out: Output, wanted: Wanted) -> Exit:
    """Run the step again, and write what came of it beside what was recorded.

    Raises:
        Problem: It cannot be run, or is not to be.
    """
    if wanted.of_model and wanted.of_tool:
        text = f"{wanted.of_tool[0]} is for tool calls, {wanted.of_model[0]} for model calls; give one of them."
        raise Problem(Exit.USAGE, text)
    client = None if is_file(wanted.source) else await target.connect()
    recording = await Recordings(target, client).invocation(wanted.source, wanted.called)
    conversations = _sessions(client) if client else None
    try:
        async with Workshop(
            wanted.agents,
            models=Models(DEMO if wanted.model == DEMO else None),
            services=lasting_services(Stores(**wanted.services)),
            conversations=conversations,
            on_heartbeat=lambda *said: _beat(out, said),
        ) as workshop:
            if wanted.of_model or _is_model_call(recording, wanted):
                found: Rerun | None = await _model_call(out, workshop, recording, wanted)
            else:
                found = await _tool_call(out, workshop, recording, wanted)
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
    if found is None:
        return Exit.OK
    if out.json:
        out.record(found.to_json())
    else:
        out.console.print(found.__rich__())
    return Exit.FAILED if found.failure else Exit.OK


def _sessions(client: AgentClient) -> Sessions:
    return Sessions(
        client.temporal, client.blobs, ScopeKeeper(client.temporal, LogCache(client.temporal, client.blobs))
    )


def _is_model_call(recording: Recording, wanted: Wanted) -> bool:
    """Whether an event is what a model said, without a call that could be meant."""
    calls = calls_in(recording, wanted.event)
    return not calls and not wanted.of_tool and model_number(recording, wanted.event) is not None


async def _tool_call(out: Output, workshop: Workshop, recording: Recording, wanted: Wanted) -> Rerun:
    planned = await workshop.planned(recording, wanted.event, call=wanted.call, args=wanted.args)
    unapproved = wanted.unapproved
    if not wanted.yes and (planned.effect != "read" or planned.unapproved):
        person = present()
        if person is None or out.json:
            text = f"{planned.what} has the effect `{planned.effect}`, and nobody can be asked here: --yes runs it."
            raise Problem(Exit.USAGE, f"{text} {NOTHING_RAN}")
        unapproved = _agreed(out, person, planned, unapproved=unapproved)
    return await workshop.rerun_tool(recording, planned, unapproved=unapproved)


def _agreed(out: Output, person: Person, planned: PlannedCall, *, unapproved: bool) -> bool:
    """Ask whether a call may run; return whether also unapproved.

    Raises:
        Problem: It may not.
    """
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


async def _model_call(out: Output, workshop: Workshop, recording: Recording, wanted: Wanted) -> Rerun | None:
    prompt = await asyncio.to_thread(_read, wanted.prompt) if wanted.prompt else None
    if wanted.write_prompt or wanted.edit:
        now = await workshop.prompt(recording, wanted.event)
        text = json.dumps(now, ensure_ascii=False, indent=2) + "\n"
        if wanted.write_prompt:
            await asyncio.to_thread(_write, wanted.write_prompt, text)
            out.remark(f"Edit {str(wanted.write_prompt)!r}, and give it to --prompt.")
            return None
        prompt = _edited(out, text if prompt is None else prompt)
    named = None if wanted.model == DEMO else wanted.model
    return await workshop.rerun_model(
        recording, wanted.event, prompt=prompt, instruction=wanted.instruction, model=named
    )


def _edited(out: Output, text: str) -> str:
    """Have a prompt changed in the person's editor, as often as it takes to be one."""
    person = present()
    edited = edited_into(_prompt, person, out, text, undone=NOTHING_RAN) if person else None
    if edited is None:
        raise Problem(
            Exit.USAGE, f"--edit needs a terminal and $EDITOR; --write-prompt and --prompt do not. {NOTHING_RAN}"
        )
    return edited


def _prompt(text: str) -> str:
    parse_prompt(text)
    return text


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise Problem(Exit.USAGE, f"{str(file)!r} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise Problem(Exit.USAGE, f"{str(file)!r} cannot be read: it is no text in UTF-8.") from None


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Problem(Exit.USAGE, f"{str(file)!r} cannot be written: {error.strerror}.") from None


def _beat(out: Output, said: tuple[object, ...]) -> None:
    """Show what a tool says while it runs."""
    if said and out.console.is_terminal and not out.json:
        out.remark(terminal.short_json([str(each) for each in said]))
