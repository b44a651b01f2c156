"""The commands and programs of the README, the tutorial and the how-to pages work unchanged."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.documents import DOCS, blocks, how_to, section
from tests.paths import EXAMPLES, ROOT
from tests.server.cli.shell import Shell
from waystation.cli.demo import WorkerProcess
from waystation.core.approval import Answer, PendingCall
from waystation.core.contract import wire
from waystation.embedded import EmbeddedServer

README = (ROOT / "README.md").read_text()
TUTORIAL = (DOCS / "tutorial" / "first-agent.md").read_text()
CONTRACT = (DOCS / "reference" / "contract.md").read_text()
WORKER = "waystation worker --embedded --db .waystation/dev.db --agents examples --model demo"


def commands(text: str) -> list[str]:
    """Return the shell commands of a text, one each."""
    joined = "\n".join(blocks(text, "sh")).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
async def shell(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shell]:
    """A server with a worker on the task queue of the README."""
    folder = tmp_path_factory.mktemp("readme")
    async with EmbeddedServer() as server:
        options = ("--agents", str(ROOT / "examples"), "--model", "demo", "--allow-forks", "--address", server.address)
        async with WorkerProcess(*options):
            yield Shell.at(folder, server.address)


async def test_the_commands_for_the_temporal_cli_work(shell: Shell) -> None:
    """The commands work unchanged, in their order."""
    expected = {
        "workflow start": "WorkflowId",
        "workflow list": "meals-3",
        "workflow describe": "waystation_pending",
        "workflow query": '"function_call_id":"fc-1"',
        "workflow signal": "succeeded",
        "workflow result --workflow-id meals-3": "200$ for meals: reimbursed.",
        "workflow update": "accepted:true",
        "workflow result --workflow-id meals-4": "rejected, with the comment: too dear.",
        "schedule": "",
        "workflow show": "",
        "waystation replay": "replays",
    }
    lines = commands(section(how_to("answer-from-other-languages"), "## The `temporal` CLI"))
    assert len(lines) == len(expected) + 2  # two start commands, and two for the schedule
    for line in lines:
        output = next(output for part, output in expected.items() if part in line)
        once = any(word in line for word in ("start", "signal", "schedule"))
        code, out = await shell.run(line) if once else (0, await shell.until(line, output))
        assert (code, output in out) == (0, True), (line, out)
    await shell.until("temporal workflow list", "daily-meals-2")


async def test_the_commands_of_the_readme_work(shell: Shell) -> None:
    """The commands work with the worker of the test."""
    lines = [line for line in commands(section(README, "## Run, approve, replay")) if line.startswith("waystation")]
    assert lines[0] == WORKER
    for line in lines[1:]:
        code, out = await shell.run(line)
        assert code == 0, (line, out)
    assert [line.split()[1] for line in lines[1:]] == ["run", "pending", "approve", "events", "replay"]


async def test_the_commands_to_look_at_a_moment_work(shell: Shell) -> None:
    """The commands read an approved invocation and compare it with another one."""
    for id in ("meals-1", "meals-2"):
        await shell.run(f"waystation run reimbursement_agent 'Please reimburse 200$ for meals' --id {id} --detach")
        await shell.run(f"waystation approve {id}")
        await shell.until(f"waystation state {id} --at 8", "{")
    (shell.folder / "agents").symlink_to(ROOT / "examples")
    for line in commands(section(how_to("debug-an-invocation"), "## Look at one moment")):
        code, out = await shell.run(re.sub(r"\s+#.*", "", line))
        assert (code in (0, 1), "Traceback" in out) == (True, False), (line, out)
        assert code == 0 or " diff " in line, (line, out)
    code, out = await shell.run("waystation report meals-1 -o report.html")
    assert (code, "<svg" in (shell.folder / "report.html").read_text()) == (0, True), out


async def test_an_incident_is_saved_forked_and_run_again(shell: Shell) -> None:
    """The commands of the how-to pages work, with their questions answered by options."""
    message = "'Please reimburse 200$ for meals'"
    await shell.run(f"waystation run reimbursement_agent {message} --id meals-9 --detach")
    await shell.run("waystation approve meals-9")
    await shell.until("waystation state meals-9 --at 8", "{")
    for line in (
        "waystation fork meals-9 2 --answer fc-1=reject --yes",
        f"waystation rerun meals-9 7 --agents {EXAMPLES} --yes",
        "waystation history meals-9 --redact text > meals-9.json",
        "waystation replay meals-9.json",
        f"waystation replay --open --agents {EXAMPLES}",
    ):
        code, out = await shell.run(line)
        assert code == 0, (line, out)


async def test_the_tutorial_works(shell: Shell, tmp_path: Path) -> None:
    """The tutorial's agent passes the check, and the output is as shown, apart from times and ids."""
    package = tmp_path / "agents" / "refunds"
    package.mkdir(parents=True)
    for block in blocks(TUTORIAL, "python"):
        (package / Path(block.splitlines()[0]).name).write_text(block)
    check, worker = [line for line in commands(TUTORIAL) if line.startswith("waystation worker")]
    assert worker == "waystation worker --embedded --agents agents --model demo"
    code, out = await Shell.at(tmp_path, shell.address).run(check)
    assert code == 0, out
    queue = "tutorial"
    options = ("--agents", str(tmp_path / "agents"), "--model", "demo", "--address", shell.address)
    async with WorkerProcess(*options, "--task-queue", queue):
        for sample in [
            *(line for line in commands(section(TUTORIAL, "## Approve a call")) if line.startswith("waystation run")),
            *(block.removeprefix("$ ") for block in blocks(TUTORIAL, "console")),
        ]:
            command, *shown = sample.splitlines()
            code, out = await shell.run(command.replace("waystation ", f"waystation --task-queue {queue} ", 1))
            assert code == 0, (command, out)
            assert without_times("\n".join(shown)) in without_times(out)


def without_times(text: str) -> str:
    """Return an output without times, generated ids and trailing spaces."""
    text = re.sub(r"\d\d:\d\d:\d\d|invocation refund_agent-\w+", "", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


async def test_the_python_that_starts_works(shell: Shell) -> None:
    """The program follows the invocation while a command approves."""
    (shell.folder / "start.py").write_text(blocks(how_to("stream-events"), "python")[0])
    started = asyncio.create_task(shell.run("python start.py"))
    await shell.until("waystation pending --json", '"meals-5"')
    assert (await shell.run("waystation approve meals-5"))[0] == 0
    code, out = await started
    assert (code, out.splitlines()[-1]) == (0, "[demo model] 200$ for meals: reimbursed."), out


async def test_the_agent_of_the_readme_passes_the_check(shell: Shell, tmp_path: Path) -> None:
    """`waystation worker check` finds the agent and no mistake."""
    package = tmp_path / "agents" / "reimbursement"
    package.mkdir(parents=True)
    (package / "agent.py").write_text(blocks(README, "python")[0])
    code, out = await Shell.at(tmp_path, shell.address).run("waystation worker check --agents agents")
    assert (code, '"reimbursement_agent"' in out) == (0, True), out


def test_the_contract_lists_the_fields_that_exist() -> None:
    """A field that is added to the wire types is documented."""
    internal = {"root", "depth"}
    for model in (wire.InvocationInput, wire.InvocationResult, Answer, PendingCall):
        missing = [name for name in model.model_fields if f"`{name}`" not in CONTRACT and name not in internal]
        assert missing == [], model.__name__
    for name in (wire.WORKFLOW, wire.ANSWER_SIGNAL, wire.ANSWER_UPDATE, wire.MEMO_PENDING, *wire.SEARCH_ATTRIBUTES):
        assert f"`{name}`" in CONTRACT
