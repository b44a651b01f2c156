"""The command `waystation dev`: a server, a worker that restarts when files change, the web application and a chat."""

import asyncio
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from waystation.cli.command_context import CommandContext, CommandProblem, Exit, ServeUi
from waystation.cli.invocations import is_polled
from waystation.cli.output import Output
from waystation.cli.sessions import chat
from waystation.core.contract import DEFAULT_APP, DEFAULT_USER
from waystation.core.payload import JsonObject
from waystation.embedded import USUAL_PORT, USUAL_UI_PORT, EmbeddedServer, are_usual_ports_free, bind_to_this_process
from waystation.presentation import terminal
from waystation.project_file import current_project
from waystation.stop_signals import handle_signals

DATABASE = Path(".waystation", "dev.db")
WATCHED = (".py", ".json", ".toml", ".yaml", ".yml", ".md", ".txt")
"""Endings of the files whose changes restart the worker: code, settings and prompts."""
LOOK_S = 0.15
"""Seconds between two looks at the files."""
WEB_PORT = 8288
FORKSERVER = "forkserver"
"""A way to start processes of Python that Windows does not have."""
STOP_LIMIT_S = 3.0
"""How long to wait for a worker to end before it is killed."""
POLL_LOOK_S = 0.03
"""Seconds between two looks for the first poll of a worker that is ready."""


async def dev(
    ctx: CommandContext,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Agent package, or folder that contains agent packages. Default: those of the project file, or this "
            "folder.",
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Agent to chat with. Default: the first by name.")] = None,
    model: Annotated[
        Literal["demo", "real"] | None,
        typer.Option(help="Reply with the demo model or with the agents' models. Default: demo without an API key."),
    ] = None,
    db: Annotated[Path, typer.Option(metavar="FILE", help="File for the data of the server.")] = DATABASE,
    port: Annotated[int, typer.Option(help="Port of the web application, or 0 for any.", min=0, max=65_535)] = WEB_PORT,
    ui: ServeUi = False,
) -> Exit:
    """Run agents while you write them: Temporal server, worker, web application and a chat, on one screen.

    The worker restarts when a file in DIR changes. Invocations and pending calls survive that, and they survive a
    restart of this command, because the server keeps them in a file. Outside a terminal, there is no chat.
    """
    if FORKSERVER not in multiprocessing.get_all_start_methods():
        raise CommandProblem(
            Exit.USAGE,
            f"`waystation dev` does not run on {sys.platform}. Use `waystation worker --embedded --agents DIR --model "
            "demo`, and `waystation chat AGENT` in a second terminal.",
        )
    folders, watched = _find_folders(folder)
    if missing := [str(place) for place in folders if not place.is_dir()]:
        raise CommandProblem(
            Exit.USAGE, f"{missing[0]!r} is not a folder with an agent. Create one with: {ctx.target.program} new NAME"
        )
    started_at, usual = time.time(), are_usual_ports_free()
    server = EmbeddedServer(
        db_filename=db, port=USUAL_PORT if usual else None, ui_port=USUAL_UI_PORT if usual else None, ui=ui
    )
    async with server:
        ctx.obj = replace(ctx.target, address=server.address, namespace="default")
        demo = model == "demo" or (model is None and not _has_credentials())
        arguments = ["--agents", *map(str, folders), *_target_options(ctx), "--allow-overrides", "--drain", "1"]
        worker = DevelopmentWorker(
            ctx.out,
            watched,
            [*arguments, "--log-format", "json", *(["--model", "demo"] if demo else [])],
            is_polled_by=partial(is_polled, await ctx.connect()),
            started_at=started_at,
        )
        web = asyncio.create_task(_serve_web(ctx, port))
        try:
            ctx.out.facts(
                [
                    ("server", f"{server.address}, with the data in {db.absolute()}"),
                    *([("Temporal", f"{server.ui_url} shows its workflows")] if ui else []),
                    ("model", "demo model (no API key is set)" if demo and model is None else model or "as declared"),
                    ("watching", f"{watched.absolute()}: the worker restarts when a file changes"),
                ]
            )
            return await _chat_or_wait(ctx, worker, agent, folders)
        finally:
            web.cancel()
            with suppress(asyncio.CancelledError):
                await web
            await asyncio.to_thread(worker.close)


def _find_folders(folder: Path | None) -> tuple[list[Path], Path]:
    """Return the folders with agents, and the folder to watch: the project's, if its file names the agents."""
    project = current_project()
    if folder is None and project and (agents := project.get("agents")):
        return [Path(place) for place in agents], project.file.parent
    return [folder or Path()], folder or Path()


def _target_options(ctx: CommandContext) -> list[str]:
    """Return the options by which other processes use the same server, task queue, store and project file."""
    target = ctx.target
    options = ["--address", str(target.address), "--namespace", "default", "--project-file", target.project_file]
    return [*options, "--task-queue", target.task_queue, *(["--store", target.store] if target.store else [])]


async def _chat_or_wait(
    ctx: CommandContext, worker: "DevelopmentWorker", agent: str | None, folders: list[Path]
) -> Exit:
    """Start the worker, and chat with an agent until the user leaves. Outside a terminal, wait for a signal instead."""
    serving = asyncio.create_task(worker.keep_serving())
    agents = await worker.wait_until_ready()
    if agent is not None and agent not in agents:
        raise CommandProblem(
            Exit.USAGE, f"No agent {agent!r} in '{', '.join(map(str, folders))}'. Agents: {', '.join(agents)}."
        )
    if sys.stdin.isatty() and sys.stdout.isatty():
        return await chat(ctx, agent or agents[0], None, DEFAULT_USER, DEFAULT_APP, None, None, json=False)
    stop = asyncio.Event()
    handle_signals(stop.set, "SIGTERM")
    await asyncio.wait([asyncio.create_task(stop.wait()), serving], return_when=asyncio.FIRST_COMPLETED)
    return Exit.OK


def _has_credentials() -> bool:
    """Return whether the environment has credentials for any provider of models, or names an endpoint of models."""
    from waystation.models.providers import PROVIDERS, has_gateway

    return has_gateway() or any(os.environ.get(name) for provider in PROVIDERS for name in provider.variables)


class DevelopmentWorker:
    """A worker in a process of its own, which is replaced when a file of the agents changes.

    Processes are forked from a server process that has imported everything but the agents, so they start quickly.
    """

    def __init__(
        self,
        out: Output,
        folder: Path,
        arguments: list[str],
        *,
        is_polled_by: Callable[[int], Awaitable[bool]],
        started_at: float,
    ) -> None:
        """Configure a worker.

        Args:
            out: Where output and problems of the worker are written.
            folder: The folder whose files are watched.
            arguments: The options of the worker.
            is_polled_by: Returns whether the process with this ID has polled the task queue.
            started_at: When the command was started, in seconds, for the time that the first worker takes.
        """
        self._out, self._folder, self._arguments = out, folder, arguments
        self._is_polled_by, self._saved_at = is_polled_by, started_at
        self._context: Any = multiprocessing.get_context(FORKSERVER)
        self._context.set_forkserver_preload([__name__, "waystation.worker.main"])
        self._processes: list[Any] = []
        self._loop = asyncio.get_running_loop()
        self._agents: asyncio.Future[list[str]] = self._loop.create_future()
        self._is_closing = False
        self._announcement: asyncio.Task[None] | None = None

    async def wait_until_ready(self) -> list[str]:
        """Return the names of the agents as soon as a worker serves them. Until then, problems are written."""
        return await asyncio.shield(self._agents)

    async def keep_serving(self) -> None:
        """Start a worker, and replace it whenever a file changes."""
        looked_at, before = time.time(), await asyncio.to_thread(_find_times, self._folder)
        self._start()
        while True:
            await asyncio.sleep(LOOK_S)
            looked_before, looked_at = looked_at, time.time()
            times = await asyncio.to_thread(_find_times, self._folder)
            if changed := sorted({path for path, _ in times.items() ^ before.items()}):
                # A file that was moved here has an earlier time, and a deleted one has none.
                self._saved_at = max(looked_before, *(times.get(path, 0) / 1e9 for path in changed))
                before = times
                self._out.remark(f"{', '.join(changed)} changed")
                self._processes[-1].terminate()
                self._start()

    def close(self) -> None:
        """Stop the worker. Tools that do not end within a few seconds are killed."""
        self._is_closing = True
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(STOP_LIMIT_S)
            process.kill()

    def _start(self) -> None:
        reader, writer = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(writer, self._arguments), daemon=True)
        process.start()
        writer.close()
        self._processes = [*(other for other in self._processes if other.is_alive()), process]
        threading.Thread(target=self._read, args=(process, reader), daemon=True).start()

    def _read(self, process: Any, reader: Connection) -> None:
        """Write each line of a worker's output, and whether it ended by itself."""
        with suppress(RuntimeError), os.fdopen(os.dup(reader.fileno()), errors="replace") as lines:
            reader.close()
            for line in lines:
                self._loop.call_soon_threadsafe(self._write, line.rstrip("\n"), process)
            process.join()
            self._loop.call_soon_threadsafe(self._report_end, process)

    def _report_end(self, process: Any) -> None:
        if process is self._processes[-1] and process.exitcode and not self._is_closing:
            self._out.remark("The worker has stopped. It starts again when a file changes.")

    async def _announce(self, agents: list[str], pid: int) -> None:
        """Report how long it took from the change of a file until the worker polls, and not only starts."""
        saved_at = self._saved_at
        while not await self._is_polled_by(pid):  # noqa: ASYNC110 - the server does not report polls
            await asyncio.sleep(POLL_LOOK_S)
        self._out.remark(f"serving {', '.join(agents)} after {time.time() - saved_at:.2f} s")
        if not self._agents.done():
            self._agents.set_result(agents)

    def _write(self, line: str, process: Any) -> None:
        """Write what a worker logged, as far as an author needs it. Other lines are output of tools."""
        try:
            entry: JsonObject = json.loads(line)
            event, level = str(entry["event"]), entry.get("level")
        except (ValueError, TypeError, KeyError):
            self._out.line(line)
            return
        if event == "worker.ready":
            if self._announcement:
                self._announcement.cancel()
            agents = [str(name) for name in entry["agents"]]
            self._announcement = asyncio.create_task(self._announce(agents, process.pid))
        elif level in ("warning", "error", "critical"):
            text = entry.get("problem") or ", ".join(
                f"{name}={value}" for name, value in entry.items() if name not in ("event", "level", "timestamp")
            )
            place = f"{entry['place']}: " if not text.startswith(str(entry.get("place", ""))) else ""
            style = "yellow" if level == "warning" else "red"
            self._out.line(Text(terminal.escape(f"{event}: {place}{text}"), style=style))


def _find_times(folder: Path) -> dict[str, int]:
    """Return when each watched file was changed. Hidden folders, environments and caches are left out."""
    times = dict[str, int]()
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__", "node_modules"))]
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        for name in files:
            if name.endswith(WATCHED):
                path = os.path.join(place, name)
                with suppress(OSError):  # an editor replaced the file
                    times[path] = os.stat(path).st_mtime_ns
    return times


def _work(writer: Connection, arguments: list[str]) -> None:
    """Run a worker whose output goes to `writer`, until it is stopped or the parent process ends."""
    for number in (1, 2):
        os.dup2(writer.fileno(), number)
    for stream in (sys.stdout, sys.stderr):
        getattr(stream, "reconfigure", dict)(line_buffering=True)
    # A cached file is found by the time of its source in seconds, so it might be that of an earlier change.
    sys.dont_write_bytecode = True
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from waystation.worker.main import main

    sys.exit(main(arguments, program="waystation dev"))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


async def _serve_web(ctx: CommandContext, port: int) -> None:
    """Serve the web application in a process of its own, and write the link for logging in."""
    command = [sys.executable, "-m", "waystation.cli", *_target_options(ctx), "web", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(
        *bind_to_this_process(command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            text = line.decode(errors="replace").strip()
            serving = text.partition("Serving at ")[2].partition(";")[0]
            _, is_link, link = text.partition("log in a browser once with ")
            if serving:
                ctx.out.line(f"  then     {serving}/agents, to chat in the same browser")
            elif is_link:
                ctx.out.line(f"  web app  {link}, to log in once")  # in one piece, so that terminals make it a link
            else:
                ctx.out.line(f"  web app  {text.removeprefix('waystation: ')}")
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
