"""Put together what a model is asked, as the agent declares it.

Until somebody looks at it a request is plain JSON; see `waystation.activities.model_call.conversion` for those who do.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from waystation.activities.contexts import Contexts
from waystation.activities.model_call.instructions import InstructionFailed, instructions_of
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.memoize import memoize
from waystation.core import AgentRun, Compaction, JsonObject, decode, digest, encode
from waystation.core.conversation import prompt
from waystation.models import LlmRequest
from waystation.tools import BaseTool, BaseToolset, BuiltInCodeExecutionTool
from waystation.tools.base_tool import declare
from waystation.tools.json_schema import json_schema
from waystation.tools.native_tool import NativeTool
from waystation.tools.output_schema import SET_MODEL_RESPONSE

WRAP_UP = "The budget of this task is used up ({reason}). Do not call tools; answer now with what you have."


async def request_of(
    agent: LlmAgent,
    work: AgentRun,
    contexts: Contexts,
    tools: Mapping[str, BaseTool],
    attempt: int,
    compaction: Compaction | None = None,
    wrap_up: str | None = None,
) -> LlmRequest:
    """Return the request as the agent's declaration makes it, without what its tools change in it.

    `compaction` is a summary that is not recorded yet; `wrap_up` says why the model has to answer now, without tools.

    Raises:
        InstructionFailed: An instruction cannot be put together.
    """
    instructions = await instructions_of(
        agent, contexts, set_response=SET_MODEL_RESPONSE in tools, transfers=not wrap_up
    )
    if wrap_up:
        instructions.append(WRAP_UP.format(reason=wrap_up))
    contents = prompt.contents(
        contexts.conversation,
        agent=agent.name,
        branch=work.branch,
        current_turn_only=agent.include_contents == "none",
        summary=compaction.event(contexts.log.invocation_id, work.branch) if compaction else None,
    )
    config = config_of(agent)
    if agent.output_schema and (wrap_up or not agent.tools):
        config = {**config, "responseMimeType": "application/json", "responseJsonSchema": _response_schema(agent)}
    name = model_name(agent)
    native: list[JsonObject] = []
    executed = agent.code_executor and not wrap_up
    for tool in (*tools.values(), *([BuiltInCodeExecutionTool()] if executed else ())):
        if isinstance(tool, NativeTool) and not has_say(tool):
            name = tool.model or name
            try:
                native.append(tool.native_tool(name, contexts.readonly()))
            except ValueError as error:
                raise InstructionFailed("ValueError", str(error)) from error
    return LlmRequest(
        model=name,
        contents=instructions.placed(contents),
        system_instruction=instructions.system,
        tools=[declared for tool in tools.values() if not has_say(tool) and (declared := declare(tool))],
        native_tools=native,
        config=config,
        attempt=attempt,
    )


def _response_schema(agent: LlmAgent) -> JsonObject:
    schema = agent.output_schema
    if isinstance(schema, dict | BaseModel):  # which can be changed in place, unlike a type
        return json_schema(schema)
    made: JsonObject = decode(memoize(agent, "_response_schema", schema, lambda: encode(json_schema(schema))))
    return made


def model_name(agent: LlmAgent) -> str:
    """Return how the agent's model is called in requests."""
    model = agent.canonical_model
    return model if isinstance(model, str) else str(getattr(model, "model", None) or type(model).__name__)


def config_of(agent: LlmAgent) -> JsonObject:
    """Return the agent's generation config as genai's JSON."""
    config = agent.generate_content_config
    if config is None:
        return {}
    if isinstance(config, dict):
        return config
    dumped: JsonObject = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


def has_say(tool: BaseTool | BaseToolset) -> bool:
    """Whether a tool or toolset changes requests in its own way."""
    usual = (BaseTool, NativeTool, BaseToolset)
    return all(type(tool).process_llm_request is not kind.process_llm_request for kind in usual)


def speakers(agent: LlmAgent, tools: Mapping[str, BaseTool]) -> list[BaseTool | BaseToolset]:
    """Return the toolsets and tools that change the request, in the order in which they do."""
    toolsets = [entry for entry in agent.tools if isinstance(entry, BaseToolset) and has_say(entry)]
    return [*toolsets, *(tool for tool in tools.values() if has_say(tool))]


def definition_digest(agent: LlmAgent, request: LlmRequest) -> str:
    """Return a digest of all that the agent's declaration contributed to a request, so that histories show a change."""
    native = [list(request.native_tools)] if request.native_tools else []
    declared = [request.model, _declared_instruction(agent, request), list(request.tools), request.config, *native]
    # Writing it costs a tenth of sorting it first, and it rarely differs from one call to the next.
    return memoize(agent, "_definition", encode(declared), lambda: digest(declared)[:12])


def _declared_instruction(agent: LlmAgent, request: LlmRequest) -> Any:
    """Return the instruction as it is declared: what state fills in is no change of the agent."""
    texts = [getattr(agent.root_agent, "global_instruction", ""), agent.instruction]
    if all(isinstance(text, str) and "{" not in text for text in texts):
        return request.system_instruction
    named = [text if isinstance(text, str) else getattr(text, "__qualname__", type(text).__name__) for text in texts]
    return [*named, agent.description]
