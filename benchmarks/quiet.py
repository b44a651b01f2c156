"""Take samples while nobody else works the machine, and take them again when somebody did."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import psutil

MOST_FOR_OTHERS = 0.12
"""Share of the machine that other programs may use during a sample that counts. The kernel counts in ticks of 10 ms, so
less could not be told from nothing."""
PROBE_S = 0.2


class Machine:
    """This machine, as seen by programs of ours that are being measured."""

    def __init__(self, pids: Iterable[int], *, patience_s: float) -> None:
        """Wait for at most `patience_s` in all; after that every sample counts."""
        self._ours = [psutil.Process(pid) for pid in pids]
        self._driver = psutil.Process()
        self._patience_s = patience_s
        self.repeated = 0
        """Samples that were taken again."""
        self.disturbed = 0
        """Samples that count although others were at work."""

    async def undisturbed(self, sample: Callable[[], Awaitable[float]]) -> float:
        """Return a sample during which others did next to nothing; when patience ends, the best of those taken."""
        taken: list[tuple[float, float]] = []
        while True:
            await self._others_rest()
            began, before = time.perf_counter(), self._others_s()
            value = await sample()
            elapsed = time.perf_counter() - began
            taken.append((self._share(before, elapsed), value))
            share, value = min(taken)
            if share <= MOST_FOR_OTHERS:
                return value
            if self._patience_s <= 0:
                self.disturbed += 1
                return value
            self._patience_s -= elapsed
            self.repeated += 1

    async def _others_rest(self) -> None:
        """Return once others have been quiet for a moment."""
        while self._patience_s > 0:
            before = self._others_s()
            await asyncio.sleep(PROBE_S)
            if self._share(before, PROBE_S) <= MOST_FOR_OTHERS:
                return
            self._patience_s -= PROBE_S

    def _share(self, before: float, elapsed_s: float) -> float:
        return (self._others_s() - before) / elapsed_s / (psutil.cpu_count() or 1)

    def _others_s(self) -> float:
        """Return the CPU time that others have used since the machine was started."""
        times, driver = psutil.cpu_times(), self._driver.cpu_times()
        ours = driver.user + driver.system + driver.children_user + driver.children_system
        ours += sum(used.user + used.system for used in (process.cpu_times() for process in self._ours))
        return float(sum(times) - times.idle - getattr(times, "iowait", 0.0)) - ours
