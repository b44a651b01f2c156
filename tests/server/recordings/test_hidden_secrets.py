"""Values whose names suggest secrets are hidden in every output for people, and complete in JSON."""

import asyncio
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.programs import Ran, command
from tests.server.web.sites import page_of, path_of, site
from tests.steps import answer_and_finish, approve_and_finish, start_and_wait, wait_until
from waystation.agents import Agent
from waystation.apps.registry import Registry
from waystation.cli.command_context import ServerTarget, write_waits
from waystation.cli.output import Output
from waystation.cli.pending_calls import show_call, write_list
from waystation.cli.program import app
from waystation.core import ids
from waystation.core.approval import PendingCall
from waystation.embedded import EmbeddedServer
from waystation.replay import Recording, rerun_tool
from waystation.testing import ScriptedModel, calls, says, serving
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

CANARY = "hunter2"
"""The beginning of each secret."""


class Recorded(NamedTuple):
    """The record of two invocations whose secrets differ."""

    files: list[str]
    pending: PendingCall


def agent(number: int) -> Agent:
    """Return an agent whose call, result and state contain secrets at different depths."""

    def log_in(user: str, password: str, profile: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        tool_context.state["password"] = password
        tool_context.state["account"] = {"user": user, "api_key": f"{CANARY}-state-{number}"}
        return {"token": f"{CANARY}-result-{number}", "account": [{"clientSecret": f"{CANARY}-inner-{number}"}]}

    profile = {"city": "Bern", "credentials": {"pin": f"{CANARY}-pin-{number}"}}
    args = {"user": "ada", "password": f"{CANARY}-argument-{number}", "profile": profile}
    model = ScriptedModel(calls(("log_in", args)), says("Done."))
    return Agent(name="clerk", model=model, tools=[FunctionTool(log_in, require_confirmation=True)])


@pytest.fixture(scope="module")
async def recorded(server: EmbeddedServer, payload_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Record two invocations, once for all tests."""
    folder, waiting = tmp_path_factory.mktemp("recorded"), None
    files = [folder / f"{number}.json" for number in (1, 2)]
    for number, file in enumerate(files, 1):
        async with serving(agent(number), server=server, store=payload_store) as env:
            invocation = await env.client.start("clerk", "Log in.")
            (waiting, *_) = await wait_until(invocation.pending, "the call to wait")
            await answer_and_finish(invocation, "edit", args={**waiting.args, "password": f"{CANARY}-edited-{number}"})
            ran = await command("--address", server.address, "history", invocation.id)
            await asyncio.to_thread(file.write_text, ran.out)
    assert waiting
    return Recorded([str(file) for file in files], waiting)


@pytest.mark.slow
async def test_web_pages_hide_secrets(server: EmbeddedServer, payload_store: Path) -> None:
    """Each secret of a call is behind a click on its own row. The pages with events contain none."""
    async with (
        serving(agent(1), server=server, store=payload_store) as env,
        site(env.client) as web,
        web.browser() as me,
    ):
        invocation = await start_and_wait(env.client.start("clerk", "Log in."))
        path = path_of(ids.approval(invocation.id, "fc-1"))
        page = (await me.page(path)).text
        assert page.count("Hidden, because a name suggests a secret") == 2
        assert CANARY not in re.sub(r"<details><summary>Hidden.*?</details>", "", page, flags=re.DOTALL)
        fields = (await me.page(f"{path}/edit")).text
        assert CANARY not in fields.partition("Edit as JSON")[0]
        await approve_and_finish(invocation)
        for name in ("", "/rows", "/timeline"):
            events = (await me.page(f"{page_of(invocation)}{name}")).text
            assert (CANARY in events, "log_in" in events) == (False, True)


@pytest.fixture(scope="module")
def first(recorded: Recorded) -> str:
    """Return the history file of the first invocation."""
    return recorded.files[0]


TEXTS = {
    "events": ("events", "FIRST"),
    "events at a waiting call": ("events", "FIRST", "--at", "2"),
    "events with changes": ("events", "FIRST", "--diff", "0", "6"),
    "state": ("state", "FIRST", "--at", "6"),
    "state with changes": ("state", "FIRST", "--diff", "0", "6"),
    "prompt": ("prompt", "FIRST"),
    "prompt with changes": ("prompt", "FIRST", "--diff", "1", "6"),
    "diff": ("diff", "FIRST", "SECOND"),
    "trace": ("replay", "FIRST"),
    "report": ("report", "FIRST"),
}


async def run_on(recorded: Recorded, *arguments: str) -> Ran:
    """Run a command on the history files."""
    return await command(*(dict(zip(("FIRST", "SECOND"), recorded.files, strict=True)).get(a, a) for a in arguments))


@pytest.mark.slow
@pytest.mark.parametrize("output", TEXTS)
async def test_commands_hide_values_whose_names_suggest_secrets(recorded: Recorded, output: str) -> None:
    """The text shows that there is a value, but hides the value."""
    done = await run_on(recorded, *TEXTS[output])
    assert CANARY not in done.out + done.err
    assert "…" in done.out


@pytest.mark.parametrize("output", [output for output in TEXTS if output != "diff"])
async def test_json_is_complete(recorded: Recorded, output: str) -> None:
    """JSON is for programs, which compare digests and replay histories."""
    assert CANARY in (await run_on(recorded, *TEXTS[output], "--json")).out


def test_the_debugger_hides_secrets(first: str) -> None:
    """Secrets are hidden in every view: the event, its neighbors, facts, state, prompt, and the event as JSON."""
    lines = "".join(f"{line}\n" for line in ["e", ":state", ":events", "m", *["s", "e", ":state"] * 25, "m"])
    text = CliRunner().invoke(app, ["debug", first], input=lines).output
    assert '"password": "…"' in text
    assert CANARY not in text


def on_paper(write: Any) -> str:
    """Return what a function writes to an output."""
    out = Output(page=400)
    out.console = Console(file=io.StringIO(), width=10_000, color_system=None)
    write(out)
    stream = out.console.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


@pytest.mark.parametrize(
    "write",
    [
        lambda out, call: write_list(out, ServerTarget(), [call]),
        lambda out, call: write_waits(out, ServerTarget(), [call]),
        lambda out, call: show_call(out, call),
    ],
    ids=["pending", "pending with details", "approve"],
)
def test_a_pending_call_hides_secrets(recorded: Recorded, write: Any) -> None:
    """The list, the details and the question before an answer all hide them."""
    assert CANARY in str(recorded.pending.args)
    text = on_paper(lambda out: write(out, recorded.pending))
    assert "log_in" in text
    assert CANARY not in text


async def test_a_rerun_hides_secrets(first: str) -> None:
    """The table of the recorded and the new result hides both."""
    recording = await Recording.read(first)
    event = next(e.index for e in recording.events if e.function_responses() and e.actions.state_delta)
    assert event is not None
    rerun = await rerun_tool(recording, event + 1, agents=Registry.of(agent(2)))
    assert CANARY in str(rerun.to_json())
    text = on_paper(lambda out: out.show(rerun))
    assert "response.token" in text
    assert CANARY not in text
