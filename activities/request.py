"""Put together what a model is asked, as the agent declares it.

Until somebody looks at it a request is plain JSON; see `waystation.activities.shaped` for those who do.
"""

from collections.abc import Mapping

from pydantic import BaseModel

from waystation.activities.contexts import Contexts
from waystation.activities.instructions import TRANSFER, InstructionFailed, instructions_of
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.memoize import memoize
from waystation.agents.tree import transfer_targets
from waystation.core import prompt
from waystation.core.compaction import Compaction
from waystation.core.payload import JsonObject, decode, encode
from waystation.core.work import Work
from waystation.models import LlmRequest
from waystation.tools.base_tool import BaseTool, declare
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.built_in_code_execution_tool import BuiltInCodeExecutionTool
from waystation.tools.json_schema import json_schema
from waystation.tools.native_tool import NativeTool
from waystation.tools.output_schema import SET_MODEL_RESPONSE, SetModelResponseTool
from waystation.tools.toolbox import toolbox
from waystation.tools.transfer import TransferToAgentTool

WRAP_UP = "The budget of this task is used up ({reason}). Do not call tools; answer now with what you have."


async def tools_for(
    agent: LlmAgent, contexts: Contexts, *, wanted: str | None = None, failed: list[str] | None = None
) -> dict[str, BaseTool]:
    """Return all that the agent's model may call at this moment: ADK's own tools first, then the agent's.

    `wanted` and `failed` are as for `toolbox`.
    """
    limit = contexts.limits.toolset_timeout
    return _adk_tools(agent) | await toolbox(agent, contexts.readonly, wanted=wanted, failed=failed, limit=limit)


def _adk_tools(agent: LlmAgent) -> dict[str, BaseTool]:
    """Return the tools that ADK gives to an agent."""
    schema = agent.output_schema if agent.tools else None
    targets = [target.name for target in transfer_targets(agent)]

    def make() -> dict[str, BaseTool]:
        tools: dict[str, BaseTool] = {SET_MODEL_RESPONSE: SetModelResponseTool(schema)} if schema else {}
        return tools | ({TRANSFER: TransferToAgentTool(targets)} if targets else {})

    return memoize(agent, "_adk_tools", (schema, targets), make)


async def request_of(
    agent: LlmAgent,
    work: Work,
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
