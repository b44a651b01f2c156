"""The reimbursement example runs on each provider: one string changes, and the conversation stays the same."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_services import FakeAnthropic, FakeOpenAI
from tests.paths import EXAMPLES
from tests.server.conftest import Serve
from tests.tiers import FULL
from waystation.apps.registry import discover
from waystation.core.contract import text_of
from waystation.testing import FakeGemini, ScriptedHuman

MEALS = {"purpose": "meals", "amount": 200.0}
MODELS: list[tuple[str, str, type[Any], dict[str, str]]] = [
    (
        "gemini-3.5-flash",
        "google.genai",
        FakeGemini,
        {"GOOGLE_GEMINI_BASE_URL": "{url}", "GOOGLE_API_KEY": "key-for-tests"},
    ),
    ("gpt-5.6-sol", "openai", FakeOpenAI, {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "key-for-tests"}),
    (
        "claude-sonnet-5-5",
        "anthropic",
        FakeAnthropic,
        {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "key-for-tests"},
    ),
    (
        "anthropic/claude-sonnet-5-5",
        "litellm",
        FakeAnthropic,
        {"ANTHROPIC_API_BASE": "{url}", "ANTHROPIC_API_KEY": "key-for-tests"},
    ),
]
"""The model, its client library, the fake of its service, and the environment."""


# LiteLLM's own code.
@pytest.mark.filterwarnings("ignore:Accessing the 'model_")
@pytest.mark.parametrize(("name", "package", "fake", "environment"), MODELS, ids=[model[0] for model in MODELS])
async def test_the_example_runs_on_each_provider(
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    package: str,
    fake: type[Any],
    environment: dict[str, str],
) -> None:
    """The manager approves, and the agent reimburses the amount."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the extra {package} is not installed")
    if package == "litellm" and not os.environ.get(FULL):
        pytest.skip("its import takes many seconds")
    copied = f"reimbursement_{package.replace('.', '_')}"
    shutil.copytree(EXAMPLES / "reimbursement", tmp_path / copied)
    source = tmp_path / copied / "agent.py"
    text = source.read_text()
    assert text.count('"gemini-3.5-flash"') == 1
    source.write_text(text.replace('"gemini-3.5-flash"', f'"{name}"'))
    monkeypatch.setattr(sys, "path", [*sys.path])
    registry, problems = discover([tmp_path])
    assert problems == []
    async with fake() as service:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value.format(url=service.url))
        service.reply(calls=[("ask_for_approval", MEALS)])
        service.reply(text="I asked.")
        service.reply(calls=[("reimburse", MEALS)])
        service.reply(text="Reimbursed.")
        async with serve(registry.roots["reimbursement_agent"].agent) as env:
            invocation = await env.client.start("reimbursement_agent", "200$ for meals")
            events = await ScriptedHuman("approve").attend(invocation)
            assert (await invocation.result()).text == "Reimbursed."
    made = [(call["name"], call["args"]) for event in events for call in event.function_calls()]
    assert made == [("ask_for_approval", MEALS), ("reimburse", MEALS)]
    texts = [text_of(event.content) for event in events if event.author != "user"]
    assert list(filter(None, texts)) == ["I asked.", "Reimbursed."]
    assert len(service.requests) == 4
