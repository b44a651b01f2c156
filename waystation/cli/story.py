"""What the demo shows, in six steps, on real parts: a server, worker processes, a client."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import structlog
from rich.text import Text
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError, WorkflowHistory
from temporalio.service import RPCError

from waystation.cli import INTERRUPTED
from waystation.cli.exits import Exit, Problem, problem_of
from waystation.cli.histories import replayed_runs, state_table
from waystation.cli.output import Output, error
from waystation.cli.target import Target, program_name, temporal_name
from waystation.cli.worker_process import WorkerProcess
from waystation.client import AgentClient, Invocation
from waystation.core.answer import Action, PendingCall
from waystation.core.errors import WaystationError
from waystation.embedded import EmbeddedServer
from waystation.presentation import terminal
from waystation.replay.recording import Recording

ROOT = Path(__file__).resolve().parents[2]
AGENT = "reimbursement_agent"
TOOL = "reimburse"
USER = "alex"
SMALL, LARGE = ("reimburse-50", "Please reimburse 50$ for meals"), ("reimburse-200", "Please reimburse 200$ for meals")
STEP_LIMIT_S = 45.0
"""How long anything but a person may take."""


class Demo:
    """The six steps, one method each."""

    def __init__(self, out: Output, server: EmbeddedServer, client: AgentClient, options: argparse.Namespace) -> None:
        self._out, self._server, self._client, self._options = out, server, client, options
        self._target = Target(address=server.address, program=program_name(), temporal=temporal_name())
        self._waits = asyncio.Event()
        self._answered = asyncio.Event()
        self._step = 0
        self._asking = False

    def worker(self) -> WorkerProcess:
        """Return a worker, not started yet."""
        model = ["--model", self._options.model] if self._options.model else []
        examples = str(ROOT / "examples")
        return WorkerProcess("--agents", examples, "--address", self._server.address, *model)

    async def run(self) -> Exit:
        """Show everything."""
        self._heading("A Temporal server and a worker, each a process of its own")
        self._fact("server", f"{self._server.address}, pid {self._server.pid}, keeps its data in a file")
        self._fact("Web UI", self._server.ui_url or "")
        async with self.worker() as first:
            self._introduce(first)
            self._heading("Trigger the agent twice, as any program with a Temporal client would")
            small, large = [await self._trigger(*one) for one in (SMALL, LARGE)]
            self._heading("What happens, as it is recorded")
            watching = [asyncio.create_task(self._watch(one, tag)) for one, tag in ((small, "small"), (large, "large"))]
            try:
                async with asyncio.timeout(STEP_LIMIT_S):
                    await watching[0]
                    await _first(asyncio.ensure_future(self._waits.wait()), watching[1])
                waiting = await large.pending()
                self._explain(waiting)
                self._heading("Crash: kill the worker while the call waits")
                code = await first.kill()
                self._fact("SIGKILL", f"worker pid {first.pid} is gone, exit code {code}; no worker runs now")
                await self._still_waits("the server", large)
                async with self.worker() as second:
                    self._fact("restart", f"another worker, pid {second.pid}")
                    await self._still_waits("the worker", large)
                    self._heading("Answer it")
                    action = await self._decide()
                    if action is not None:
                        await large.answer(action, by="demo")
                    async with asyncio.timeout(STEP_LIMIT_S):
                        await watching[1]
                    recording = await Recording.of(large)
                    approved = await self._conclude(large, recording.histories[-1])
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.gather(*watching, return_exceptions=True)
        self._heading("Debug it: replay the recorded history against the code as it is now")
        return await self._replay(recording, approved)

    # The steps.

    def _introduce(self, worker: WorkerProcess) -> None:
        self._fact("worker", f"pid {worker.pid}, serves {', '.join(worker.facts['agents'])}")
        if worker.facts["model"] == "demo":
            self._fact("model", "offline stand-in: a few fixed rules, no language model.")
            self._fact("", "With GOOGLE_API_KEY set, Gemini does the talking.")
        else:
            self._fact("model", str(worker.facts["model"]))

    async def _trigger(self, id: str, message: str) -> Invocation:
        invocation = await self._client.start(AGENT, message, id=id, user_id=USER)
        self._fact(id, f'"{message}"')
        return invocation

    async def _watch(self, invocation: Invocation, name: str) -> None:
        """Write events as they come, and note when the invocation begins and ends to wait."""
        tag = Text(f"{name}  ", style="cyan" if name == "small" else "green")
        seen, waited = 0, False
        async for log in invocation.follow():
            for event in log.events[seen:]:
                self._leave_prompt()
                self._out.event(event, tag=tag)
            seen = len(log.events)
            if log.waiting():
                waited = True
                if not log.busy:
                    self._waits.set()
            elif waited:
                self._answered.set()
        with contextlib.suppress(WorkflowFailureError):  # the last event said so
            result = await invocation.result()
            self._out.line(Text.assemble(" " * 10, tag, (result.status, "bold green")))

    def _explain(self, waiting: Sequence[PendingCall]) -> None:
        if not waiting:
            raise Problem(Exit.FAILED, "The agent did not ask for an approval; `--model demo` does.")
        self._out.waits(waiting, self._target)
        path = f"{self._server.ui_url}/namespaces/default/workflows/{waiting[0].invocation_id}"
        self._out.line(Text.assemble(("  Web UI   ", "dim"), path))
        self._out.line(Text.assemble(("           Send a Signal", "dim"), (' "answer" with the same JSON', "dim")))

    async def _still_waits(self, who: str, invocation: Invocation) -> None:
        async with asyncio.timeout(STEP_LIMIT_S):
            if who == "the server":
                calls = await invocation.pending()
            else:
                # A query is answered by workflow code, which has been rebuilt from history for it.
                calls = [PendingCall.model_validate(call) for call in await invocation.handle.query("pending")]
        if not calls:
            raise Problem(Exit.FAILED, f"{who} knows of no call that waits in {invocation.id}.")
        shown = f"{terminal.asked(calls[0])} [{calls[0].function_call_id}]"
        self._fact("still waits", f"{shown}, says {who}")

    async def _decide(self) -> Action | None:
        """Return the answer, or None when somebody gave it by another way meanwhile."""
        if self._options.answer:
            given: Action = self._options.answer
            self._fact("answer", f"{given}, as --answer says")
            return given
        if not sys.stdin.isatty() or os.environ.get("CI"):
            self._fact("answer", "approve; there is nobody to ask in a terminal")
            return "approve"
        self._out.line("Answer here, or in one of the other ways.", style="dim")
        while True:
            self._out.console.print(Text(f"{self._out.margin}Approve? [Y/n] ", style="bold"), end="")
            self._asking = True
            reading = asyncio.ensure_future(_line())
            try:
                await _first(reading, asyncio.ensure_future(self._answered.wait()))
            finally:
                self._leave_prompt(typed=reading.done() and not reading.exception())
            if not reading.done():
                reading.cancel()
                self._out.line("(answered by another way)", style="dim")
                return None
            match reading.result().strip().lower():
                case "" | "y" | "yes":
                    return "approve"
                case "n" | "no":
                    return "reject"

    def _leave_prompt(self, *, typed: bool = False) -> None:
        """End the line of the prompt, unless the person did by typing."""
        if self._asking and not typed:
            self._out.console.print()
        self._asking = False

    async def _conclude(self, invocation: Invocation, history: WorkflowHistory) -> bool:
        """Say how often the money was paid; return whether it should have been."""
        log = await invocation.log()
        answers = [call.answer.action for call in log.calls.values() if call.answer]
        approved = "approve" in answers
        runs, attempts = _runs(history, f"{AGENT}.{TOOL}")
        times = {0: "did not run", 1: "ran exactly once"}.get(runs, f"ran {runs} times")
        self._fact("count", f"`{TOOL}` {times} (activities: {runs}, attempts: {attempts})")
        if runs != int(approved) or attempts != runs:
            raise Problem(Exit.FAILED, f"`{TOOL}` should have run {int(approved)} times.")
        return approved

    async def _replay(self, recording: Recording, approved: bool) -> Exit:
        replayed = await replayed_runs(recording)
        size = sum(event.ByteSize() for history in recording.histories for event in history.events)
        verdict = "replays against the present code" if replayed.problem is None else replayed.problem
        self._fact("history", f"{replayed.length} events, {size / 1000:.0f} kB; it {verdict}")
        self._out.table(state_table(replayed.recording))
        return Exit.OK if replayed.problem is None else Exit.FAILED

    # How it reads.

    def _heading(self, text: str) -> None:
        self._step += 1
        self._out.console.print()
        self._out.console.print(Text.assemble((f"{self._step}  ", "bold cyan"), (text, "bold")))

    def _fact(self, label: str, text: str) -> None:
        self._out.hanging(Text(f"{label:13}  ", style="dim"), [Text(text)])


async def _first(*awaited: asyncio.Future[Any]) -> None:
    """Wait for the first to end; raise what it raised. The others go on."""
    done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    for one in done:
        one.result()


async def _line() -> str:
    """Return a line typed in the terminal. Not by a thread, which could not be interrupted.

    Raises:
        Problem: The terminal was closed.
    """
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    if line := sys.stdin.readline():
        return line
    raise Problem(Exit.FAILED, "No answer came from the terminal; the call would have gone on waiting.")


def _runs(history: WorkflowHistory, activity: str) -> tuple[int, int]:
    """Return how many activities of a type were scheduled, and how many attempts they took."""
    scheduled, attempts = set[int](), 0
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            if event.activity_task_scheduled_event_attributes.activity_type.name == activity:
                scheduled.add(event.event_id)
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            attempts += started.attempt if started.scheduled_event_id in scheduled else 0
    return len(scheduled), attempts


@contextlib.asynccontextmanager
async def _stage(out: Output, options: argparse.Namespace) -> AsyncIterator[Demo]:
    """A server with a database file of its own, both gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="waystation-demo-") as folder:
        async with EmbeddedServer(db_filename=Path(folder) / "temporal.db", ui=True) as server:
            client = await Target(address=server.address, namespace="default").connect()
            yield Demo(out, server, client, options)


async def tell(options: argparse.Namespace) -> int:
    """Run the demo; return its exit code. Whatever happens, its processes are gone afterwards."""
    task = asyncio.current_task()
    assert task is not None
    for name in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(name, task.cancel)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    out = Output(margin="   ", page=80)
    if not (ROOT / "examples").is_dir():
        error(f"There is no folder {str(ROOT / 'examples')!r}; the demo needs a checkout of Waystation.")
        return Exit.USAGE
    began = time.monotonic()
    out.console.print(Text("Waystation: an agent, a human approval, and a crash that changes nothing", style="bold"))
    try:
        async with _stage(out, options) as demo:
            code = await demo.run()
    except TimeoutError:
        error(f"A step of the demo took longer than {STEP_LIMIT_S:g} s. Server and worker are stopped.")
        return Exit.FAILED
    except (WaystationError, RPCError) as raised:
        problem = raised if isinstance(raised, Problem) else problem_of(raised, "the demo's server", None)
        error(str(problem))
        return problem.exit
    except asyncio.CancelledError:
        error("Interrupted; server and worker are stopped.")
        return INTERRUPTED
    out.console.print()
    out.line(f"{time.monotonic() - began:.0f} s; server and workers are stopped. To keep them running, and for more:")
    out.line(f"{program_name()} worker --embedded --agents examples --model demo", style="cyan")
    out.line(f"{program_name()} --help", style="cyan")
    return code
