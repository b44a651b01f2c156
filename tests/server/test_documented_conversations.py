"""The programs of the pages on conversations, budgets, models, workers and ADK programs work, on a real server."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.documents import blocks, how_to
from tests.server.conftest import Serve
from waystation import Agent
from waystation.apps.registry import discover
from waystation.testing import FunctionModel, says


async def run(text: str, **names: Any) -> dict[str, Any]:
    """Run a block of a page, which may await, and return all names that it defines."""
    coroutine = eval(compile(text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.isawaitable(coroutine):
        await coroutine
    return names


async def test_the_conversation_programs_work(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The programs send messages, save a file for the session, and delete everything that they left."""
    hold, save, delete = blocks(how_to("hold-conversations"), "python")
    monkeypatch.chdir(tmp_path)
    model = FunctionModel(
        lambda request: says(f"Message {sum(content['role'] == 'user' for content in request.contents)}.")
    )
    async with serve(Agent(name="support", model=model), task_queue="waystation") as env:
        monkeypatch.setenv("TEMPORAL_ADDRESS", env.server.address)
        await (await run(hold))["main"]()
        assert capsys.readouterr().out == "Message 1.\nMessage 2.\n"
        (tmp_path / "parcel.jpg").write_bytes(b"a photo")
        await (await run(save))["main"]()
        assert capsys.readouterr().out == "Message 3.\n"
        await (await run(delete))["forget"](env.client)
        names = re.findall(r"'([^']+)'", capsys.readouterr().out)
        assert names[-1] == "parcel.jpg"
        assert len(names) == 5, "the session, its three invocations and the file"


async def test_a_budget_limits_an_invocation(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """The program prints the status, the reason and the usage."""
    (text,) = blocks(how_to("limit-budgets"), "python")
    model = FunctionModel(lambda _: says("Nothing."))
    async with serve(Agent(name="researcher", model=model)) as env:
        names = await run(text.replace('"llama"', '"*"'), client=env.client)
    assert names["result"].status == "completed"
    assert capsys.readouterr().out.startswith("completed None ")


@pytest.mark.parametrize("block", range(len(blocks(how_to("choose-models"), "python"))))
def test_agents_with_other_models_can_be_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """A worker finds no mistake in the packages if the keys are set."""
    monkeypatch.setenv("GOOGLE_API_KEY", "test")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    package = tmp_path / f"documented_models_{block}"
    package.mkdir()
    (package / "agent.py").write_text(blocks(how_to("choose-models"), "python")[block])
    registry, problems = discover([tmp_path])
    assert [str(problem) for problem in problems] == []
    assert len(registry.roots) == 1


async def test_a_program_for_adk_runs(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program runs its own worker and prints the final text."""
    program, _ = blocks(how_to("run-an-adk-program"), "python")
    monkeypatch.chdir(tmp_path)
    async with serve(Agent(name="other", model=FunctionModel(lambda _: says("")))) as env:
        monkeypatch.setenv("TEMPORAL_ADDRESS", env.server.address)
        names = await run(program)
        names["root_agent"].model = FunctionModel(lambda _: says("The price of GOOG is 190.5."))
        await names["main"]()
    assert capsys.readouterr().out == "The price of GOOG is 190.5.\n"
