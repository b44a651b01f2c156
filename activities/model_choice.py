"""Which model an agent gets: its own, Gemini by name, or the offline stand-in of its package."""

import os

from waystation.agents.llm_agent import LlmAgent
from waystation.core.errors import ModelRefused
from waystation.models import BaseLlm
from waystation.models.google_llm import Gemini

DEMO = "demo"
KEY_VARIABLES = (
    "GOOGLE_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GOOGLE_GENAI_USE_ENTERPRISE",
)


class Models:
    """The models of one worker process; connections are shared and closed together."""

    def __init__(self, override: str | BaseLlm | None = None) -> None:
        """`override` replaces the model of every agent: `demo` for the stand-ins, or a model."""
        self._override = override
        self._gemini: Gemini | None = None

    def of(self, agent: LlmAgent, demo: object = None) -> BaseLlm:
        """Return the model for an agent.

        Raises:
            ModelRefused: The stand-in is asked for, and the agent's package has none.
        """
        if isinstance(self._override, BaseLlm):
            return self._override
        return self.named(agent.canonical_model, agent.name, demo)

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
                    f"Agent {agent!r} has no offline stand-in; its package would define `demo_model`. "
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
