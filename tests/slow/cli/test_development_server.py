"""Run `waystation new` and `dev` in separate processes."""

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.programs import undisturbed
from tests.steps import start_and_wait
from tests.terminals import Typed, in_terminal
from waystation import AgentClient

LIMIT_S = 60.0


async def start(folder: Path, *arguments: str) -> Process:
    """Start a command in a folder, without API keys."""
    environment = {**undisturbed(), "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-m", "waystation.cli", *arguments)
    return await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stdout=PIPE, stderr=STDOUT)


async def read_until(process: Process, expected: str) -> str:
    """Return the output up to the line with the expected text."""
    assert process.stdout
    lines = list[str]()
    async with asyncio.timeout(LIMIT_S):
        while not lines or expected not in lines[-1]:
            line = await process.stdout.readline()
            assert line, "".join(lines)
            lines.append(line.decode())
    return "".join(lines)


@pytest.fixture
async def package(tmp_path: Path) -> Path:
    """A new agent package."""
    process = await start(tmp_path, "new", "order_agent")
    assert await process.wait() == 0
    return tmp_path / "order_agent"


async def test_a_pending_call_survives_changes_of_the_agent(package: Path) -> None:
    """A mistake is shown, the corrected agent continues the invocation, and SIGTERM ends all processes."""
    process = await start(package.parent, "dev", package.name, "--port", "0")
    try:
        shown = await read_until(process, "serving order_agent")
        match = re.search(r"server +([\d.]+:\d+)", shown)
        assert match, shown
        client = await AgentClient.connect(address=match[1])
        invocation = await start_and_wait(client.start("order_agent", "Order 50 chairs"), "fc-1")
        agent, source = package / "agent.py", (package / "agent.py").read_text()
        agent.write_text(source + "\nbroken(")
        assert "agent.py" in await read_until(process, "SyntaxError")
        agent.write_text(source.replace('"ordered"', '"booked"'))
        await read_until(process, "serving order_agent")
        await invocation.approve("fc-1")
        assert "'status': 'booked'" in (await invocation.result()).text
        process.terminate()
        async with asyncio.timeout(LIMIT_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


async def test_one_screen_has_the_chat_the_changes_and_the_approvals(package: Path) -> None:
    """A call that waits is approved after the agent has changed, and a mistake is shown above the line being typed."""
    agent, source = package / "agent.py", (package / "agent.py").read_text()

    def save(text: str, keys: bytes = b"") -> Typed:
        def write() -> bytes:
            agent.write_text(text)
            return keys

        return write

    code, shown = await in_terminal(
        *("-m", "waystation.cli", "dev", package.name, "--port", "0"),
        typed=[
            ("/help lists", b"Order 5 pencils\r"),
            ("'item': 'pencils'", b"Order 50 chairs\r"),
            ("/approve 2/fc-1", save(source.replace('"ordered"', '"booked"'))),
            ("serving order_agent", b"/approve\r"),
            ("'status': 'booked'", save(source + "\nbroken(", b"a line")),
            ("SyntaxError", save(source)),
            ("serving order_agent", b"\x15/quit\r"),
        ],
        folder=package.parent,
        environment=undisturbed(),
        limit_s=LIMIT_S,
    )
    assert code == 0, shown
    assert "web app" in shown
    assert "You can resume the conversation" in shown


async def test_the_test_of_a_new_package_passes(package: Path) -> None:
    """The test of a new package passes with pytest, in a separate process."""
    environment = {**undisturbed(), "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-m", "pytest", "-q", package.name)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=package.parent, env=environment, stdout=PIPE, stderr=STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
