"""Guards of what only some platforms have. The tests run on Linux, with the parts of another platform in place."""

import ast
import asyncio
import builtins
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT
from waystation.embedded import bind_to_this_process
from waystation.stop_signals import handle_signals
from waystation.worker import main, watchdog

ELSEWHERE = "win32", "darwin"
MODULES = {"fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "resource", "termios", "tty", "uvloop", "winreg"}
"""Modules that some platform does not have."""
FUNCTIONS = {
    *("os.chown", "os.fchmod", "os.fork", "os.getpgid", "os.getuid", "os.geteuid", "os.killpg", "os.mkfifo"),
    *("os.setsid", "os.sysconf", "os.uname", "signal.setitimer", "signal.SIGALRM", "signal.SIGHUP", "signal.SIGKILL"),
    *("signal.SIGQUIT", "signal.SIGUSR1", "signal.SIGUSR2", "signal.SIGCHLD", "socket.AF_UNIX"),
}
"""Functions and constants that Windows does not have."""
GUARDED = {
    ("cli/terminal_input.py", "termios"),  # ImportError is suppressed
    ("embedded.py", "fcntl"),  # on Windows, msvcrt
    ("embedded.py", "msvcrt"),
    ("embedded.py", "signal.SIGKILL"),  # not reached on Windows
    ("stop_signals.py", "loop.add_signal_handler"),  # NotImplementedError is handled
    ("worker/main.py", "uvloop"),  # ImportError is handled
    ("worker/watchdog.py", "signal.SIGALRM"),  # used only if `signal` has it
    ("worker/watchdog.py", "resource"),  # not reached on Windows
    ("worker/watchdog.py", "signal.setitimer"),
    ("worker/watchdog.py", "os.sysconf"),  # reached only if /proc exists
}
"""Modules of the package and the names that they use behind a guard."""


@pytest.fixture
def usual_handlers() -> Iterator[None]:
    """Restore the handler of SIGTERM."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def platform_names(path: Path) -> Iterator[str]:
    """Yield the names in a file that some platform does not have."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name in MODULES)
            case ast.ImportFrom(module=str(module)) if module in MODULES:
                yield module
            case ast.Attribute() if (name := ast.unparse(node)) in FUNCTIONS:
                yield name
            case ast.Attribute(attr="add_signal_handler"):
                yield "loop.add_signal_handler"


def test_names_that_some_platform_lacks_are_used_only_behind_guards() -> None:
    """Elsewhere, such a name is an ImportError or an AttributeError. Add a guard before you add a row."""
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
    """Event loops on Windows have no signal handlers, and Windows has no SIGHUP."""
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
def test_elsewhere_a_child_process_is_started_directly(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """Only Linux can kill a process when its parent ends."""
    monkeypatch.setattr(sys, "platform", platform)
    assert bind_to_this_process(["temporal", "server"]) == ["temporal", "server"]


@pytest.mark.parametrize("platform", ELSEWHERE)
def test_elsewhere_memory_is_read_without_proc(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """macOS reports the maximum so far. On Windows, --max-rss has no effect."""

    def refuse(*_: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(sys, "platform", platform)
    assert (watchdog.read_rss() > 0) is (platform == "darwin")


def test_a_worker_runs_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop does not exist for Windows."""
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def serve() -> int:
        return len(type(asyncio.get_running_loop()).__module__.split("uvloop"))

    assert main._run(serve()) == 1
