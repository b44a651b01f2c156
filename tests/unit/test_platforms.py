"""Guards of code for other platforms. The tests run on Linux with fakes of the other platforms' modules."""

import ast
import asyncio
import builtins
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.paths import ROOT, syntax_tree
from waystation import embedded
from waystation.cli.terminal_input import TerminalUser
from waystation.embedded import bind_to_this_process
from waystation.stop_signals import handle_signals
from waystation.worker import main, watchdog

ELSEWHERE = "win32", "darwin"
MODULES = {"fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "resource", "termios", "tty", "uvloop", "winreg"}
"""Modules that some platforms lack."""
FUNCTIONS = {
    *("os.chown", "os.fchmod", "os.fork", "os.getpgid", "os.getuid", "os.geteuid", "os.killpg", "os.mkfifo"),
    *("os.setsid", "os.sysconf", "os.uname", "signal.setitimer", "signal.SIGALRM", "signal.SIGHUP", "signal.SIGKILL"),
    *("signal.SIGQUIT", "signal.SIGUSR1", "signal.SIGUSR2", "signal.SIGCHLD", "socket.AF_UNIX"),
}
"""Functions and constants that Windows lacks."""
MENTION = re.compile(rf"\b({'|'.join((*MODULES, *FUNCTIONS, 'add_signal_handler'))})\b")
"""A pattern that saves parsing most files."""
GUARDED = {
    ("cli/terminal_input.py", "termios"),  # suppresses ImportError
    ("embedded.py", "fcntl"),  # msvcrt on Windows
    ("embedded.py", "msvcrt"),
    ("embedded.py", "signal.SIGKILL"),  # not reached on Windows
    ("project_file.py", "os.geteuid"),  # used only on POSIX
    ("stop_signals.py", "loop.add_signal_handler"),  # handles NotImplementedError
    ("worker/main.py", "uvloop"),  # handles ImportError
    ("worker/watchdog.py", "signal.SIGALRM"),  # used only if `signal` has it
    ("worker/watchdog.py", "resource"),  # not reached on Windows
    ("worker/watchdog.py", "signal.setitimer"),
    ("worker/watchdog.py", "os.sysconf"),  # reached only if /proc exists
}
"""Modules of the package, with the platform names that they use behind a guard."""


@pytest.fixture
def usual_handlers() -> Iterator[None]:
    """Restore the handler of SIGTERM."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def platform_names(path: Path) -> Iterator[str]:
    """Yield the names in a file that some platforms lack."""
    if not MENTION.search(path.read_text()):
        return
    for node in ast.walk(syntax_tree(path)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name in MODULES)
            case ast.ImportFrom(module=str(module)) if module in MODULES:
                yield module
            case ast.Attribute(attr=attr, value=ast.Name(id=module)) if f"{module}.{attr}" in FUNCTIONS:
                yield f"{module}.{attr}"
            case ast.Attribute(attr="add_signal_handler"):
                yield "loop.add_signal_handler"


def test_platform_names_are_used_only_behind_guards() -> None:
    """On other platforms, such a name is an ImportError or an AttributeError. Add a guard before you add a row."""
    package = ROOT / "waystation"
    folders = [package, *(folder for folder in package.iterdir() if folder.is_symlink())]
    used = {
        (path.relative_to(package).as_posix(), name)
        for folder in folders
        for path in folder.rglob("*.py")
        for name in platform_names(path)
    }
    assert used == GUARDED


@pytest.mark.usefixtures("usual_handlers")
@pytest.mark.parametrize("has_handlers", [True, False], ids=["posix", "windows"])
async def test_a_signal_stops_a_program_on_every_platform(monkeypatch: pytest.MonkeyPatch, has_handlers: bool) -> None:
    """A signal stops a program, although event loops on Windows have no signal handlers, and Windows has no SIGHUP."""
    stopped = asyncio.Event()

    def refuse(*_: object) -> None:
        raise NotImplementedError

    loop = asyncio.get_running_loop()
    if not has_handlers:
        monkeypatch.setattr(type(loop), "add_signal_handler", refuse)
        monkeypatch.delattr(signal, "SIGHUP")
    handle_signals(stopped.set, "SIGTERM", *(() if has_handlers else ("SIGHUP",)))
    try:
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            await stopped.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@pytest.mark.parametrize("platform", ELSEWHERE)
def test_other_platforms_start_a_child_process_directly(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """Other platforms start a child directly, because only Linux can kill a process when its parent ends."""
    monkeypatch.setattr(sys, "platform", platform)
    assert bind_to_this_process(["temporal", "server"]) == ["temporal", "server"]


@pytest.mark.parametrize("platform", ELSEWHERE)
def test_other_platforms_read_memory_without_proc(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """macOS reports the maximum so far. On Windows, --max-rss has no effect."""

    def refuse(*_: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(sys, "platform", platform)
    assert (watchdog.read_rss() > 0) is (platform == "darwin")


class Msvcrt:
    """A fake of the locks of Windows' C runtime: each open file locks bytes from its position, for itself alone."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        """The file descriptors that hold a lock, by the position of the locked byte."""

    def locking(self, fd: int, mode: int, count: int) -> None:
        """Lock one byte, or raise OSError if it is locked."""
        assert (mode, count) == (self.LK_NBLCK, 1)
        if self.locked.setdefault(os.lseek(fd, 0, os.SEEK_CUR), fd) != fd:
            raise PermissionError


@pytest.fixture
def msvcrt(monkeypatch: pytest.MonkeyPatch) -> Msvcrt:
    """Simulate Windows."""
    fake = Msvcrt()
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(embedded, "msvcrt", fake, raising=False)
    monkeypatch.delattr(embedded, "fcntl")
    return fake


def test_on_windows_a_lock_leaves_the_file_readable(msvcrt: Msvcrt, tmp_path: Path) -> None:
    """The lock is far behind the content, because locked bytes cannot be read on Windows.

    Only one open file can hold it.
    """
    path = tmp_path / "dev.db.lock"
    path.write_text("127.0.0.1:7233 12")
    with path.open("a+") as first, path.open("a+") as second:
        assert embedded.try_lock(first)
        assert not embedded.try_lock(second)
        assert min(msvcrt.locked) > path.stat().st_size
        assert first.read() == "127.0.0.1:7233 12"


@pytest.mark.usefixtures("msvcrt")
def test_on_windows_a_server_is_found_if_it_listens(tmp_path: Path) -> None:
    """A server is found if it listens, because a lock on Windows does not show whether the server runs."""
    path = tmp_path / "dev.db"
    assert embedded._find_server(path) is None
    lock = tmp_path / "dev.db.lock"
    lock.touch()
    assert embedded._find_server(path) is None
    with socket.create_server((embedded.HOST, 0)) as listener:
        address = f"{embedded.HOST}:{listener.getsockname()[1]}"
        lock.write_text(f"{address} 12")
        assert embedded._find_server(path) == (address, 12)
    assert embedded._find_server(path) is None


def test_on_windows_a_question_needs_no_termios(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input from before the question is discarded only on other platforms."""
    monkeypatch.setitem(sys.modules, "termios", None)
    monkeypatch.setattr(builtins, "input", lambda _prompt: " yes ")
    assert TerminalUser().ask("Continue?") == "yes"


def test_input_before_a_question_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input from before the question is discarded, because it cannot be an answer."""
    flushed: list[tuple[int, str]] = []
    termios = SimpleNamespace(TCIFLUSH="input", tcflush=lambda *params: flushed.append(params))
    monkeypatch.setitem(sys.modules, "termios", termios)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: 7))
    monkeypatch.setattr(builtins, "input", lambda _prompt: "")
    assert TerminalUser().ask("Continue?", "no") == "no"
    assert flushed == [(7, "input")]


def test_a_worker_runs_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker runs without uvloop, which does not exist for Windows."""
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def serve() -> int:
        return len(type(asyncio.get_running_loop()).__module__.split("uvloop"))

    assert main._run(serve()) == 1
