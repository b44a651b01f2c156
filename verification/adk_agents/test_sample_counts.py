"""`make adk-samples` counts the agents of a folder that run on Waystation as on google-adk."""

import asyncio
import os
from pathlib import Path
from textwrap import dedent

import pytest

from tests.paths import ROOT
from verification.differential.conftest import PYTHON

LIMIT_S = 110.0
SAMPLES = {
    "bank": """
        from google.adk.agents import Agent
        from google.adk.tools import LongRunningFunctionTool

        def pay(amount: float, tool_context) -> dict:
            tool_context.state["paid"] = amount
            return {"paid": amount}

        def ask_for_approval(purpose: str) -> dict:
            return {"status": "pending"}

        approver = Agent(name="approver", model="gemini-3.5-flash", tools=[LongRunningFunctionTool(ask_for_approval)])
        root_agent = Agent(name="bank", model="gemini-3.5-flash", tools=[pay], sub_agents=[approver])
    """,
    "stored": """
        from google.adk.agents import Agent

        async def check(callback_context):
            callback_context.state["checked"] = True
            invocation = callback_context._invocation_context
            about = {"app_name": invocation.session.app_name, "user_id": invocation.session.user_id}
            stored = await invocation.session_service.get_session(session_id=invocation.session.id, **about)
            assert (stored.id, "checked" in stored.state) == (invocation.session.id, False)

        root_agent = Agent(name="stored", model="gemini-3.5-flash", before_agent_callback=check)
    """,
    "changing": """
        import os

        from google.adk.agents import Agent

        def where() -> int:
            return os.getpid()

        root_agent = Agent(name="changing", model="gemini-3.5-flash", tools=[where])
    """,
    "incomplete": """
        import package_that_is_missing
        root_agent = None
    """,
    "live": """
        from google.adk.agents import Agent

        root_agent = Agent(name="live", model="gemini-live-2.5-flash-native-audio")
    """,
}
"""The source of each sample's `agent.py`."""


async def count(folder: Path) -> tuple[int | None, str]:
    """Return the exit code and the output."""
    assert PYTHON.exists(), f"{PYTHON} is missing; run `make test-full`, or `make .venv-adk/.stamp` once."
    process = await asyncio.create_subprocess_exec(
        PYTHON,
        "-m",
        "verification.adk_samples",
        folder,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", ""), "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT_S):
        out, _ = await process.communicate()
    return process.returncode, out.decode()


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Return a folder with samples."""
    for name, source in SAMPLES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "agent.py").write_text(dedent(source))
    return tmp_path


async def test_samples_are_counted_and_others_named_with_their_reasons(samples: Path) -> None:
    """A sample runs if tools, transfers, long-running calls and callbacks give the same events on both sides."""
    code, printed = await count(samples)
    lines = printed.splitlines()
    assert (code, lines[0]) == (0, "5 samples: 3 load, 2 run")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["changing", "incomplete", "live"]
    assert "differs from google-adk: events[2].content.parts[0].functionResponse.response.result" in lines[1]
    assert "cannot be imported with google-adk: ModuleNotFoundError" in lines[2]
    assert "is for live audio" in lines[3]


async def test_a_folder_without_samples_is_an_error(tmp_path: Path) -> None:
    """A folder without samples is an error, because it is probably the wrong one."""
    assert await count(tmp_path) == (2, "")
