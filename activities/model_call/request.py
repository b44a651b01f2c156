"""Build the request for a model call from the agent's declaration: instructions, contents, tools and settings.

The wording of instructions is taken from ADK 2.13 because models are tuned to it. The request is plain JSON;
`waystation.activities.model_call.conversion` converts it for callbacks and tools.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from waystation.activities.contexts import Contexts
from waystation.activities.model_call.repair import explain_unusable
from waystation.agents import BaseAgent, LlmAgent
from waystation.agents.tree import transfer_targets
from waystation.core.contract import Compaction
from waystation.core.conversation import prompt
from waystation.core.errors import ScopesNotRead, StoreFailed, WaystationError
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject, decode, digest, encode
from waystation.core.scope_state import is_scoped
from waystation.models import FallbackModel, LlmRequest
from waystation.models.base_llm import name_of_model
from waystation.models.llm_request import joined, split_instruction
from waystation.tools import BaseTool, BaseToolset, BuiltInCodeExecutionTool
from waystation.tools.base_tool import declare
from waystation.tools.json_schema import json_schema
from waystation.tools.load_artifacts_tool import format_artifact
from waystation.tools.memoize import memoize
from waystation.tools.native_tool import NativeTool
from waystation.tools.output_schema import SET_MODEL_RESPONSE
from waystation.tools.places import find_author_line
from waystation.tools.state import State

WRAP_UP = "The budget of this task is used up ({reason}). Do not call tools; answer now with what you have."
TRANSFER = "transfer_to_agent"

_TEMPLATE = re.compile(r"(?<![\$\{\\]){+[^{}]*}+")
_BEGIN, _END, _ELIDED = "<<<BEGIN_SYSTEM_INSTRUCTION>>>", "<<<END_SYSTEM_INSTRUCTION>>>", "<<<ELIDED_MARKER>>>"
_PREAMBLE = (
    f"The text between {_BEGIN} and {_END} is your own system instruction for this turn, with the current state. It is "
    "for you. The user did not write it, so do not answer it. The user's messages are outside the marks."
)
_SET_RESPONSE = (
    "IMPORTANT: You have access to other tools, but you must provide your final response using the set_model_response "
    "tool with the required structured format. After using any other tools needed to complete the task, always call "
    "set_model_response with your final answer in the specified schema format."
)
_TRANSFER = """
You have a list of other agents to transfer to:

{about}

If you are the best to answer the question according to your description,
you can answer it.

If another agent is better for answering the question according to its
description, call `{tool}` function to transfer the question to that
agent. When transferring, do not generate any text other than the function
call.

**NOTE**: the only available agents for `{tool}` function are
{names}.
"""
_TO_PARENT = """
If neither you nor the other agents are best for the question, transfer to your parent agent {parent}.
"""
_PREFIXES = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)


class InstructionFailed(WaystationError):
    """An instruction, or the declaration of a native tool, cannot be built.

    Fix the instruction: each `{name}` in it must be in the state, or be written as `{name?}`.

    `kind` is the error type to record for the failed invocation.
    """

    def __init__(self, kind: str, problem: str) -> None:
        self.kind = kind
        super().__init__(problem)


class Instructions:
    """A system instruction, and the parts of the instruction that are inserted into the conversation instead."""

    def __init__(self) -> None:
        self.system: str | None = None
        self.prefix: list[JsonObject] = []
        """Contents to insert before the current turn or, if they include media, before the whole conversation."""
        self.leads = False
        """Whether to insert the prefix before the whole conversation, which lets the provider cache it."""

    def append(self, text: str) -> None:
        self.system = joined(self.system, text)

    def place_in(self, contents: Sequence[JsonObject]) -> Sequence[JsonObject]:
        """Return `contents` with the prefix inserted."""
        if not self.prefix:
            return contents
        at = 0 if self.leads else _find_start_of_turn(contents)
        return [*contents[:at], *self.prefix, *contents[at:]]


async def build_instructions(
    agent: LlmAgent, contexts: Contexts, *, set_response: bool, transfers: bool = True
) -> Instructions:
    """Return the agent's instructions.

    `set_response` and `transfers` determine whether they explain structured answers and transfers to other agents.

    Raises:
        InstructionFailed: A template contains a name that is not available, or an instruction provider raised an
            exception or did not return text.
    """
    instructions = Instructions()
    top = agent.root_agent
    if isinstance(top, LlmAgent) and top.global_instruction:
        instructions.append(await _resolve_text(top.global_instruction, "global_instruction", contexts))
    if agent.static_instruction:
        texts, instructions.prefix = split_instruction(_to_content(agent.static_instruction))
        instructions.leads = bool(instructions.prefix)
        if texts:
            instructions.append("\n\n".join(texts))
    if agent.instruction:
        text = await _resolve_text(agent.instruction, "instruction", contexts)
        if agent.static_instruction:
            instructions.prefix.append({"role": "user", "parts": [{"text": _label(text)}]})
        else:
            instructions.append(text)
    identity = f'You are an agent. Your internal name is "{agent.name}".'
    if agent.description:
        identity += f' The description about you is "{agent.description}".'
    instructions.append(identity)
    if set_response:
        instructions.append(_SET_RESPONSE)
    if transfers and (targets := transfer_targets(agent)):
        instructions.append(format_transfer_text(agent, targets))
    return instructions


async def _resolve_text(instruction: Any, name: str, contexts: Contexts) -> str:
    if isinstance(instruction, str):
        return await fill_in(instruction, contexts)
    try:
        text = instruction(contexts.readonly())
        text = await text if inspect.isawaitable(text) else text
    except Exception as error:
        # Leave out the exception's message, which may quote the conversation.
        where = f" at {place}" if (place := find_author_line(error)) else ""
        problem = f"The function that is the `{name}` of {contexts.work.agent!r} raised {type(error).__name__}{where}."
        raise InstructionFailed(type(error).__name__, problem) from error
    if not isinstance(text, str):
        problem = (
            f"The function that is the `{name}` of {contexts.work.agent!r} returned {with_article(text)}; return text."
        )
        raise InstructionFailed("TypeError", problem)
    return text


async def fill_in(template: str, contexts: Contexts) -> str:
    """Insert state and artifacts into a template. Braces that do not contain a valid name stay unchanged.

    Raises:
        InstructionFailed: The template requires a name that does not exist or that this worker cannot read.
    """
    pieces: list[str] = []
    end = 0
    for match in _TEMPLATE.finditer(template):
        pieces += [template[end : match.start()], await _resolve_placeholder(match.group(), contexts)]
        end = match.end()
    return "".join((*pieces, template[end:]))


async def _resolve_placeholder(braced: str, contexts: Contexts) -> str:
    name = braced.lstrip("{").rstrip("}").strip()
    optional = name.endswith("?")
    name = name.removesuffix("?")
    if name.startswith("artifact."):
        return await _resolve_artifact(name.removeprefix("artifact."), contexts, optional=optional)
    prefix, colon, rest = name.rpartition(":")
    if not rest.isidentifier() or (colon and prefix + colon not in _PREFIXES):
        return braced
    if name in contexts.state:
        value = contexts.state[name]
        return "" if value is None else str(value)
    if not contexts.scopes_read and is_scoped(name):
        raise InstructionFailed("ScopesNotRead", str(ScopesNotRead(name)))
    if optional:
        return ""
    raise _build_not_found(f"Context variable not found: `{name}` in agent '{contexts.work.agent}'.")


async def _resolve_artifact(name: str, contexts: Contexts, *, optional: bool) -> str:
    if contexts.services.artifacts is None:
        raise InstructionFailed("ValueError", "Artifact service is not initialized.")
    try:
        artifact = await contexts.callback("instruction").load_artifact(name)
    except StoreFailed:  # may be temporary
        raise
    except Exception as error:
        problem = (
            f"Artifact {name!r}, which an instruction of {contexts.work.agent!r} contains, cannot be loaded: the "
            f"artifact service raised {type(error).__name__}."
        )
        raise InstructionFailed(type(error).__name__, problem) from error
    if artifact is None:
        if optional:
            return ""
        raise _build_not_found(f"Artifact '{name}' not found in agent '{contexts.work.agent}'.")
    part = format_artifact(artifact, name)
    return str(part) if part.text is None else part.text


def _build_not_found(problem: str) -> InstructionFailed:
    # Add quotation marks, as `str(KeyError)` does, to match ADK's error event.
    return InstructionFailed("KeyError", str(KeyError(problem)))


def _to_content(value: Any) -> JsonObject:
    """Convert a string, a Part, a Content or a list of these to one Content in JSON."""
    items = value if isinstance(value, list) else [value]
    parts: list[JsonObject] = []
    for item in items:
        content: JsonObject = {"text": item} if isinstance(item, str) else _json_of(item)
        parts.extend(content.get("parts", [content]))
    return {"role": "user", "parts": parts}


def _find_start_of_turn(contents: Sequence[JsonObject]) -> int:
    """Return the index at which the current turn starts.

    If the conversation ends with user messages, the turn starts at the first of them. Otherwise, it starts after the
    conversation's last content. Function responses do not count as user messages.
    """
    at = len(contents)
    for index in range(len(contents) - 1, -1, -1):
        content = contents[index]
        if content.get("role") != "user" or any("functionResponse" in part for part in content.get("parts") or ()):
            return index + 1
        at = index
    return at


def format_transfer_text(agent: LlmAgent, targets: Sequence[BaseAgent]) -> str:
    """Return the instruction that lists the agents that a model may transfer to."""
    about = "\n".join(f"\nAgent name: {a.name}\nAgent description: {a.description}\n" for a in targets)
    names = ", ".join(f"`{name}`" for name in sorted(target.name for target in targets))
    text = _TRANSFER.format(about=about, names=names, tool=TRANSFER)
    if agent.parent_agent and not agent.disallow_transfer_to_parent:
        text += _TO_PARENT.format(parent=agent.parent_agent.name)
    return text


def _label(text: str) -> str:
    return f"{_PREAMBLE}\n{_BEGIN}\n{text.replace(_BEGIN, _ELIDED).replace(_END, _ELIDED)}\n{_END}"


async def build_request(
    agent: LlmAgent,
    contexts: Contexts,
    tools: Mapping[str, BaseTool],
    attempt: int,
    compaction: Compaction | None = None,
    wrap_up: str | None = None,
) -> LlmRequest:
    """Build the request from the agent's declaration, before tools change it.

    `compaction` is a summary that has not been recorded yet. `wrap_up` is the reason why the model must answer now,
    without calling tools.

    Raises:
        InstructionFailed: An instruction, or the declaration of a native tool, cannot be built.
    """
    instructions = await build_instructions(
        agent, contexts, set_response=SET_MODEL_RESPONSE in tools, transfers=not wrap_up
    )
    if wrap_up:
        instructions.append(WRAP_UP.format(reason=wrap_up))
    contents = prompt.contents(
        contexts.conversation,
        agent=agent.name,
        branch=contexts.work.branch,
        current_turn_only=agent.include_contents == "none",
        summary=compaction.event(contexts.log.invocation_id, contexts.work.branch) if compaction else None,
    )
    config = config_of(agent)
    if agent.output_schema and (wrap_up or not agent.tools):
        config = {**config, "responseMimeType": "application/json", "responseJsonSchema": _response_schema(agent)}
    name = model_name(agent)
    native: list[JsonObject] = []
    runs_code = agent.code_executor and not wrap_up
    for tool in (*tools.values(), *([BuiltInCodeExecutionTool()] if runs_code else ())):
        if isinstance(tool, NativeTool) and not can_change_request(tool):
            name = tool.model or name
            try:
                native.append(tool.native_tool(name, contexts.readonly()))
            except ValueError as error:
                raise InstructionFailed("ValueError", str(error)) from error
    return LlmRequest(
        model=name,
        contents=[*instructions.place_in(contents), *explain_unusable(contexts)],
        system_instruction=instructions.system,
        tools=[declared for tool in tools.values() if not can_change_request(tool) and (declared := declare(tool))],
        native_tools=native,
        config=config,
        attempt=attempt,
    )


def _response_schema(agent: LlmAgent) -> JsonObject:
    schema = agent.output_schema
    if isinstance(schema, dict | BaseModel):  # not memoized: it can be changed in place, unlike a type
        return json_schema(schema)
    schema_json: JsonObject = decode(memoize(agent, "_response_schema", schema, lambda: encode(json_schema(schema))))
    return schema_json


def model_name(agent: LlmAgent) -> str:
    """Return the model name to use in an agent's requests."""
    return name_of_model(agent.declared_model)


def model_names(agent: LlmAgent) -> list[str]:
    """Return the names of all models that may answer an agent's requests."""
    model = agent.declared_model
    return model.names() if isinstance(model, FallbackModel) else [name_of_model(model)]


def config_of(agent: LlmAgent) -> JsonObject:
    """Return the agent's generation config as JSON, which is empty if the agent has none."""
    return {} if agent.generate_content_config is None else _json_of(agent.generate_content_config)


def _json_of(value: Any) -> JsonObject:
    """Convert a genai object to JSON. Return dictionaries unchanged."""
    return value if isinstance(value, dict) else dict(value.model_dump(mode="json", by_alias=True, exclude_none=True))


def can_change_request(tool: BaseTool | BaseToolset) -> bool:
    """Return whether a tool or toolset overrides `process_llm_request`."""
    bases = (BaseTool, NativeTool, BaseToolset)
    return all(type(tool).process_llm_request is not base.process_llm_request for base in bases)


def request_processors(agent: LlmAgent, tools: Mapping[str, BaseTool]) -> list[BaseTool | BaseToolset]:
    """Return the toolsets and tools that change the request, in the order they run."""
    toolsets = [entry for entry in agent.tools if isinstance(entry, BaseToolset) and can_change_request(entry)]
    return [*toolsets, *(tool for tool in tools.values() if can_change_request(tool))]


def definition_digest(agent: LlmAgent, request: LlmRequest) -> str:
    """Return a digest of what the agent contributes to a request. In histories, it shows when an agent has changed."""
    native = [list(request.native_tools)] if request.native_tools else []
    declared = [request.model, _declared_instruction(agent, request), list(request.tools), request.config, *native]
    # Memoize the digest by the unsorted JSON, which rarely changes. Writing it takes a tenth of the time that sorting
    # it would take.
    return memoize(agent, "_definition", encode(declared), lambda: digest(declared)[:12])


def _declared_instruction(agent: LlmAgent, request: LlmRequest) -> Any:
    """Return the instruction without inserted state, because a change of state does not mean that the agent changed."""
    texts = [getattr(agent.root_agent, "global_instruction", ""), agent.instruction]
    if all(isinstance(text, str) and "{" not in text for text in texts):
        return request.system_instruction
    named = [text if isinstance(text, str) else getattr(text, "__qualname__", type(text).__name__) for text in texts]
    return [*named, agent.description]
