"""A worker refuses agents without a usable model, and no others."""

import sys
from pathlib import Path

import pytest

from waystation.activities.model_choice import (
    DEMO,
    KEY_VARIABLES,
    can_be_gemini,
    find_agents_without_model,
    find_foreign_model_names,
)
from waystation.agents import Agent
from waystation.agents.callback_context import CallbackContext
from waystation.agents.registry import Registry
from waystation.apps import App, EventsCompactionConfig, LlmEventSummarizer
from waystation.models import LlmRequest, LlmResponse
from waystation.plugins.base_plugin import BasePlugin
from waystation.testing import ScriptedModel, says
from waystation.worker.main import check


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove keys and gateways from the environment, and find packages only here."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in (*KEY_VARIABLES, "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "name",
    [
        "gemini-2.5-flash",
        "gemini-flash-latest",
        "Gemini-2.5-pro",
        "gemma-4-31b-it",
        "learnlm-2.0-flash-experimental",
        "model-optimizer-exp-04-09",
        "nano-banana-pro-preview",
        "models/anything",
        "tunedModels/anything-1x",
        "projects/p/locations/l/endpoints/123",
        "projects/p/locations/l/publishers/google/models/gemini-2.5-pro",
        "publishers/google/models/gemini-2.5-pro",
        "google/gemini-2.5-pro",
        "meta/llama-4-maverick-17b-128e-instruct-maas",
        "openai/gpt-oss-120b-maas",
    ],
)
def test_names_of_gemini_and_vertex_are_taken(name: str) -> None:
    """All forms of model names that google-genai accepts are valid."""
    assert can_be_gemini(name)


@pytest.mark.parametrize(
    "name",
    ["gpt-4o", "o3-mini", "claude-sonnet-4-5", "geminy-2.5-flash", "openai/gpt-4o", "gemini/gemini-2.5-flash"],
)
def test_names_of_others_are_not(name: str) -> None:
    """Names of other providers, of LiteLLM and misspelled names are not valid."""
    assert not can_be_gemini(name)


def test_check_names_agent_model_and_remedy(tmp_path: Path) -> None:
    """`check` names the agent, also a sub-agent; with demo models no name matters."""
    package = tmp_path / "abroad"
    package.mkdir()
    (package / "agent.py").write_text(
        "from waystation.agents import Agent\n"
        "inner = Agent(name='inner', model='gpt-4o')\n"
        "root_agent = Agent(name='outer', model='gemini-2.5-flash', sub_agents=[inner])\n"
    )
    _, [problem] = check([tmp_path])
    assert problem.place == str(package / "agent.py")
    assert str(problem.error) == (
        "Agent 'inner': the model 'gpt-4o' is not a Gemini model, and model names are sent to Gemini. Use a name such "
        "as 'gemini-2.5-flash', or pass a `BaseLlm` for another provider."
    )
    assert check([tmp_path], DEMO)[1] == []


def answers(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse:
    """Answer instead of the model."""
    return says("Hello.")


class Answering(BasePlugin):
    """Answers instead of the model."""

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Answer."""
        return says("Hello.")


def test_the_name_of_a_model_that_is_never_asked_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is not checked if a model object, a callback, a plugin, a demo model or a gateway replaces Gemini."""

    def refused(given: Agent | App) -> int:
        return len(list(find_foreign_model_names(Registry.of(given))))

    plain = Agent(name="a", model="gpt-4o")
    assert refused(plain) == refused(App(name="app", root_agent=plain, plugins=[BasePlugin(name="idle")])) == 1
    assert refused(Agent(name="a", model=ScriptedModel())) == 0
    assert refused(Agent(name="a", model="gpt-4o", before_model_callback=answers)) == 0
    assert refused(App(name="app", root_agent=plain, plugins=[Answering(name="answering")])) == 0
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:1")
    assert refused(plain) == 0


def test_a_stand_in_is_used_only_as_long_as_there_is_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key the name is checked, because it is sent to Gemini."""
    package = tmp_path / "demonstrated"
    package.mkdir()
    (package / "agent.py").write_text(
        "from waystation.agents import Agent\n"
        "from waystation.testing import ScriptedModel\n"
        "demo_model = ScriptedModel()\n"
        "root_agent = Agent(name='demonstrated', model='gpt-4o')\n"
    )
    assert check([tmp_path])[1] == []
    monkeypatch.setenv("GOOGLE_API_KEY", "a test's key")
    assert len(check([tmp_path])[1]) == 1


BARE = "from waystation.agents import Agent\nroot_agent = Agent(name='bare')\n"


def test_an_agent_that_some_model_answers_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model object, a callback, a key or a gateway makes an agent usable."""

    def refused(given: Agent) -> int:
        return len(list(find_agents_without_model(Registry.of(given))))

    assert refused(Agent(name="a")) == 1
    assert refused(Agent(name="a", model=ScriptedModel(), sub_agents=[Agent(name="b")])) == 0
    assert refused(Agent(name="a", before_model_callback=answers)) == 0
    monkeypatch.setenv("GOOGLE_API_KEY", "a test's key")
    assert refused(Agent(name="a")) == 0
    monkeypatch.delenv("GOOGLE_API_KEY")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:1")
    assert refused(Agent(name="a")) == 0


def test_the_model_of_a_summarizer_is_looked_at() -> None:
    """The model of a summarizer is checked like an agent's."""
    compaction = EventsCompactionConfig(summarizer=LlmEventSummarizer("gpt-4o"), compaction_interval=2, overlap_size=1)
    app = App(name="app", root_agent=Agent(name="a", model="gemini-2.5-flash"), events_compaction_config=compaction)
    assert [str(problem.error).partition(",")[0] for problem in find_foreign_model_names(Registry.of(app))] == [
        "Agent 'a': the model 'gpt-4o' is not a Gemini model"
    ]
