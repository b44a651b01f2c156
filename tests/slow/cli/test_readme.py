"""What README.md says to type works as it stands."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator

import pytest

from tests.paths import ROOT
from tests.programs import command
from tests.server.cli.shell import Shell
from waystation.cli.demo import WorkerProcess
from waystation.core import Answer, PendingCall, wire
from waystation.embedded import EmbeddedServer

README = (ROOT / "README.md").read_text()
CONTRACT = (ROOT / "docs" / "reference" / "contract.md").read_text()


def blocks(language: str, section: str) -> list[str]:
    """Return the code blocks of one language in one section."""
    text = README.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(section: str) -> list[str]:
    """Return the shell commands of a section, one each."""
    joined = "\n".join(blocks("sh", section)).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
async def shell(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shell]:
    """A server with a worker on the task queue of the README."""
    folder = tmp_path_factory.mktemp("readme")
    async with EmbeddedServer() as server:
        options = ("--agents", str(ROOT / "examples"), "--model", "demo", "--address", server.address)
        async with WorkerProcess(*options):
            yield Shell.at(folder, server.address)


async def test_the_section_for_stock_clients_works_with_the_temporal_cli(shell: Shell) -> None:
    """Each command as it is printed, in that order; only the waiting is ours."""
    expected = {
        "workflow start": "WorkflowId",
        "workflow list": "meals-3",
        "workflow describe": "waystation_pending",
        "workflow query": '"function_call_id":"fc-1"',
        "workflow signal": "succeeded",
        "workflow result --workflow-id meals-3": "200$ for meals: reimbursed.",
        "workflow update": "accepted:true",
        "workflow result --workflow-id meals-4": "rejected, with the comment: too dear.",
        "workflow show": "",
        "waystation replay": "replays",
    }
    given = commands("With only the `temporal` CLI")
    assert len(given) == len(expected) + 1  # one start each
    for line in given:
        wanted = next(text for part, text in expected.items() if part in line)
        once = any(word in line for word in ("start", "signal"))
        code, out = await shell.run(line) if once else (0, await shell.until(line, wanted))
        assert (code, wanted in out) == (0, True), (line, out)


async def test_the_commands_of_the_quick_start_work(shell: Shell) -> None:
    """All but those that set up what the test has already."""
    shown = [line for line in commands("Quick start") if line.startswith("waystation")]
    assert shown[0] == "waystation worker --embedded --agents examples --model demo"
    given = shown[1:]
    for line in given:
        code, out = await shell.run(line)
        assert code == 0, (line, out)
    assert [line.split()[1] for line in given] == ["run", "run", "pending", "approve", "events", "state", "replay"]


async def test_the_commands_to_debug_with_work(shell: Shell) -> None:
    """On the invocation of the quick start; in a terminal some of them ask first."""
    code, out = await shell.run(
        "waystation run reimbursement_agent 'Please reimburse 200$ for meals' --id meals-1 --detach"
    )
    assert code == 0, out
    await shell.run("waystation approve meals-1")
    await shell.until("waystation state meals-1 --at 8", "{")
    (shell.folder / "examples").symlink_to(ROOT / "examples")
    (shell.folder / "tests" / "incidents").mkdir(parents=True)
    given = [line.partition("  #")[0].partition(" #")[0].strip() for line in commands("Debug")]
    for line in given:
        asks = line.split()[1] in ("fork", "rerun")
        code, out = await shell.run(f"{line} --yes" if asks else f"{line} < /dev/null")
        assert (code, "Traceback" in out) == (1 if " diff " in line else 0, False), (line, out)
    assert len(given) == 10
    assert "<svg" in (shell.folder / "report.html").read_text()


async def test_the_python_that_triggers_and_approves_works(shell: Shell) -> None:
    """One program follows while the other approves."""
    (trigger,), (approve,) = blocks("python", "Trigger"), blocks("python", "Approve")
    (shell.folder / "trigger.py").write_text(trigger)
    (shell.folder / "approve.py").write_text(approve)
    triggered = asyncio.create_task(shell.run("python trigger.py"))
    await shell.until("waystation pending --json", '"meals-2"')
    approved = await shell.run("python approve.py")
    assert (approved[0], "meals-2 fc-1 ask_for_approval" in approved[1]) == (0, True), approved
    code, out = await triggered
    assert (code, out.splitlines()[-1]) == (0, "[offline stand-in] 200$ for meals: reimbursed."), out


async def test_the_agent_of_the_readme_passes_the_check(shell: Shell) -> None:
    """`waystation worker check` finds it and no mistake in it."""
    package = shell.folder / "agents" / "refunds"
    package.mkdir(parents=True)
    (package / "agent.py").write_text(blocks("python", "Write an agent")[0])
    code, out = await shell.run("waystation worker check --agents agents")
    assert (code, '"refund_agent"' in out) == (0, True), out


async def test_the_options_of_the_readme_exist() -> None:
    """Every option in a code block or in backquotes is one of ours or of the `temporal` CLI."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "waystation.worker", "--help"), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    known = (await process.communicate())[0].decode()
    told = (
        "run",
        "events",
        "state",
        "pending",
        "approve",
        "replay",
        "setup",
        "chat",
        "debug",
        "history",
        "fork",
        "report",
    )
    for name in told:
        known += (await command(name, "--help")).out
    known += (await command("--help")).out
    ours = re.sub(r"temporal .*?(?:\n\n|```|`)", "", README.replace("\\\n", " "), flags=re.DOTALL)
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ours)) - {"--help", "--input"}:
        assert option in known, option


def test_the_contract_lists_the_fields_that_exist() -> None:
    """A field that is added to the wire types is documented."""
    internal = {"root", "depth"}
    for model in (wire.InvocationInput, wire.InvocationResult, Answer, PendingCall):
        missing = [name for name in model.model_fields if f"`{name}`" not in CONTRACT and name not in internal]
        assert missing == [], model.__name__
    for name in (wire.WORKFLOW, wire.ANSWER_SIGNAL, wire.ANSWER_UPDATE, wire.MEMO_PENDING, *wire.SEARCH_ATTRIBUTES):
        assert f"`{name}`" in CONTRACT


def test_links_lead_somewhere() -> None:
    """Files that the README names exist."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target
