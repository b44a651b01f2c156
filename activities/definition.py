"""What of a model request is the agent's declaration, so that a change of it shows in the history."""

from typing import Any

from waystation.agents.llm_agent import LlmAgent
from waystation.agents.memoize import memoize
from waystation.core.payload import digest, encode
from waystation.models import LlmRequest


def definition_digest(agent: LlmAgent, request: LlmRequest) -> str:
    """Return a digest of all that the agent's declaration contributed to a request, so that a change shows."""
    native = [list(request.native_tools)] if request.native_tools else []
    declared = [request.model, _declared_instruction(agent, request), list(request.tools), request.config, *native]
    # Writing it costs a tenth of sorting it first, and it rarely differs from one call to the next.
    return memoize(agent, "_definition", encode(declared), lambda: digest(declared)[:12])


def _declared_instruction(agent: LlmAgent, request: LlmRequest) -> Any:
    """Return the instruction as it is declared: what state fills in is no change of the agent."""
    given = [getattr(agent.root_agent, "global_instruction", ""), agent.instruction]
    if all(isinstance(text, str) and "{" not in text for text in given):
        return request.system_instruction
    named = [text if isinstance(text, str) else getattr(text, "__qualname__", type(text).__name__) for text in given]
    return [*named, agent.description]
