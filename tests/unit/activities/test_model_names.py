"""A worker refuses agents without a usable model, and no others."""

import importlib.util
import re
import sys
from datetime import date
from pathlib import Path

import pytest

from waystation.activities.model_call.request import model_name
from waystation.activities.model_choice import (
    DEMO,
    Models,
    find_agents_without_model,
    find_foreign_model_names,
    list_model_warnings,
)
from waystation.agents import Agent
from waystation.agents.callback_context import CallbackContext
from waystation.apps import App, EventsCompactionConfig, LlmEventSummarizer
from waystation.apps.registry import Registry
from waystation.models import LlmRequest, LlmResponse, providers
from waystation.models.fallback_model import FallbackModel
from waystation.models.google_llm import Gemini
from waystation.models.providers import PROVIDERS, find_provider
from waystation.models.registry import LLMRegistry
from waystation.plugins.base_plugin import BasePlugin
from waystation.testing import ScriptedModel, says
from waystation.worker.main import check
from waystation.worker.tool_checks import list_undescribed_tools


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove keys and gateways from the environment, and look for packages only in this folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    variables = [name for provider in PROVIDERS for name in provider.variables]
    for name in (*variables, "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "name",
    [
        "gemini-3.5-flash",
        "gemini-flash-latest",
        "Gemini-3.1-pro-preview",
        "gemma-4-31b-it",
        "learnlm-2.0-flash-experimental",
        "model-optimizer-exp-04-09",
        "nano-banana-pro-preview",
        "models/anything",
        "tunedModels/anything-1x",
        "projects/p/locations/l/endpoints/123",
        "projects/p/locations/l/publishers/google/models/gemini-3.1-pro-preview",
        "publishers/google/models/gemini-3.1-pro-preview",
        "google/gemini-3.1-pro-preview",
        "meta/llama-4-maverick-17b-128e-instruct-maas",
        "openai/gpt-oss-120b-maas",
    ],
)
def test_names_of_gemini_and_vertex_are_accepted(name: str) -> None:
    """All forms of model names that google-genai accepts are valid."""
    provider = find_provider(name)
    assert provider is not None
    assert provider.name == "Gemini"


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("gpt-5.6-sol", "OpenAI"),
        ("o3-mini", "OpenAI"),
        ("claude-sonnet-5-5", "Anthropic"),
        ("anthropic/claude-sonnet-5-5", "LiteLLM"),
        ("openai/gpt-4o", "LiteLLM"),
        ("gemini/gemini-3.5-flash", "LiteLLM"),
        ("ollama_chat/llama4", "LiteLLM"),
        ("geminy-3.5-flash", None),
        ("llama4", None),
    ],
)
def test_other_names_go_to_their_adapters(name: str, provider: str | None) -> None:
    """Each name goes to the adapter that ADK would choose; misspelled names have no adapter."""
    provider_found = find_provider(name)
    assert (provider_found.name if provider_found else None) == provider


def test_a_name_without_its_extra_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line names the model, the extra and the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    [problem] = find_foreign_model_names(Registry.of(Agent(name="a", model="claude-sonnet-5-5")))
    assert str(problem.error) == (
        "Agent 'a': the model 'claude-sonnet-5-5' requires the extra `anthropic`. Install it with: "
        "pip install 'waystation[anthropic]'"
    )


def test_a_name_without_credentials_is_refused_with_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable of the provider."""
    registry = Registry.of(Agent(name="a", model="claude-sonnet-5-5"))
    [problem] = find_agents_without_model(registry)
    assert str(problem.error) == (
        "Agent 'a': there are no credentials for Anthropic. Set ANTHROPIC_API_KEY; or use "
        "`--model demo`, which needs none."
    )
    assert not list(find_agents_without_model(registry, DEMO))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a test's key")
    assert not list(find_agents_without_model(registry))


def test_problems_of_agents_that_adk_create_named_name_their_packages(tmp_path: Path) -> None:
    """The problem names the package, because all these agents are named `root_agent`."""
    for package in ("coasts", "plains"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "agent.py").write_text(
            "from waystation.agents import Agent\n"
            "def look_up(city: str) -> str: return city\n"
            "root_agent = Agent(name='root_agent', model='gemini-2.5-flash', tools=[look_up])\n"
        )
    registry, _ = check([tmp_path])
    texts = [
        *(str(problem.error) for problem in find_agents_without_model(registry)),
        *list_model_warnings(registry, date(2027, 1, 1)),
        *list_undescribed_tools(registry),
    ]
    named = [re.search("agent '(.+?)'", text, re.IGNORECASE) for text in texts]
    assert [match and match[1] for match in named] == ["coasts", "plains"] * 3


def test_check_names_agent_model_and_remedy(tmp_path: Path) -> None:
    """The output of `check` names the agent, even a sub-agent; with demo models, any name is valid."""
    package = tmp_path / "abroad"
    package.mkdir()
    (package / "agent.py").write_text(
        "from waystation.agents import Agent\n"
        "inner = Agent(name='inner', model='gtp-4o')\n"
        "root_agent = Agent(name='outer', model='gemini-3.5-flash', sub_agents=[inner])\n"
    )
    _, [problem] = check([tmp_path])
    assert problem.place == str(package / "agent.py")
    assert str(problem.error) == (
        "Agent 'inner': the model 'gtp-4o' is not a model of Gemini, Anthropic or OpenAI, nor a `provider/model` of "
        "LiteLLM. Correct the name, pass a model object, or register its class with LLMRegistry."
    )
    assert check([tmp_path], DEMO)[1] == []


def answers(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse:
    """Return a reply in place of the model."""
    return says("Hello.")


class Answering(BasePlugin):
    """A plugin that replies in place of the model."""

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Return a reply."""
        return says("Hello.")


def test_the_name_of_an_unused_model_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is not checked if a model object, a callback, a plugin, a demo model or a gateway replaces Gemini."""

    def count_problems(agent: Agent | App) -> int:
        return len(list(find_foreign_model_names(Registry.of(agent))))

    plain = Agent(name="a", model="gtp-4o")
    assert (
        count_problems(plain)
        == count_problems(App(name="app", root_agent=plain, plugins=[BasePlugin(name="idle")]))
        == 1
    )
    assert count_problems(Agent(name="a", model=ScriptedModel())) == 0
    assert count_problems(Agent(name="a", model="gtp-4o", before_model_callback=answers)) == 0
    assert count_problems(App(name="app", root_agent=plain, plugins=[Answering(name="answering")])) == 0
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:1")
    assert count_problems(plain) == 0


def test_a_demo_model_is_used_only_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is checked if there is a key, because it is sent to Gemini."""
    package = tmp_path / "demonstrated"
    package.mkdir()
    (package / "agent.py").write_text(
        "from waystation.agents import Agent\n"
        "from waystation.testing import ScriptedModel\n"
        "demo_model = ScriptedModel()\n"
        "root_agent = Agent(name='demonstrated', model='gtp-4o')\n"
    )
    assert check([tmp_path])[1] == []
    monkeypatch.setenv("GOOGLE_API_KEY", "a test's key")
    assert len(check([tmp_path])[1]) == 1


BARE = "from waystation.agents import Agent\nroot_agent = Agent(name='bare')\n"


def test_an_agent_with_a_usable_model_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model object, a callback, a key or a gateway makes an agent usable."""

    def refused(agent: Agent) -> int:
        return len(list(find_agents_without_model(Registry.of(agent))))

    assert refused(Agent(name="a")) == 1
    assert refused(Agent(name="a", model=ScriptedModel(), sub_agents=[Agent(name="b")])) == 0
    assert refused(Agent(name="a", before_model_callback=answers)) == 0
    monkeypatch.setenv("GOOGLE_API_KEY", "a test's key")
    assert refused(Agent(name="a")) == 0
    monkeypatch.delenv("GOOGLE_API_KEY")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:1")
    assert refused(Agent(name="a")) == 0


def test_the_model_of_a_summarizer_is_checked() -> None:
    """The model of a summarizer is checked like an agent's."""
    compaction = EventsCompactionConfig(summarizer=LlmEventSummarizer("gtp-4o"), compaction_interval=2, overlap_size=1)
    app = App(name="app", root_agent=Agent(name="a", model="gemini-3.5-flash"), events_compaction_config=compaction)
    assert [str(problem.error).partition(",")[0] for problem in find_foreign_model_names(Registry.of(app))] == [
        "Agent 'a': the model 'gtp-4o' is not a model of Gemini"
    ]


def test_model_object_without_a_name_requests_the_default_of_its_class() -> None:
    """`Gemini()` requests Gemini's default model, as in ADK, and not a model with the name of the class."""
    assert model_name(Agent(name="a", model=Gemini())) == "gemini-3.5-flash"
    assert model_name(Agent(name="a", model=Gemini(model="gemini-3.1-pro"))) == "gemini-3.1-pro"
    assert FallbackModel([Gemini(), "gpt-5.6-sol"]).names() == ["gemini-3.5-flash", "gpt-5.6-sol"]


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai/gpt-5.6-sol", "OPENAI_API_KEY"),
        ("anthropic/claude-sonnet-5-5", "ANTHROPIC_API_KEY"),
        ("groq/llama4", "GROQ_API_KEY"),
    ],
)
def test_credentials_for_litellm_are_checked_by_prefix(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider with a single key is refused without it, before anything runs."""
    registry = Registry.of(Agent(name="a", model=name))
    [problem] = find_agents_without_model(registry)
    assert f"no credentials for LiteLLM. Set {variable}" in str(problem.error)
    monkeypatch.setenv(variable, "a test's key")
    assert not list(find_agents_without_model(registry))


def test_credentials_that_litellm_finds_itself_are_not_checked() -> None:
    """Ollama needs no key, and Amazon's keys may be in a file, so neither is checked."""
    for name in ("ollama/llama4", "bedrock/anthropic.claude"):
        assert not list(find_agents_without_model(Registry.of(Agent(name="a", model=name))))


class OwnLlm(ScriptedModel):
    """A registered model."""

    def __init__(self, model: str) -> None:
        super().__init__(says("Hello."))
        self.model = model

    @classmethod
    def supported_models(cls) -> list[str]:
        """Return two kinds of names; Waystation's own adapter has the second one."""
        return [r"own-\d", r"claude-own"]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the model until the test ends."""
    monkeypatch.setattr(providers, "_REGISTERED", {})
    LLMRegistry.register(OwnLlm)


@pytest.mark.usefixtures("registered")
def test_registered_class_serves_its_names() -> None:
    """Agents can name models of a registered class, as with ADK's registry. Each name has its own instance."""
    registry = Registry.of(Agent(name="a", model="own-1", sub_agents=[Agent(name="b", model="claude-own")]))
    assert [*find_foreign_model_names(registry), *find_agents_without_model(registry)] == []
    models = Models()
    first, second = models.named("own-1", "a"), models.named("claude-own", "b")
    assert models.named("own-1", "a") is first
    assert isinstance(first, OwnLlm)
    assert (first.model, second.model) == ("own-1", "claude-own")


@pytest.mark.usefixtures("registered")
def test_registry_resolves_names() -> None:
    """Registered classes come first, then Waystation's. A name must match completely."""
    assert LLMRegistry.resolve("own-1") is OwnLlm
    assert LLMRegistry.resolve("gemini-3.5-flash") is Gemini
    assert LLMRegistry.new_llm("gemini-3.5-flash").model == "gemini-3.5-flash"
    with pytest.raises(ValueError, match=r"the model 'own-12' is not a model of .*LLMRegistry"):
        LLMRegistry.resolve("own-12")
