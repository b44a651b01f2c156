"""Find the adapter for a model that an agent gives by name, as ADK's `LLMRegistry` does.

Models that the program has registered come first, then Waystation's own, then those of other packages. Only Vertex AI,
which may serve any name with a slash, comes after them.
"""

import importlib
import importlib.util
import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import EntryPoint
from typing import cast

from waystation.extensions import MODELS, ExtensionFailed, find_extensions, load_extension
from waystation.models.base_llm import BaseLlm

_GATEWAYS = ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL")
"""Variables that set a custom endpoint. If one is set, all names are sent to it, because it may serve any model."""


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A provider of models that are known by name."""

    name: str
    matches: re.Pattern[str]
    """Matches the beginnings of the names of its models."""
    adapter: tuple[str, str]
    """The module and the class of the adapter."""
    package: str
    """The client library. For providers other than Gemini, it is also the name of the extra that installs it."""
    variables: tuple[str, ...] = ()
    """Environment variables with credentials. One of them must be set. Empty if the adapter finds them elsewhere."""
    registered: type[BaseLlm] | None = None
    """The class of the adapter if the program has registered it. An instance serves one name, given to its
    constructor."""
    extension: EntryPoint | None = None
    """The entry point of the adapter if another package provides it. An instance serves one name, too."""

    def has_credentials(self) -> bool:
        """Return whether the environment has credentials."""
        return not self.variables or any(os.environ.get(name) for name in self.variables)

    def find_problem(self) -> str | None:
        """Return why the adapter cannot be loaded, with the remedy, or None."""
        extra = self.package
        if extra not in ("", "google.genai") and importlib.util.find_spec(extra) is None:
            return f"requires the extra `{extra}`. Install it with: pip install 'waystation[{extra}]'"
        try:
            if self.extension is not None:
                self.load()
        except ExtensionFailed as error:
            return f"cannot be used. {error}"
        return None

    def load(self) -> type[BaseLlm]:
        """Return the class of the adapter."""
        if self.extension is not None:
            return cast(type[BaseLlm], load_extension(self.extension))
        module, name = self.adapter
        return self.registered or getattr(importlib.import_module(module), name)

    def adapter_for(self, model: str, adapters: dict[str, BaseLlm]) -> BaseLlm:
        """Return the adapter for a model name from `adapters`, where it is added if it is missing.

        All names of one of Waystation's providers share one adapter, which takes the name from each request.
        """
        is_shared = self.registered is None and self.extension is None
        key = self.name if is_shared else f"{self.name}/{model}"
        if key not in adapters:
            adapters[key] = self.load()(**{} if is_shared else {"model": model})
        return adapters[key]


_GEMINI = r"gemini|gemma|learnlm|model-optimizer|nano-banana|deep-research|(models|tunedModels|projects|publishers)/"
GEMINI = Provider(
    name="Gemini",
    # A name with a slash may be a resource name or a partner model on Vertex AI.
    matches=re.compile(f"{_GEMINI}|[^/]+/", re.IGNORECASE),
    adapter=("waystation.models.google_llm", "Gemini"),
    package="google.genai",
    variables=("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"),
)


def _litellm(prefixes: str, *variables: str) -> Provider:
    return Provider(
        name="LiteLLM",
        matches=re.compile(f"({prefixes})/", re.IGNORECASE),
        adapter=("waystation.models.lite_llm", "LiteLlm"),
        package="litellm",
        variables=variables,
    )


PROVIDERS = (
    Provider(
        name="Anthropic",
        matches=re.compile(r"claude-"),
        adapter=("waystation.models.anthropic_llm", "AnthropicLlm"),
        package="anthropic",
        variables=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    ),
    Provider(
        name="OpenAI",
        matches=re.compile(r"gpt-|chatgpt-|o\d"),
        adapter=("waystation.models.openai_llm", "OpenAICompatible"),
        package="openai",
        variables=("OPENAI_API_KEY",),
    ),
    # `openai/…-maas` is a partner model on Vertex AI.
    _litellm(r"openai(?!/.*-maas$)", "OPENAI_API_KEY"),
    _litellm("anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    _litellm("gemini", "GEMINI_API_KEY", "GOOGLE_API_KEY"),
    _litellm("groq", "GROQ_API_KEY"),
    _litellm("mistral", "MISTRAL_API_KEY"),
    _litellm("deepseek", "DEEPSEEK_API_KEY"),
    # LiteLLM finds the credentials of these providers in several ways.
    _litellm(
        "ai21|azure|azure_ai|bedrock|cohere|databricks|fireworks_ai|ollama|ollama_chat|openrouter|together_ai|vertex_ai"
    ),
    GEMINI,
)
"""The first provider that matches a name serves it."""


_REGISTERED: dict[str, Provider] = {}
"""Providers that the program has registered, by regular expression."""


def register(pattern: str, adapter: type[BaseLlm]) -> None:
    """Let a class serve the model names that a regular expression matches completely."""
    _REGISTERED[pattern] = Provider(
        name=adapter.__name__, matches=re.compile(rf"(?:{pattern})\Z"), adapter=("", ""), package="", registered=adapter
    )


@cache
def _find_extension(name: str) -> Provider | None:
    """Return the provider of a model name that another package provides, or None."""
    for pattern, entry in find_extensions(MODELS).items():
        if fnmatchcase(name, pattern):
            return Provider(name=pattern, matches=re.compile(""), adapter=("", ""), package="", extension=entry)
    return None


def is_own(name: str) -> bool:
    """Return whether Waystation's own adapters serve a model name, and not only because it has a slash."""
    provider = next((provider for provider in PROVIDERS if provider.matches.match(name)), None)
    return provider is not None and (provider is not GEMINI or re.match(_GEMINI, name, re.IGNORECASE) is not None)


def has_gateway() -> bool:
    """Return whether a custom endpoint serves all models that are given by name."""
    return any(os.environ.get(name) for name in _GATEWAYS)


def find_provider(name: str) -> Provider | None:
    """Return the provider of a model name, or None if no provider has such names.

    Raises:
        ExtensionFailed: Two packages provide the same models.
    """
    own = next((provider for provider in _REGISTERED.values() if provider.matches.match(name)), None)
    if own or has_gateway():
        return own or GEMINI
    if not is_own(name) and (extension := _find_extension(name)):
        return extension
    return next((provider for provider in PROVIDERS if provider.matches.match(name)), None)


def load_class(name: str) -> type[BaseLlm]:
    """Return the class that serves a model name.

    Raises:
        ValueError: No installed adapter serves the name.
    """
    provider = find_provider(name)
    if provider is None or provider.find_problem():
        raise ValueError(find_name_problem(name))
    return provider.load()


def create_model(name: str) -> BaseLlm:
    """Return an adapter for one model.

    Raises:
        ValueError: No installed adapter serves the name.
    """
    return load_class(name)(model=name)


def find_name_problem(name: str) -> str | None:
    """Return why a model name cannot be used in this environment, with the remedy, or None."""
    provider = find_provider(name)
    if provider is None:
        return (
            f"the model {name!r} is not a model of Gemini, Anthropic or OpenAI, nor a `provider/model` of LiteLLM. "
            "Correct the name, pass a model object, or register its class with LLMRegistry."
        )
    problem = provider.find_problem()
    return problem and f"the model {name!r} {problem}"
