"""The conformance suite of MCP, with its own client, against the handlers of the interface."""

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.paths import ROOT

NODE = Path(sys.executable).with_name("node")
SUITE = ROOT / ".node" / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"


async def run_scenario(url: str, folder: Path, scenario: str, *options: str) -> list[dict[str, str]]:
    """Run a scenario, and return its checks."""
    command = [str(NODE), str(SUITE), "server", "--url", url, "--scenario", scenario, "-o", str(folder), *options]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=os.environ)
    out, _ = await process.communicate()
    files = sorted(folder.glob(f"server-{scenario}-*/checks.json"))
    assert files, out.decode()
    checks: list[dict[str, str]] = json.loads(files[-1].read_text())
    return checks
