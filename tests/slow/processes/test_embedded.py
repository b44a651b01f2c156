"""The embedded Temporal server serves, explains failures, and never outlives its owner."""

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from tests.programs import command
from waystation import embedded
from waystation.cli.command_context import to_problem
from waystation.embedded import (
    TEMPORAL_VARIABLE,
    DatabaseInUse,
    DatabaseNotWritable,
    EmbeddedServer,
    EmbeddedServerError,
    ServerFailed,
    ServerPortTaken,
    TemporalNotFound,
    are_usual_ports_free,
    find_or_start,
    find_temporal,
)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server((embedded.HOST, 0)) as listener:
        yield listener.getsockname()[1]


def runs(pid: int) -> bool:
    """Return whether the process runs and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def server_processes() -> set[int]:
    return {child.pid for child in psutil.Process().children() if runs(child.pid)}


async def test_the_server_has_the_search_attributes() -> None:
    """The server is usable inside the block at once, including searches."""
    async with EmbeddedServer() as server:
        client = await Client.connect(server.address)
        request = ListSearchAttributesRequest(namespace="default")
        attributes = await client.operator_service.list_search_attributes(request)
        kinds = {name: IndexedValueType.Name(kind) for name, kind in attributes.custom_attributes.items()}
        assert {name: kind for name, kind in kinds.items() if name.startswith("Waystation")} == {
            "WaystationAgent": "INDEXED_VALUE_TYPE_KEYWORD",
            "WaystationSession": "INDEXED_VALUE_TYPE_KEYWORD",
            "WaystationTenant": "INDEXED_VALUE_TYPE_KEYWORD",
            "WaystationUser": "INDEXED_VALUE_TYPE_KEYWORD",
            "WaystationStatus": "INDEXED_VALUE_TYPE_KEYWORD",
            "WaystationPending": "INDEXED_VALUE_TYPE_KEYWORD_LIST",
        }
        assert server.ui_url is None


async def test_the_server_has_the_requested_namespace() -> None:
    """The server creates a missing namespace."""
    async with EmbeddedServer(namespace="orders") as server:
        client = await Client.connect(server.address, namespace="orders")
        request = DescribeNamespaceRequest(namespace="orders")
        described = await client.workflow_service.describe_namespace(request)
        assert described.namespace_info.name == "orders"


async def test_dynamic_config_reaches_the_server() -> None:
    """A setting is passed to the server as JSON; this one can be read back by a client."""
    async with EmbeddedServer(dynamic_config={"limit.memoSize.error": 123_456}) as server:
        client = await Client.connect(server.address)
        request = DescribeNamespaceRequest(namespace="default")
        described = await client.workflow_service.describe_namespace(request)
        assert described.namespace_info.limits.memo_size_limit_error == 123_456


async def test_the_server_serves_the_web_ui() -> None:
    """The Web UI is ready when the block is entered."""
    async with EmbeddedServer(ui=True) as server:
        assert server.ui_url is not None
        page = await asyncio.to_thread(urllib.request.urlopen, server.ui_url)
        with page:
            assert page.status == 200


async def test_several_servers_start_at_the_same_time() -> None:
    """Servers that choose their ports at the same time choose different ports."""
    servers = [EmbeddedServer() for _ in range(4)]
    await asyncio.gather(*(server.__aenter__() for server in servers))
    try:
        assert len({server.address for server in servers}) == 4
    finally:
        await asyncio.gather(*(server.__aexit__() for server in servers))


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
async def test_a_file_survives_a_restart(tmp_path: Path, crash: bool) -> None:
    """A workflow waits on the next server with the same file, regardless of how the first server ended."""
    db_filename = tmp_path / "made when missing" / "temporal.db"
    async with EmbeddedServer(db_filename=db_filename) as server:
        client = await Client.connect(server.address)
        await client.start_workflow("Approval", id="parked", task_queue="nobody")
        if crash:
            os.kill(server.pid, signal.SIGKILL)
            while runs(server.pid):
                await asyncio.sleep(0.005)
    async with EmbeddedServer(db_filename=db_filename) as server:
        client = await Client.connect(server.address)
        described = await client.get_workflow_handle("parked").describe()
        assert described.status == WorkflowExecutionStatus.RUNNING


async def test_a_file_is_served_once(tmp_path: Path) -> None:
    """A second server on an open file is refused, and the error has the address of the first one."""
    db_filename = tmp_path / "temporal.db"
    async with EmbeddedServer(db_filename=db_filename) as server:
        with pytest.raises(DatabaseInUse, match="in use by the server at") as refused:
            await EmbeddedServer(db_filename=db_filename).__aenter__()
        assert refused.value.address == server.address


async def test_programs_share_a_server_that_outlives_them(tmp_path: Path) -> None:
    """Whichever program comes first starts the server. It serves the others until a command stops it."""
    program = (
        "import asyncio, pathlib, waystation.embedded as e; print(asyncio.run(e.find_or_start(pathlib.Path('t.db'))))"
    )
    first = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=tmp_path, stdout=subprocess.PIPE)
    address, out = await asyncio.gather(find_or_start(tmp_path / "t.db"), first.communicate())
    pid = int((tmp_path / "t.db.lock").read_text().split()[1])
    try:
        assert out[0].decode().split()[-1] == address
        assert await find_or_start(tmp_path / "t.db") == address
        await Client.connect(address)
        stopped = await command("server", "stop", "--db", str(tmp_path / "t.db"))
        assert (stopped.code, stopped.out) == (0, f"Stopped the server at {address}.\n")
        assert not runs(pid)
        assert (await command("server", "stop", "--db", str(tmp_path / "t.db"))).code == 8
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_a_program_killed_while_it_starts_a_server_leaves_a_usable_folder(tmp_path: Path) -> None:
    """The server writes its process ID before it opens the file, so other programs and `server stop` find it."""
    program = "import asyncio, pathlib, waystation.embedded as e; asyncio.run(e.find_or_start(pathlib.Path('t.db')))"
    first = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=tmp_path)
    while not (servers := psutil.Process(first.pid).children()):
        assert first.returncode is None
        await asyncio.sleep(0)
    first.kill()
    await first.wait()
    try:
        client = await Client.connect(await find_or_start(tmp_path / "t.db"))
        assert (await client.count_workflows("WaystationAgent = 'none'")).count == 0
        assert (await command("server", "stop", "--db", str(tmp_path / "t.db"))).code == 0
        assert not any(runs(server.pid) for server in servers)
    finally:
        for server in servers:
            with suppress(psutil.NoSuchProcess):
                server.kill()


async def test_other_users_cannot_open_the_files_of_a_project(tmp_path: Path) -> None:
    """Each start closes the folder and the files, which an earlier version may have left open."""
    db_filename = tmp_path / ".waystation" / "dev.db"
    modes = list[dict[str, str]]()
    for _ in range(2):
        async with EmbeddedServer(db_filename=db_filename):
            files = [db_filename.parent, *sorted(db_filename.parent.iterdir())]
            modes.append({path.name: stat.filemode(path.stat().st_mode) for path in files})
            for path in files:
                path.chmod(0o755)
    names = ("dev.db", "dev.db-shm", "dev.db-wal", "dev.db.lock")
    assert modes == [{".waystation": "drwx------"} | dict.fromkeys(names, "-rw-------")] * 2


async def test_a_server_waits_for_the_lock_of_an_ending_one(tmp_path: Path) -> None:
    """A killed server holds its file until its last thread ends; the next server starts after that."""
    db_filename = tmp_path / "temporal.db"
    with db_filename.with_name("temporal.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = EmbeddedServer(db_filename=db_filename)
        starting = asyncio.create_task(server.__aenter__())
        await asyncio.sleep(0)
        assert not starting.done()
    await starting
    await server.__aexit__()


async def test_a_taken_port_is_named_in_the_error(taken_port: int) -> None:
    """A requested port that is taken fails at once, and the error names it."""
    with pytest.raises(ServerPortTaken, match=f"Port {taken_port} ") as failed:
        await EmbeddedServer(port=taken_port).__aenter__()
    assert failed.value.port == taken_port
    with pytest.raises(ServerPortTaken, match=f"Port {taken_port} "):
        await EmbeddedServer(ui=True, ui_port=taken_port).__aenter__()


async def test_the_port_of_another_server_counts_as_taken() -> None:
    """A server that answers on the port is not mistaken for the one that should start there."""
    async with EmbeddedServer() as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(ServerPortTaken):
            await EmbeddedServer(port=port).__aenter__()


async def test_two_servers_never_share_a_requested_port() -> None:
    """Of two servers started at the same time on one port, one serves and the other fails with the reason."""
    port = embedded._free_port()
    servers = [EmbeddedServer(port=port) for _ in range(2)]
    outcomes = await asyncio.gather(*(server.__aenter__() for server in servers), return_exceptions=True)
    serving = [outcome for outcome in outcomes if isinstance(outcome, EmbeddedServer)]
    for server in serving:
        await server.__aexit__()
    assert len(serving) == 1
    assert any(isinstance(outcome, EmbeddedServerError) for outcome in outcomes)


async def test_a_port_can_be_used_again_at_once() -> None:
    """A server can restart on the usual port although clients were connected to it."""
    async with EmbeddedServer() as server:
        port = int(server.address.rpartition(":")[2])
        await Client.connect(server.address)
    async with EmbeddedServer(port=port) as server:
        assert server.address == f"127.0.0.1:{port}"


async def test_a_port_lost_during_the_start_is_replaced(monkeypatch: pytest.MonkeyPatch, taken_port: int) -> None:
    """A port that is lost between choosing and using it causes another attempt."""
    ports = [taken_port, *(embedded._free_port() for _ in range(3))]
    chosen = iter(ports)
    monkeypatch.setattr(embedded, "_free_port", lambda: next(chosen))
    # With a Web UI, or else the first attempt would wait for the listener on the taken port to answer.
    async with EmbeddedServer(ui=True) as server:
        assert server.address == f"127.0.0.1:{ports[2]}"
        assert server.ui_url == f"http://127.0.0.1:{ports[3]}"


async def test_a_server_that_cannot_start_reports_the_reason(tmp_path: Path) -> None:
    """The error contains the output of the server."""
    with pytest.raises(ServerFailed, match="database") as failed:
        await EmbeddedServer(db_filename=tmp_path).__aenter__()
    assert failed.value.stderr in str(failed.value)
    assert os.stat(tmp_path).st_mode & 0o700 == 0o700  # a folder is not closed like a file


async def test_a_full_disk_and_an_unusable_folder_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server itself reports a full disk in several ways."""
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseNotWritable, match=r"file/t\.db cannot be written: "):
        await EmbeddedServer(db_filename=tmp_path / "file" / "t.db").__aenter__()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    with pytest.raises(DatabaseNotWritable, match="No space left on device"):
        await EmbeddedServer(db_filename=tmp_path).__aenter__()
    unwritten = RPCError("shard status unknown", RPCStatusCode.UNAVAILABLE, b"")
    assert "Its disk may be full" in str(to_problem(unwritten, "here", None))


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("", r"Install it with: pip install 'waystation\[embedded\]', or name its path in WAYSTATION_TEMPORAL\."),
        ("no/such", "WAYSTATION_TEMPORAL names 'no/such', which is not a program"),
    ],
)
def test_a_missing_program_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, problem: str
) -> None:
    """Without `temporal` the error says how to install it, or what to correct."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(TEMPORAL_VARIABLE, place)
    with pytest.raises(TemporalNotFound, match=problem):
        find_temporal()


def test_the_named_program_comes_first_then_the_one_beside_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The named program comes first, then the one beside the interpreter, then the one on the PATH."""
    programs = [tmp_path / place / "temporal" for place in ("named", "venv", "elsewhere")]
    for program in programs:
        program.parent.mkdir()
        shutil.copy(shutil.which("true") or "", program)
    monkeypatch.setenv(TEMPORAL_VARIABLE, str(programs[0]))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    for program in programs:
        assert find_temporal() == program
        program.unlink()
        monkeypatch.delenv(TEMPORAL_VARIABLE, raising=False)


def test_the_usual_ports_are_free_unless_one_is_taken(monkeypatch: pytest.MonkeyPatch, taken_port: int) -> None:
    """Both usual ports must be free, since a server takes both."""
    monkeypatch.setattr(embedded, "USUAL_PORT", embedded._free_port())
    monkeypatch.setattr(embedded, "USUAL_UI_PORT", embedded._free_port())
    assert are_usual_ports_free()
    monkeypatch.setattr(embedded, "USUAL_UI_PORT", taken_port)
    assert not are_usual_ports_free()


@pytest.mark.parametrize("keep", [False, True], ids=["memory", "file"])
async def test_no_process_is_left(tmp_path: Path, keep: bool) -> None:
    """The server has ended when the block is left."""
    async with EmbeddedServer(db_filename=tmp_path / "temporal.db" if keep else None) as server:
        assert runs(server.pid)
    assert not psutil.pid_exists(server.pid)


async def test_no_process_is_left_when_the_start_is_cancelled() -> None:
    """Cancelling the start ends the server."""
    before = server_processes()
    starting = asyncio.ensure_future(EmbeddedServer().__aenter__())
    while server_processes() == before:
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert server_processes() == before


async def test_ctrl_c_does_not_reach_the_server() -> None:
    """A terminal signals its process group; the server is in another group, so that the worker can drain."""
    async with EmbeddedServer() as server:
        assert os.getpgid(server.pid) != os.getpgid(0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_the_server_dies_with_a_killed_parent() -> None:
    """A parent that is killed without cleanup leaves no server."""
    story = """
import asyncio
import fcntl
from waystation.embedded import EmbeddedServer

async def serve():
    async with EmbeddedServer() as server:
        print("pid", server.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(serve())
"""
    with subprocess.Popen([sys.executable, "-c", story], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = next(int(line.split()[1]) for line in parent.stdout if line.startswith("pid "))
        assert runs(pid)
        parent.kill()
    deadline = time.monotonic() + 10
    while runs(pid):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.005)
