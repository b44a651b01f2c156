"""The commands in the READMEs of the examples work unchanged, with the demo models."""

import asyncio
import re
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.paths import EXAMPLES, ROOT
from tests.server.cli.shell import Shell
from waystation.cli.demo import WorkerProcess
from waystation.embedded import EmbeddedServer

PACKAGES = sorted(path.parent for path in EXAMPLES.glob("*/agent.py"))
WORKER = "waystation worker --embedded --agents examples --model demo"
TALKS = {
    "calculator": ["5 - 3 + 10 = 12"],
    "document_analysis": ["Kept report.txt, version 0.", "Sales rose in May. You mentioned it 1 times before."],
    "stock_price": ["ALPH: 90.6 EUR.", "less than or equal to 2", "No stock has the symbol 'NOPE'"],
    "summarizer": ["8 words, which begin: It rained.", "summary_agent: [demo model] 8 words"],
    "support_transfer": ["The support agent takes over: URGENT", "The main agent answers: Where is the manual?"],
    "travel_desk": ["Your manager approved the trip.", "You have not said who you are; you live in Oslo."],
    "user_preferences": ["Remembered: theme, language.", '"language": "Welsh"', "theme: dark."],
    "weather_sentiment": ["with a chance of rain. What you said sounds negative."],
}
"""The output of each command of a README that needs no answer."""


def commands(package: Path) -> list[str]:
    """Return the commands of a README, without comments."""
    lines = re.findall(r"^ {4}(\S.*)$", (package / "README.md").read_text(), re.MULTILINE)
    return [re.sub(r"\s{2,}#.*", "", line) for line in lines]


@pytest.fixture(scope="module")
async def calendar() -> AsyncIterator[str]:
    """Run the provider of one example on a free port; return its address."""
    program = str(EXAMPLES / "calendar_login" / "provider.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, program, "0"), cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().split()[4].rstrip(";")
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture(scope="module")
async def shell(tmp_path_factory: pytest.TempPathFactory, calendar: str) -> AsyncIterator[Shell]:
    """A server with a worker that serves the examples."""
    folder = tmp_path_factory.mktemp("examples")
    kept = folder / ".waystation"
    stores = (
        "--artifacts",
        f"{kept}/artifacts",
        "--memory",
        f"{kept}/memory.db",
        "--credentials",
        f"{kept}/credentials",
    )
    async with EmbeddedServer() as server:
        options = ("--agents", str(EXAMPLES), "--model", "demo", "--address", server.address, *stores)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CALENDAR_URL", calendar)
            async with WorkerProcess(*options):
                yield Shell.at(folder, server.address)


async def waits(shell: Shell, invocation: str) -> None:
    """Wait until a call of an invocation is pending."""
    await shell.until(f"waystation pending {invocation} 2>&1", "waiting for a person")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_readme_is_short_and_starts_with_the_worker(package: Path) -> None:
    """A README names the commands and their output, and mentions the demo model."""
    text = (package / "README.md").read_text()
    assert len(text.splitlines()) <= 15
    assert commands(package)[0] == WORKER
    assert len(commands(package)) >= 2
    assert "You see" in text or package.name == "reimbursement"
    assert re.search(r"a\s+demo\s+model", text)


@pytest.mark.parametrize("name", TALKS)
async def test_the_commands_print_the_documented_output(shell: Shell, name: str) -> None:
    """Every line is printed in the same order."""
    given = commands(EXAMPLES / name)[1:]
    assert len(given) == len(TALKS[name])
    for line, expected in zip(given, TALKS[name], strict=True):
        code, out = await shell.run(line)
        assert (code, expected in out) == (0, True), (line, out)


async def test_a_reimbursement_continues_when_it_is_approved(shell: Shell) -> None:
    """One command waits while the other approves."""
    _, run, approve = commands(EXAMPLES / "reimbursement")
    running = asyncio.create_task(shell.run(f"{run} --id meals"))
    await waits(shell, "meals")
    assert (await shell.run(approve.replace("<invocation>", "meals")))[0] == 0
    code, out = await running
    assert (code, "200$ for meals: reimbursed." in out) == (0, True), out


async def test_a_payment_takes_two_approvals(shell: Shell) -> None:
    """Different people approve, as in the commands; the documented edit counts as the first approval."""
    _, run, first, second = commands(EXAMPLES / "payments")
    running = asyncio.create_task(shell.run(run))
    await waits(shell, "roof-1")
    assert (await shell.run(first))[0] == 0
    code, out = await shell.run(first)
    assert (code, "approved call" in out) == (3, True), out
    found = re.search(r"`(waystation edit .*?)`", (EXAMPLES / "payments" / "README.md").read_text())
    assert found is not None
    code, out = await shell.run(found[1])
    assert code == 0, out
    code, out = await shell.run(second)
    assert code == 0, out
    code, out = await running
    assert (code, "500 euros are paid to Rose." in out) == (0, True), out


async def test_the_desk_closes_the_ticket(shell: Shell) -> None:
    """The command that opened the ticket prints all reports before the desk closes it."""
    _, run, desk = commands(EXAMPLES / "ticket")
    running = asyncio.create_task(shell.run(run))
    await waits(shell, "printer-1")
    code, out = await shell.run(desk.replace("examples/", f"{EXAMPLES}/"))
    assert code == 0, out
    code, out = await running
    assert code == 0, out
    for news in ('"status": "assigned"', "in progress: a new fuse is on its way.", "closed: the fuse was changed."):
        assert news in out


async def test_a_login_is_completed_from_the_command_line(shell: Shell) -> None:
    """A login works with the link of the command and the address at which a browser ends."""
    _, provider, run, authorize = commands(EXAMPLES / "calendar_login")
    assert provider == "python examples/calendar_login/provider.py"
    running = asyncio.create_task(shell.run(run))
    await waits(shell, "today-1")
    _, shown = await shell.run(f"{authorize} < /dev/null")
    link = re.search(r"http://\S+/authorize\?\S+", shown)
    assert link is not None, shown

    def browser() -> str:
        with urllib.request.urlopen(link[0], timeout=10) as page:
            return str(page.url)

    ended_at = await asyncio.to_thread(browser)
    code, out = await shell.run(f"{authorize} <<< '{ended_at}'")
    assert (code, "authorized" in out) == (0, True), out
    code, out = await running
    assert (code, "In the calendar: dentist." in out) == (0, True), out
