"""Take samples while other programs are idle, and repeat samples that were disturbed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import psutil

MOST_FOR_OTHERS = 0.12
"""Share of the machine that other programs may use during a valid sample. The kernel counts in ticks of 10 ms, so a
smaller share cannot be measured."""
PROBE_S = 0.2


class Machine:
    """This machine, and the processes that are being measured on it."""

    def __init__(self, pids: Iterable[int], *, patience_s: float) -> None:
        """Wait for at most `patience_s` in all; then every sample counts."""
        self._ours = [psutil.Process(pid) for pid in pids]
        self._driver = psutil.Process()
        self._patience_s = patience_s
        self.repeated = 0
        """Number of repeated samples."""
        self.disturbed = 0
        """Number of samples that count although other programs were active."""

    async def undisturbed(self, sample: Callable[[], Awaitable[float]]) -> float:
        """Return a sample during which others were idle; when patience ends, the least disturbed one."""
        samples: list[tuple[float, float]] = []
        while True:
            await self._wait_for_idle()
            began, before = time.perf_counter(), self._others_s()
            value = await sample()
            elapsed = time.perf_counter() - began
            samples.append((self._share(before, elapsed), value))
            share, value = min(samples)
            if share <= MOST_FOR_OTHERS:
                return value
            if self._patience_s <= 0:
                self.disturbed += 1
                return value
            self._patience_s -= elapsed
            self.repeated += 1

    async def _wait_for_idle(self) -> None:
        """Wait until other programs are idle for a moment."""
        while self._patience_s > 0:
            before = self._others_s()
            await asyncio.sleep(PROBE_S)
            if self._share(before, PROBE_S) <= MOST_FOR_OTHERS:
                return
            self._patience_s -= PROBE_S

    def _share(self, before: float, elapsed_s: float) -> float:
        return (self._others_s() - before) / elapsed_s / (psutil.cpu_count() or 1)

    def _others_s(self) -> float:
        """Return the CPU time that other programs have used since the machine started."""
        times, driver = psutil.cpu_times(), self._driver.cpu_times()
        ours = driver.user + driver.system + driver.children_user + driver.children_system
        ours += sum(used.user + used.system for used in (process.cpu_times() for process in self._ours))
        return float(sum(times) - times.idle - getattr(times, "iowait", 0.0)) - ours
