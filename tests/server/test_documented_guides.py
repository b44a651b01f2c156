"""The programs of the pages on tests, evaluation, schedules and cancellation work unchanged, on a real server."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.documents import blocks, how_to
from tests.server.conftest import Serve
from tests.steps import start_and_wait, wait_until
from waystation import Agent, LongRunningFunctionTool
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, responses, says, user_text

Load = Callable[[str, str], ModuleType]


def programs(page: str) -> dict[str, str]:
    """Return the programs of a page that begin with their file name."""
    code_blocks = blocks(how_to(page), "python")
    return {text.split("\n", 1)[0].removeprefix("# "): text for text in code_blocks if text.startswith("# ")}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import a program under a name, for the duration of a test."""

    def load(name: str, text: str) -> ModuleType:
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(text, name, "exec"), module.__dict__)
        return module

    return load


PAYMENTS = programs("test-agents")


@pytest.mark.slow
@pytest.mark.parametrize(("page", "count"), [("test-agents", 9), ("let-a-machine-answer", 1)])
def test_the_tests_of_the_page_pass(tmp_path: Path, page: str, count: int) -> None:
    """The tests of the page pass in a folder with only the files of the page."""
    for name, text in {**programs(page), "pytest.ini": blocks(how_to("test-agents"), "ini")[0]}.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"{count} passed" in done.stdout, done.stdout


def pay(amount: int, to: str) -> JsonObject:
    """Pay a person."""
    return {"status": "paid"}


def reply(request: LlmRequest) -> LlmResponse:
    """Pay the amount in the message, or else introduce the agent."""
    if user_text(request).startswith("Pay") and not responses(request):
        return calls(("pay", {"amount": 5, "to": "rose"}))
    return says("I am the cashier.")


async def test_the_evaluation_counts_the_passing_cases(
    serve: Serve, load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The evaluation prints a failing case with the difference."""
    program = load("evaluate", programs("evaluate-agents")["evaluate.py"])
    program.CASES.append(program.Case("Pay 6 to Rose.", calls=[("pay", {"amount": 6, "to": "rose"})]))
    async with serve(Agent(name="cashier", model=FunctionModel(reply), tools=[pay]), task_queue="waystation") as env:
        monkeypatch.setenv("TEMPORAL_ADDRESS", env.server.address)
        assert await program.main() == pytest.approx(2 / 3)
    passed, text, failed = capsys.readouterr().out.splitlines()
    assert (passed, text) == ("passed Pay 5 to Rose.", "passed Who are you?")
    assert failed.startswith("failed Pay 6 to Rose. calls [('pay', {'amount': 5,")


def ask(purpose: str) -> None:
    """Ask a person."""


async def test_a_program_cancels_an_invocation_and_reports_it(
    serve: Serve, load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pending call is closed."""
    text = programs("cancel")["cancel.py"].replace("asyncio.run(", "running = (")
    model = FunctionModel(lambda _: calls(("ask", {"purpose": "x"})))
    agent = Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)])
    async with serve(agent, task_queue="waystation") as env:
        monkeypatch.setenv("TEMPORAL_ADDRESS", env.server.address)
        invocation = await start_and_wait(env.client.start("asker", "go"))
        monkeypatch.setattr(sys, "argv", ["cancel.py", invocation.id])
        await load("cancel", text).running
        assert await invocation.pending() == []
    assert capsys.readouterr().out == f"{invocation.id}: Workflow cancelled\n"


async def test_a_program_creates_a_schedule(serve: Serve, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invocation that it starts has the user of the schedule."""
    text = programs("schedule-invocations")["schedule.py"].replace("asyncio.run(", "running = (")
    agent = Agent(name="report_agent", model=FunctionModel(lambda _: says("All is well.")))
    async with serve(agent, task_queue="waystation") as env:
        monkeypatch.setenv("TEMPORAL_ADDRESS", env.server.address)
        await load("schedule", text).running
        schedule = env.temporal.get_schedule_handle("morning-report")
        try:
            (spec,) = (await schedule.describe()).schedule.spec.cron_expressions or ["(parsed)"]
            assert spec
            await schedule.trigger()

            async def started() -> list[str]:
                actions = (await schedule.describe()).info.recent_actions
                return [getattr(action.action, "workflow_id", "") for action in actions]

            await wait_until(started, "a start")
            (invocation_id,) = await started()
            assert invocation_id.startswith("morning-report-")
            assert (await env.client.invocation(invocation_id).result()).text == "All is well."
        finally:
            await schedule.delete()
