"""Which model an agent gets: its own, Gemini by name, or the offline demo model of its package.

Agents that no model would answer, for its name or for want of credentials, are found before anybody waits for them.
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
"""How the names begin that Google's APIs have for models that generate content."""
_ELSEWHERE = re.compile(
    r"(azure|bedrock|gemini|groq|ollama|ollama_chat|openrouter|vertex_ai)/|[^/]+/(gpt-\d|chatgpt|o\d)", re.IGNORECASE
)
"""`provider/model` as LiteLLM has it. What else has a slash may be a resource, or a publisher's model on Vertex AI."""
_GATEWAYS = ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL")
"""Behind one of one's own there may be models of any name."""

_NO_DEMO = (
    "its package has no demo model, which `--model demo` asks for. Define `demo_model` there, or leave `--model` out."
)
_NO_KEY = (
    "there are no credentials for Gemini here, and its package has no demo model. Set GOOGLE_API_KEY, or for "
    "Vertex AI GOOGLE_GENAI_USE_VERTEXAI=true, GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION; or define `demo_model` "
    "there."
)


class Models:
    """The models of one worker process; connections are shared and closed together."""

    def __init__(self, override: str | BaseLlm | None = None) -> None:
        """`override` replaces the model of every agent: `demo` for the demo models, or a model."""
        self._override = override
        self._gemini: Gemini | None = None

    def of(self, agent: LlmAgent, demo: object = None) -> BaseLlm:
        """Return the model for an agent.

        Raises:
            ModelRefused: The demo model is asked for, and the agent's package has none.
        """
        model = self._override if isinstance(self._override, BaseLlm) else agent.canonical_model
        return self.named(model, agent.name, demo)

    def named(self, model: str | BaseLlm, agent: str, demo: object = None) -> BaseLlm:
        """Return the model that is given, or has this name, for work on behalf of an agent.

        Raises:
            ModelRefused: As for `of`.
        """
        if isinstance(model, BaseLlm):
            return model
        if isinstance(self._override, BaseLlm):
            return self._override
        if self._override == DEMO or (demo is not None and not has_key()):
            if not isinstance(demo, BaseLlm):
                raise ModelRefused(
                    f"Agent {agent!r} has no demo model; its package would define `demo_model`. "
                    "Set GOOGLE_API_KEY to use Gemini."
                )
            return demo
        if self._gemini is None:
            self._gemini = Gemini()
        return self._gemini

    async def close(self) -> None:
        """Close the connections that were opened here."""
        if self._gemini is not None:
            await self._gemini.close()


def has_key() -> bool:
    """Whether the environment says how to reach Gemini."""
    return any(os.environ.get(name) for name in KEY_VARIABLES)


def unanswered(registry: Registry, model: str | None = None) -> Iterator[Problem]:
    """Yield a problem for each package whose agents have neither Gemini nor a demo model in this process.

    A worker that took them up would fail whatever goes on, also what has waited for weeks. `model` is as for `Models`.
    """
    if model != DEMO and (has_key() or _has_gateway()):
        return
    for root in registry.roots.values():
        agent = next((each for each in _asking(root) if isinstance(each.canonical_model, str)), None)
        if agent is not None and root.demo_model is None:
            yield Problem(root.place, InvalidAgent(agent.name, _NO_DEMO if model == DEMO else _NO_KEY))


def foreign_names(registry: Registry) -> Iterator[Problem]:
    """Yield a problem for each agent whose model's name would be sent to Gemini in vain."""
    if _has_gateway():
        return
    for root in registry.roots.values():
        replaced = root.demo_model is not None and not has_key()
        for agent, name in _names(root):
            if not replaced and not may_be_gemini(name):
                text = (
                    f"the model {name!r} is none of Gemini's, and names are sent there. Give a name such as "
                    "'gemini-2.5-flash', or for another provider a model of your own, a `BaseLlm`."
                )
                yield Problem(root.place, InvalidAgent(agent, text))


def may_be_gemini(name: str) -> bool:
    """Whether Gemini's API, or Vertex AI, may have a model of that name."""
    return not _ELSEWHERE.match(name) if "/" in name else bool(_FAMILIES.match(name))


def _has_gateway() -> bool:
    return any(os.environ.get(name) for name in _GATEWAYS)


def _asking(root: Root) -> Iterator[LlmAgent]:
    """Yield the agents that ask models: a callback may answer in a model's place."""
    stands_in = any(type(each).before_model_callback is not BasePlugin.before_model_callback for each in root.plugins)
    for agent in root.tree.values():
        if isinstance(agent, LlmAgent) and not stands_in and not agent.before_model_callback:
            yield agent


def _names(root: Root) -> Iterator[tuple[str, str]]:
    """Yield who names models, and the names that are sent somewhere."""
    for agent in _asking(root):
        if isinstance(agent.model, str) and agent.model:
            yield agent.name, agent.model
    summarizer = root.compaction.summarizer if root.compaction else None
    if isinstance(summarizer, LlmEventSummarizer) and isinstance(summarizer.llm, str):
        yield root.agent.name, summarizer.llm
