"""Handle the signals that stop a program, on every platform."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable


def handle_signals(callback: Callable[[], object], *names: str) -> None:
    """Call `callback` in the running event loop when the process receives one of the signals, such as `SIGTERM`.

    Signals that the platform does not have, such as `SIGHUP` on Windows, are left out.
    """
    loop = asyncio.get_running_loop()
    for name in names:
        number = getattr(signal, name, None)
        if number is None:
            continue
        try:
            loop.add_signal_handler(number, callback)
        except NotImplementedError:  # on Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(callback))


def exit_until_handled() -> None:
    """Let SIGTERM and SIGINT end the process with exit code 0 until `handle_signals` replaces this.

    A worker takes seconds to import its modules. `worker check` keeps the default, because its exit code 0 means that
    the agents are valid.
    """
    if "check" not in sys.argv:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))
