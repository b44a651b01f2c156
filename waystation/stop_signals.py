"""Handle the signals that stop a program, on every platform."""

import asyncio
import signal
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
