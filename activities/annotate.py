"""Annotate a model's function calls with what the workflow must know to carry them out.

This is where author code (predicates, settings of tools, callbacks around calls that no activity runs) is asked, once;
the answers are recorded with the reply, so the workflow never needs the agent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from waystation.activities.approved import recordable
from waystation.activities.around_tool import Attempt, callback_failed, performed, with_transfer
from waystation.activities.contexts import Contexts
from waystation.activities.hooks import CallbackRaised, Hooks
from waystation.agents.approval_rule import ApprovalRule
from waystation.core import ids, responses
from waystation.core.event import EventActions, merge_actions
from waystation.core.model_call import Call
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, copy_json, encode
from waystation.core.policy import StandingApproval
from waystation.core.standing import covering
from waystation.core.tool_call import ToolOutcome
from waystation.core.work import Work
from waystation.tools.agent_tool import AgentTool
from waystation.tools.approval import judged, parameters_digest
from waystation.tools.base_tool import BaseTool
from waystation.tools.native_tool import NativeTool
from waystation.tools.outcome import outcome_of
from waystation.tools.output_schema import ResponseRefused, SetModelResponseTool
from waystation.tools.tool_context import ToolContext
from waystation.tools.transfer import TransferToAgentTool

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


class Asking(NamedTuple):
    """What decides about which calls people are asked, besides the tools themselves."""

    rules: Sequence[ApprovalRule] = ()
    """Those of the agent, then those of its app."""
    standing: Sequence[StandingApproval] = ()
    """Approvals that hold for further calls, as far as they are in force."""

    def covering(self, agent: str, tool: str, call: Call, args: JsonObject) -> str | None:
        """Return where the approval comes from under which a call that waits for one may run unasked."""
        if not (self.standing and call.confirmation and call.approval):
            return None
        found = covering(self.standing, agent=agent, tool=tool, args=args, declared=call.declared, policy=call.approval)
        return found.origin if found else None


@dataclass(slots=True)
class Annotator:
    """Annotates the calls of one reply, and collects what came of asking author code about them."""

    work: Work
    contexts: Contexts
    tools: Mapping[str, BaseTool]
    hooks: Hooks
    asking: "Asking"
    calls: list[Call] = field(default_factory=list)
    """One for each function call, in order."""
    written: list[EventActions] = field(default_factory=list)
    """What callbacks changed around calls that are still to be carried out; it belongs to the reply."""
    answer: Any = None
    """The structured answer of the model, when one of the calls gave it."""
    answered: bool = False
    """Whether one did."""
    _several: bool = False
    """Whether the reply makes more than one call."""
    _given: list[int] = field(default_factory=list)
    """How many bytes the called agents are given."""

    async def annotate(self, content: JsonObject) -> JsonObject:
        """Return the content with the engine's ids in its function calls, each of which is then in `calls`."""
        parts: list[JsonObject] = []
        self._several = sum("functionCall" in part for part in content.get("parts") or ()) > 1
        for part in content.get("parts") or ():
            if "functionCall" in part:
                said = part["functionCall"]
                call_id = ids.function_call(self.work.calls_made + len(self.calls) + 1, self.work.index)
                self.calls.append(await self._call(call_id, said))
                args = said.get("args")
                usable: JsonObject = {} if isinstance(args, dict | None) else {"args": {}}
                part = {**part, "functionCall": {**said, "id": call_id, **usable}}
            parts.append(part)
        return {**content, "parts": parts}

    async def _call(self, call_id: str, said: JsonObject) -> Call:
        call = Call(id=call_id, model_id=said.get("id"))
        name, args = said.get("name") or "", said.get("args") or {}
        tool = callable_tools(self.tools).get(name)
        if not isinstance(args, dict) and tool is not None:
            return _told(call, f"Invoking `{name}()` failed as its arguments are no object.", "InvalidArguments")
        if tool is None:
            # With callbacks around tools the activity asks them.
            return call if self.hooks.around_tools else _told(call, unknown_tool(name, self.tools), "UnknownTool")
        args = copy_json(args)
        context = self.contexts.proposed(call_id, name)
        match tool:
            case SetModelResponseTool():
                return await self._respond(call, tool, args, context)
            case TransferToAgentTool() if not self.hooks.around_tools:
                return await self._transfer(call, tool, args, context)
            case AgentTool():
                return await self._agent(call, tool, args, context)
        found = await judged(tool, args, context, self.asking.rules)
        confirmation, given = found.confirmation, copy_json(args)
        if confirmation is not None and (answered := await self._before(call, tool, args)):
            return answered
        asked = confirmation is not None or tool.is_long_running or found.policy is not None
        call = call.model_copy(
            update={
                "kind": "long_running" if tool.is_long_running else "function",
                "args": None if args == given else recordable(args),
                "confirmation": confirmation,
                "approval": found.policy,
                "declared": parameters_digest(tool) if asked else None,
                "response_schema": tool.answer_schema() if tool.is_long_running else None,
                "effect": tool.effect_when(confirmed=confirmation is not None),
                "timeout_s": tool.timeout.total_seconds() if tool.timeout else None,
                "retries": tool.retries,
                "heartbeat_timeout_s": tool.heartbeat_timeout.total_seconds() if tool.heartbeat_timeout else None,
                "task_queue": tool.task_queue,
                "deadline_s": tool.deadline.total_seconds() if tool.deadline else None,
            }
        )
        origin = self.asking.covering(self.work.agent, tool.name, call, call.args or given)
        return call.model_copy(update={"standing": origin}) if origin else call

    async def _respond(self, call: Call, tool: BaseTool, args: JsonObject, context: ToolContext) -> Call:
        """Take the model's structured answer."""

        async def run(args: JsonObject) -> Attempt:
            value = await tool.run_async(args=args, tool_context=context)
            if not isinstance(value, ResponseRefused):
                self.answer, self.answered = value, True
            return Attempt(context, value)

        return _answered(call, await performed(self.hooks, tool, args, context, run))

    async def _transfer(self, call: Call, tool: BaseTool, args: JsonObject, context: ToolContext) -> Call:
        """Hand the conversation over; nothing has to be run for that."""
        value = await tool.run_async(args=args, tool_context=context)
        return _answered(call, with_transfer(outcome_of(value, context=context), self.hooks.agent, self.hooks))

    async def _before(self, call: Call, tool: BaseTool, args: JsonObject) -> Call | None:
        """Ask the callbacks before a call that waits, or that no activity runs; return the call when they answer it."""
        if not self.hooks.has("before_tool_callback"):
            return None
        context = self.contexts.proposed(call.id, tool.name)
        try:
            value = await self.hooks.before_tool(tool, args, context)
            if value is not None:
                changed = await self.hooks.after_tool(tool, args, context, value)
                return _answered(call, outcome_of(value if changed is None else changed, context=context))
        except CallbackRaised as error:
            return _answered(call, callback_failed(error, tool, context))
        self._keep(outcome_of(None, context=context))
        return None

    def _keep(self, outcome: ToolOutcome) -> None:
        if outcome.actions is not None:
            self.written.append(outcome.actions)

    async def _agent(self, call: Call, tool: AgentTool, args: JsonObject, context: ToolContext) -> Call:
        """Have another agent called, in an invocation of its own."""
        request = args.get("request")
        if answered := await self._before(call, tool, args):
            return answered
        started = self.contexts.log.input
        if started and started.depth >= MAX_DEPTH:
            text = f"Agents may call one another {MAX_DEPTH} deep; `{tool.name}` was not called."
            return _told(call, text, "TooDeep")
        try:
            message = tool.message_for(args)
        except ValueError as error:
            return _answered(
                call,
                ToolOutcome(function_call_id=call.id, response={"error": str(error)}, error_type="InvalidArguments"),
            )
        state = self.contexts.after(merge_actions(self.written) if self.written else None).state
        size = len(encode([responses.inherited_state(state), message]))
        limit = min(MAX_VALUE_BYTES, MAX_GIVEN_BYTES - sum(self._given))
        if size > limit:
            text = f"`{tool.name}` was not called: its input would be {size} bytes, over the limit of {limit}."
            return _told(call, text, "TooLarge")
        self._given.append(size)
        return call.model_copy(
            update={
                "kind": "agent",
                # While nothing else goes on here, the history does not grow, and the server can see to the child.
                "detached": self._several
                or bool(self.work.branch or any(work.open for work in self.contexts.log.active)),
                "agent": tool.agent.name,
                # The argument `request` is what the workflow takes by itself; anything else has to be spelt out.
                "message": None if message == request else message,
                "skip_summarization": tool.skip_summarization,
                "after": self.hooks.has("after_tool_callback", "on_tool_error_callback"),
            }
        )


def callable_tools(tools: Mapping[str, BaseTool]) -> dict[str, BaseTool]:
    """Return the tools that a model may call by name, without those that its provider runs."""
    return {name: tool for name, tool in tools.items() if not isinstance(tool, NativeTool)}


def unknown_tool(name: str, tools: Mapping[str, BaseTool]) -> str:
    """Return ADK's answer to a call of a tool that does not exist. Source: adk-semantics 1.6."""
    known = ", ".join(callable_tools(tools)) or "none"
    return (
        f"Invoking `{name}()` failed as no tool with that name is available. The tools you can call are: {known}. "
        "You could retry, but it is IMPORTANT that you only call a tool from that list."
    )


def _answered(call: Call, outcome: ToolOutcome) -> Call:
    """Return a call whose response is clear already."""
    return call.model_copy(
        update={
            "kind": "answered",
            "response": outcome.response or {},
            "actions": outcome.actions,
            "transfer": outcome.transfer,
        }
    )


def _told(call: Call, text: str, error_type: str) -> Call:
    response = {"error": text} if error_type == "UnknownTool" else {"error": text, "error_type": error_type}
    return call.model_copy(update={"kind": "answered", "response": response})
