"""A terminal in which the commands of the documentation are tested."""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.paths import ROOT


@dataclass(frozen=True, slots=True)
class Shell:
    """A terminal as readers have it: our programs are on the PATH, and the environment names the server."""

    folder: Path
    address: str

    @classmethod
    def at(cls, folder: Path, address: str) -> "Shell":
        """Return a terminal in a folder, and put our program there."""
        (folder / "bin").mkdir()
        program = folder / "bin" / "waystation"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m waystation.cli "$@"\n')
        program.chmod(0o755)
        return cls(folder, address)

    async def run(self, line: str, **environment: str) -> tuple[int | None, str]:
        """Run one command; return its exit code and its output."""
        path = f"{self.folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        settings = {"PATH": path, "TEMPORAL_ADDRESS": self.address, "PYTHONPATH": str(ROOT), **environment}
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", line),
            cwd=self.folder,
            env={**os.environ, **settings},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return process.returncode, out.decode()

    async def until(self, line: str, expected: str) -> str:
        """Run a command until it prints the expected text, because other processes need time."""
        while True:
            code, out = await self.run(line)
            if expected in out and code == 0:
                return out
            await asyncio.sleep(0.1)
