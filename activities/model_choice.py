"""Choose the model for an agent: its own instance, the adapter for its model name, or its package's demo model.

At startup, workers check that every agent has a usable model: a known name, credentials or a demo model.
"""

from collections.abc import Iterator
from datetime import date

from waystation.agents.llm_agent import LlmAgent
from waystation.apps import LlmEventSummarizer
from waystation.apps.registry import Problem, Registry, Root
from waystation.core.errors import InvalidAgent, ModelRefused
from waystation.models import BaseLlm
from waystation.models.fallback_model import FallbackModel
from waystation.models.known_models import known_models
from waystation.models.providers import GEMINI, find_name_problem, find_provider, has_gateway
from waystation.plugins.base_plugin import BasePlugin

DEMO = "demo"
_NO_KEY = "there are no credentials for {}. Set {}; or use `--model demo`, which needs none."
_VERTEX = ", or for Vertex AI GOOGLE_GENAI_USE_VERTEXAI=true, GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION"


class Models:
    """The models that one worker process uses. They share connections, which are closed together."""

    def __init__(self, override: str | BaseLlm | None = None) -> None:
        """Store the settings.

        `override` is a model that replaces every agent's model, or `demo`, which replaces each model that is given by
        name or calls a service with the package's demo model or, if it has none, the built-in one.
        """
        self._override = override
        self._adapters: dict[str, BaseLlm] = {}

    def of(self, agent: LlmAgent, demo: object = None) -> BaseLlm:
        """Return the model for an agent: the override, the agent's own instance, `demo`, or the adapter for its name.

        `demo` is the package's demo model, which is used if the override is `demo` or there are no credentials for the
        provider of the model.

        Raises:
            ModelRefused: No adapter serves the name.
        """
        model = self._override if isinstance(self._override, BaseLlm) else agent.declared_model
        return self.named(model, agent.name, demo)

    def named(self, model: str | BaseLlm, agent: str, demo: object = None) -> BaseLlm:
        """Return the model to use for an agent, given an instance or a model name.

        An instance is returned unchanged, unless the override is `demo` and the instance calls a service. For a name,
        it is the override if that is a model, or else the demo model `demo` or an adapter, as in `of`.

        Raises:
            ModelRefused: No adapter serves the name.
        """
        if self._override == DEMO and (isinstance(model, str) or model.is_service):
            from waystation.models.demo_model import demo_model  # rarely needed

            return demo if isinstance(demo, BaseLlm) else demo_model
        if isinstance(model, BaseLlm):
            return model
        if isinstance(self._override, BaseLlm):
            return self._override
        provider = find_provider(model)
        if isinstance(demo, BaseLlm) and not (provider and provider.has_credentials()):
            return demo
        if provider is None or provider.find_problem():
            raise ModelRefused(f"Agent {agent!r}: {find_name_problem(model)}")
        return provider.adapter_for(model, self._adapters)

    async def close(self) -> None:
        """Close the shared connections."""
        for adapter in self._adapters.values():
            await adapter.close()


def has_api_key() -> bool:
    """Return whether the environment contains an API key for Gemini, or enables Vertex AI."""
    return GEMINI.has_credentials()


def find_agents_without_model(registry: Registry, model: str | None = None) -> Iterator[Problem]:
    """Yield a problem for each package with an agent whose model is given by name and cannot be used in this process.

    The model cannot be used if there are neither credentials nor a demo model.

    A worker that served them would fail every open invocation, even one that has been waiting for weeks. `model` is the
    override that is passed to `Models`.
    """
    if model == DEMO or has_gateway():
        return
    for root in registry.roots.values():
        for agent in _agents_with_models(root) if root.demo_model is None else ():
            name = agent.declared_model
            provider = find_provider(name) if isinstance(name, str) else None
            if provider is None or provider.has_credentials():
                continue
            variables = f"{provider.variables[0]}{_VERTEX if provider is GEMINI else ''}" if provider.variables else ""
            yield Problem(root.place, InvalidAgent(root.name_of(agent), _NO_KEY.format(provider.name, variables)))
            break


def find_foreign_model_names(registry: Registry) -> Iterator[Problem]:
    """Yield a problem for each model name that no installed adapter serves.

    If a package has a demo model that replaces its models, skip its model names.
    """
    for root in registry.roots.values():
        for agent, name in _model_names(root):
            provider = find_provider(name)
            has_demo = root.demo_model is not None and not (provider or GEMINI).has_credentials()
            if not has_demo and (problem := find_name_problem(name)):
                yield Problem(root.place, InvalidAgent(agent, problem))


def list_model_warnings(registry: Registry, today: date) -> Iterator[str]:
    """Yield a warning for each model that is retired, will be retired, is not known or has no known price.

    Skip names if a custom endpoint is set, because it may serve any model.
    """
    for root in registry.roots.values():
        named = [] if has_gateway() else list(_model_names(root))
        for agent in _agents_with_models(root):
            model = agent.model
            names = model.names() if isinstance(model, FallbackModel) else [getattr(model, "model", None)]
            named += [(root.name_of(agent), name) for name in names if name]
        for owner, name in named:
            if problem := known_models().find_problem(name, today):
                yield f"Agent {owner!r}: {problem}"


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
            yield root.name_of(agent), agent.model
    summarizer = root.compaction.summarizer if root.compaction else None
    if isinstance(summarizer, LlmEventSummarizer) and isinstance(summarizer.llm, str):
        yield root.name, summarizer.llm
