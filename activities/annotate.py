"""Annotate a model's function calls with what the workflow must know to carry them out.

This is where author code (predicates, settings of tools) is asked, once; the answers are recorded with the reply, so
the workflow never needs the agent.
"""

from collections.abc import Mapping

import structlog

from tools.agent_tool import AgentTool
from tools.base import BaseTool
from tools.context import ToolContext
from waystation.core import ids, responses
from waystation.core.log import Log
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, copy_json, encode
from waystation.core.wire import Call, Confirmation

events = structlog.get_logger("waystation.activities")

MAX_DEPTH = 8
"""How many agents may call one another in a chain."""
MAX_GIVEN_BYTES = 2_000_000
"""How much the agents that one reply calls may be given together. The server ends a workflow whose task sends 4 MB."""


def problem_of(content: object) -> str | None:
    """Return why something that a model gave is no content of a model; None when it is one."""
    if not isinstance(content, dict) or not isinstance(content.get("role"), str | None):
        return "it is no object with a role and parts."
    parts = content.get("parts")
    if not isinstance(parts, list | None) or not all(isinstance(part, dict) for part in parts or ()):
        return "its parts are no list of objects."
    for part in parts or ():
        said = part.get("functionCall", {})
        if not isinstance(said, dict) or not all(isinstance(said.get(key), str | None) for key in ("name", "id")):
            return "a function call is no object with a name."
        if "functionResponse" in part:
            return "only tools and people give function responses."
        if not isinstance(part.get("text"), str | None):
            return "a text is none."
    return None


async def annotated(
    content: JsonObject, log: Log, tools: Mapping[str, BaseTool]
) -> tuple[JsonObject, tuple[Call, ...]]:
    """Return the content with the engine's ids in its function calls, and one annotation for each."""
    parts: list[JsonObject] = []
    calls: list[Call] = []
    given: list[int] = []
    for part in content.get("parts") or ():
        if "functionCall" in part:
            said = part["functionCall"]
            call_id = ids.function_call(len(log.calls) + len(calls) + 1)
            calls.append(await _annotate(call_id, said, log, tools, given))
            args = said.get("args")
            part = {**part, "functionCall": {**said, "id": call_id, "args": args if isinstance(args, dict) else {}}}
        parts.append(part)
    return {**content, "parts": parts}, tuple(calls)


async def _annotate(call_id: str, said: JsonObject, log: Log, tools: Mapping[str, BaseTool], given: list[int]) -> Call:
    """Annotate one call; `given` collects how many bytes the called agents are given."""
    call = Call(id=call_id, model_id=said.get("id"))
    name, args = said.get("name") or "", said.get("args") or {}
    tool = tools.get(name)
    if tool is None:
        return _answered(call, unknown_tool(name, tools), "UnknownTool")
    if not isinstance(args, dict):
        return _answered(call, f"Invoking `{name}()` failed as its arguments are no object.", "InvalidArguments")
    if isinstance(tool, AgentTool):
        return _annotate_agent(call, tool, args, log, given)
    context = ToolContext(
        state=log.state,
        tool_name=name,
        function_call_id=call_id,
        invocation_id=log.invocation_id,
        agent_name=log.agent,
        user_id=log.input.user_id if log.input else "",
        session_id=log.input.session_id if log.input else None,
    )
    confirmation = await _confirmation(tool, copy_json(args), context)
    return call.model_copy(
        update={
            "kind": "long_running" if tool.is_long_running else "function",
            "confirmation": confirmation,
            "effect": tool.effect_when(confirmed=confirmation is not None),
            "timeout_s": tool.timeout.total_seconds() if tool.timeout else None,
            "retries": tool.retries,
            "heartbeat_timeout_s": tool.heartbeat_timeout.total_seconds() if tool.heartbeat_timeout else None,
            "task_queue": tool.task_queue,
            "deadline_s": tool.deadline.total_seconds() if tool.deadline else None,
        }
    )


async def _confirmation(tool: BaseTool, args: JsonObject, context: ToolContext) -> Confirmation | None:
    """Return what a person is asked before the call; a tool that fails to say whether anybody is, needs one."""
    try:
        return await tool.confirmation_for(args, context)
    except Exception as error:  # noqa: BLE001  # author's code; whatever it raises, a person decides
        # Only the type: the text may quote arguments.
        events.warning("confirmation_predicate.failed", tool=tool.name, error_type=type(error).__name__)
        return Confirmation(hint=tool.confirmation_hint())


def _annotate_agent(call: Call, tool: AgentTool, args: JsonObject, log: Log, given: list[int]) -> Call:
    message = tool.message_for(args)
    if log.input and log.input.depth >= MAX_DEPTH:
        return _answered(
            call, f"Agents may call one another {MAX_DEPTH} deep; `{tool.name}` was not called.", "TooDeep"
        )
    size = len(encode([responses.inherited_state(log.state), message]))
    limit = min(MAX_VALUE_BYTES, MAX_GIVEN_BYTES - sum(given))
    if size > limit:
        text = f"`{tool.name}` was not called: its input would be {size} bytes, over the limit of {limit}."
        return _answered(call, text, "TooLarge")
    given.append(size)
    return call.model_copy(
        update={
            "kind": "agent",
            "agent": tool.agent.name,
            # The argument `request` is what the workflow takes by itself; anything else has to be spelt out.
            "message": None if message == args.get("request") else message,
            "skip_summarization": tool.skip_summarization,
        }
    )


def unknown_tool(name: str, tools: Mapping[str, BaseTool]) -> str:
    """Return ADK's answer to a call of a tool that does not exist. Source: adk-semantics 1.6."""
    return (
        f"Invoking `{name}()` failed as no tool with that name is available. The tools you can call are: "
        f"{', '.join(tools) or 'none'}. You could retry, but it is IMPORTANT that you only call a tool from that list."
    )


def _answered(call: Call, text: str, error_type: str) -> Call:
    response = {"error": text} if error_type == "UnknownTool" else {"error": text, "error_type": error_type}
    return call.model_copy(update={"kind": "answered", "response": response})
