"""The programs for other clients work unchanged, with the real clients."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import blocks, how_to, section
from tests.fakes.openid import FakeOpenId
from tests.paths import ROOT
from tests.server.approvals.asking import asker, asks_once, listed
from tests.server.conftest import Serve
from tests.unit.identity.conftest import installed
from waystation import Agent, LongRunningFunctionTool
from waystation.core.approval import Answer
from waystation.core.errors import NotAllowed

PAGE = how_to("answer-from-other-languages")
NODE = ROOT / ".node" / "node_modules"


def block(language: str, heading: str) -> str:
    """Return the first code block of a language in a section of the page."""
    return blocks(section(PAGE, heading), language)[0]


async def output(*command: str | Path, folder: Path, address: str) -> list[str]:
    """Run a program and return its lines of output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={"TEMPORAL_ADDRESS": address, "PATH": "", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


@pytest.mark.slow
async def test_typescript_starts_approves_and_reads_the_result(serve: Serve, tmp_path: Path) -> None:
    """The program uses @temporalio/client from npm; a wrong answer is refused with its type."""
    assert NODE.is_dir(), "`make .node/.stamp` installs Temporal's client for TypeScript"
    (tmp_path / "node_modules").symlink_to(NODE)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "approve.ts").write_text(block("typescript", "## TypeScript"))
    node = Path(sys.executable).with_name("node")
    async with serve(asker("reimbursement_agent"), task_queue="waystation") as env:
        lines = await output(node, "approve.ts", folder=tmp_path, address=env.server.address)
    assert lines[:2] == ['ask {"purpose":"x"}', "refused: DigestMismatch"]
    receipt = {"accepted": True, "function_call_id": "fc-1", "tool": "ask", "action": "approve"}
    assert json.loads(lines[2]) == receipt
    assert lines[3:] == ["completed They said {'status': 'approved'}."]


async def test_a_token_sealed_by_typescript_identifies_the_approver(tmp_path: Path, openid: FakeOpenId) -> None:
    """The token, made with jose and canonicalize from npm, is valid for that answer only."""
    keys = installed(tmp_path / "identity", openid)
    (tmp_path / "node_modules").symlink_to(NODE)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "envelope-public.json").write_bytes((keys.folder / "envelope-public.json").read_bytes())
    answer = {"function_call_id": "fc-1", "action": "edit", "args": {"b": 1e21, "a": [1.5, "größer", None], "n": 7}}
    call = f"withProof({json.dumps(answer)}, {json.dumps(openid.token())}, 'default', 'invoice-7')"
    program = block("typescript", "### A verified answer")
    (tmp_path / "seal.ts").write_text(f"{program}\nconsole.log(JSON.stringify(await {call}));\n")
    node = Path(sys.executable).with_name("node")
    (line,) = await output(node, "seal.ts", folder=tmp_path, address="")
    sent = Answer.model_validate_json(line)
    assert sent.token is not None
    verify = keys.worker.verify
    who, _ = await verify(sent.token, namespace="default", approval_id="invoice-7/fc-1", answer=sent)
    assert who.subject == "dana@example.com"
    other = sent.model_copy(update={"args": {"n": 8}})
    with pytest.raises(NotAllowed, match="another answer"):
        await verify(sent.token, namespace="default", approval_id="invoice-7/fc-1", answer=other)


async def test_python_with_temporals_client_alone_does_the_same(serve: Serve, tmp_path: Path) -> None:
    """The program imports nothing from Waystation."""
    program = block("python", "## Python, with Temporal's client alone")
    assert "waystation import" not in program
    async with serve(asker("reimbursement_agent"), task_queue="waystation") as env:
        (tmp_path / "approve.py").write_text(program.replace("localhost:7233", env.server.address))
        lines = await output(sys.executable, "approve.py", folder=tmp_path, address=env.server.address)
    assert lines[0].startswith("{'accepted': True")
    assert lines[1] == "They said {'status': 'approved'}."


@pytest.mark.slow
async def test_the_documented_python_program_finds_and_answers_calls(serve: Serve, tmp_path: Path) -> None:
    """The first program of the page lists and approves a pending call."""

    def ask_for_approval(purpose: str) -> None:
        """Ask a person."""

    model = asks_once("ask_for_approval", {"purpose": "x"})
    agent = Agent(name="clerk", model=model, tools=[LongRunningFunctionTool(ask_for_approval)])
    async with serve(agent) as env:
        invocation = await env.client.start("clerk", "go", user_id=env.client.task_queue)
        await listed(env.client, 1, user_id=env.client.task_queue)
        (tmp_path / "approve.py").write_text(blocks(how_to("answer-calls"), "python")[0])
        lines = await output(sys.executable, "approve.py", folder=tmp_path, address=env.server.address)
        await invocation.result()
    assert lines == [f"{invocation.id}/fc-1 clerk ask_for_approval {{'purpose': 'x'}}", "approve"]


def test_the_documented_answer_is_valid() -> None:
    """The engine parses the JSON of the page as an answer."""
    answer = Answer.model_validate_json(blocks(PAGE, "json")[0])
    assert (answer.action, answer.comment) == ("approve", "enjoy")
