"""Choose the model for an agent: its own instance, Gemini by model name, or its package's demo model.

At startup, workers check that every agent has a usable model: a known name, credentials or a demo model.
"""

import os
import re
from collections.abc import Iterator

from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Problem, Registry, Root
from waystation.apps import LlmEventSummarizer
from waystation.core import InvalidAgent, ModelRefused
from waystation.models import BaseLlm
from waystation.models.google_llm import Gemini
from waystation.plugins.base_plugin import BasePlugin

DEMO = "demo"
KEY_VARIABLES = (
    "GOOGLE_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GOOGLE_GENAI_USE_ENTERPRISE",
)
_FAMILIES = re.compile(r"(gemini|gemma|learnlm|model-optimizer|nano-banana|deep-research)", re.IGNORECASE)
"""Matches names of Google models that generate content. Other names without a slash are not accepted for Gemini."""
_ELSEWHERE = re.compile(
    r"(azure|bedrock|gemini|groq|ollama|ollama_chat|openrouter|vertex_ai)/|[^/]+/(gpt-\d|chatgpt|o\d)", re.IGNORECASE
)
"""Matches LiteLLM `provider/model` names that the Gemini API does not accept: common providers, and OpenAI models of
any provider. Other names with a slash do not match, because they may be resource names or partner models on Vertex
AI."""
_GATEWAYS = ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL")
"""Variables that set a custom endpoint. If one is set, model names are not checked, because it may serve any model."""

_NO_DEMO = "its package has no demo model, which `--model demo` requires. Define `demo_model` there, or omit `--model`."
_NO_KEY = (
    "there are no credentials for Gemini, and its package has no demo model. Set GOOGLE_API_KEY, or for "
    "Vertex AI GOOGLE_GENAI_USE_VERTEXAI=true, GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION; or define `demo_model` "
    "there."
)


class Models:
    """The models that one worker process uses. They share connections, which are closed together."""

    def __init__(self, override: str | BaseLlm | None = None) -> None:
        """Store the settings.

        `override` is a model that replaces every agent's model, or `demo`, which replaces each model that is given by
        name with the package's demo model.
        """
        self._override = override
        self._gemini: Gemini | None = None

    def of(self, agent: LlmAgent, demo: object = None) -> BaseLlm:
        """Return the model for an agent: the override, the agent's own instance, `demo`, or Gemini.

        `demo` is the package's demo model, which is used if the override is `demo` or there are no credentials.

        Raises:
            ModelRefused: A demo model is required, but the agent's package has none.
        """
        model = self._override if isinstance(self._override, BaseLlm) else agent.canonical_model
        return self.named(model, agent.name, demo)

    def named(self, model: str | BaseLlm, agent: str, demo: object = None) -> BaseLlm:
        """Return the model to use for an agent, given an instance, which is returned unchanged, or a model name.

        For a name, it is the override if that is a model, or else the demo model `demo` or Gemini, as in `of`.

        Raises:
            ModelRefused: A demo model is required, but the agent's package has none.
        """
        if isinstance(model, BaseLlm):
            return model
        if isinstance(self._override, BaseLlm):
            return self._override
        if self._override == DEMO or (demo is not None and not has_api_key()):
            if not isinstance(demo, BaseLlm):
                raise ModelRefused(
                    f"Agent {agent!r} has no demo model. Define `demo_model` in its package, or set "
                    "GOOGLE_API_KEY to use Gemini."
                )
            return demo
        if self._gemini is None:
            self._gemini = Gemini()
        return self._gemini

    async def close(self) -> None:
        """Close the shared connections."""
        if self._gemini is not None:
            await self._gemini.close()


def has_api_key() -> bool:
    """Return whether the environment contains an API key for Gemini, or enables Vertex AI."""
    return any(os.environ.get(name) for name in KEY_VARIABLES)


def find_agents_without_model(registry: Registry, model: str | None = None) -> Iterator[Problem]:
    """Yield a problem for each package with an agent whose model is given by name and cannot be used in this process.

    The model cannot be used if the package has no demo model, and Gemini is not available or `model` is `demo`.

    A worker that served them would fail every open invocation, even one that has been waiting for weeks. `model` is the
    override that is passed to `Models`.
    """
    if model != DEMO and (has_api_key() or _has_gateway()):
        return
    for root in registry.roots.values():
        agent = next((agent for agent in _agents_with_models(root) if isinstance(agent.canonical_model, str)), None)
        if agent is not None and root.demo_model is None:
            yield Problem(root.place, InvalidAgent(agent.name, _NO_DEMO if model == DEMO else _NO_KEY))


def find_foreign_model_names(registry: Registry) -> Iterator[Problem]:
    """Yield a problem for each model name that is not the name of a Gemini model.

    Skip all names if a custom endpoint is set, and the names in a package whose demo model replaces its models.
    """
    if _has_gateway():
        return
    for root in registry.roots.values():
        has_demo = root.demo_model is not None and not has_api_key()
        for agent, name in _model_names(root):
            if not has_demo and not can_be_gemini(name):
                text = (
                    f"the model {name!r} is not a Gemini model, and model names are sent to Gemini. Use a name such as "
                    "'gemini-2.5-flash', or pass a `BaseLlm` for another provider."
                )
                yield Problem(root.place, InvalidAgent(agent, text))


def can_be_gemini(name: str) -> bool:
    """Return whether the Gemini API or Vertex AI may offer a model with this name."""
    return not _ELSEWHERE.match(name) if "/" in name else bool(_FAMILIES.match(name))


def _has_gateway() -> bool:
    return any(os.environ.get(name) for name in _GATEWAYS)


def _agents_with_models(root: Root) -> Iterator[LlmAgent]:
    """Yield the agents whose own model is certain to be called.

    Skip agents with a `before_model` callback, which may replace the model. If a plugin has one, skip all agents.
    """
    is_replaced = any(
        type(plugin).before_model_callback is not BasePlugin.before_model_callback for plugin in root.plugins
    )
    for agent in root.tree.values():
        if isinstance(agent, LlmAgent) and not is_replaced and not agent.before_model_callback:
            yield agent


def _model_names(root: Root) -> Iterator[tuple[str, str]]:
    """Yield pairs of an agent name and a model name that the agent uses. The summarizer's belongs to the root agent."""
    for agent in _agents_with_models(root):
        if isinstance(agent.model, str) and agent.model:
            yield agent.name, agent.model
    summarizer = root.compaction.summarizer if root.compaction else None
    if isinstance(summarizer, LlmEventSummarizer) and isinstance(summarizer.llm, str):
        yield root.agent.name, summarizer.llm
