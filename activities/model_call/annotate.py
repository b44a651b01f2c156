"""Annotate a model's function calls with what the workflow must know to carry them out.

This is where author code (predicates, settings of tools, callbacks around calls that no activity runs) is asked, once;
the answers are recorded with the reply, so the workflow never needs the agent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from waystation.activities.approval_checks import recordable
from waystation.activities.callbacks import (
    Attempt,
    CallbackRaised,
    Hooks,
    ask_before,
    raised_outcome,
    run_with_callbacks,
    with_transfer,
)
from waystation.activities.contexts import Contexts, callable_tools, unknown_tool
from waystation.agents.approval_rule import ApprovalRule
from waystation.core import (
    MAX_VALUE_BYTES,
    Call,
    EventActions,
    JsonObject,
    StandingApproval,
    ToolOutcome,
    copy_json,
    covering,
    encode,
    ids,
    merge_actions,
    responses,
)
from waystation.tools import AgentTool, BaseTool, ToolContext
from waystation.tools.approval import judged, parameters_digest
from waystation.tools.outcome import outcome_of
from waystation.tools.output_schema import ResponseRefused, SetModelResponseTool
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


class Approvals(NamedTuple):
    """What decides which calls need approval, besides the tools themselves."""

    rules: Sequence[ApprovalRule] = ()
    """Those of the agent, then those of its app."""
    remembered: Sequence[StandingApproval] = ()
    """Approvals that cover further calls, as far as they are in force."""

    def covering(self, agent: str, tool: str, call: Call, args: JsonObject) -> str | None:
        """Return the origin of the remembered approval under which a call that needs approval may run."""
        if not (self.remembered and call.confirmation and call.approval):
            return None
        found = covering(
            self.remembered, agent=agent, tool=tool, args=args, declared=call.declared, policy=call.approval
        )
        return found.origin if found else None


@dataclass(slots=True)
class Annotator:
    """Annotates the calls of one reply, and collects the results of asking author code about them."""

    contexts: Contexts
    tools: Mapping[str, BaseTool]
    hooks: Hooks
    approvals: Approvals
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
    _given_bytes: int = 0
    """How much the called agents are given."""

    async def annotate(self, content: JsonObject) -> JsonObject:
        """Return the content with the engine's ids in its function calls, each of which is then in `calls`."""
        work, parts = self.contexts.work, list[JsonObject]()
        self._several = sum("functionCall" in part for part in content.get("parts") or ()) > 1
        for part in content.get("parts") or ():
            if "functionCall" in part:
                requested = part["functionCall"]
                call_id = ids.function_call(work.calls_made + len(self.calls) + 1, work.index)
                self.calls.append(await self._call(call_id, requested))
                args = requested.get("args")
                usable: JsonObject = {} if isinstance(args, dict | None) else {"args": {}}
                part = {**part, "functionCall": {**requested, "id": call_id, **usable}}
            parts.append(part)
        return {**content, "parts": parts}

    async def _call(self, call_id: str, requested: JsonObject) -> Call:
        call = Call(id=call_id, model_id=requested.get("id"))
        name, args = requested.get("name") or "", requested.get("args") or {}
        tool = callable_tools(self.tools).get(name)
        if tool is None:
            # With callbacks around tools the activity asks them.
            return call if self.hooks.around_tools else _answered(call, {"error": unknown_tool(name, self.tools)})
        if not isinstance(args, dict):
            return _refused(call, f"Invoking `{name}()` failed as its arguments are no object.", "InvalidArguments")
        args = copy_json(args)
        context = self.contexts.proposed(call_id, name)
        match tool:
            case SetModelResponseTool():
                return await self._respond(call, tool, args, context)
            case TransferToAgentTool() if not self.hooks.around_tools:
                # Nothing has to be run for that.
                outcome = outcome_of(await tool.run_async(args=args, tool_context=context), context=context)
                return _settled(call, with_transfer(outcome, self.hooks))
            case AgentTool():
                return await self._agent(call, tool, args)
        return await self._function(call, tool, args, context)

    async def _function(self, call: Call, tool: BaseTool, args: JsonObject, context: ToolContext) -> Call:
        """Annotate the call of a tool that an activity runs."""
        judgement = await judged(tool, args, context, self.approvals.rules)
        confirmation, original = judgement.confirmation, copy_json(args)
        if confirmation is not None and (answered := await self._before(call, tool, args)):
            return answered
        asks = confirmation is not None or tool.is_long_running or judgement.policy is not None
        call = call.model_copy(
            update={
                "kind": "long_running" if tool.is_long_running else "function",
                "args": None if args == original else recordable(args),
                "confirmation": confirmation,
                "approval": judgement.policy,
                "declared": parameters_digest(tool) if asks else None,
                "response_schema": tool.answer_schema() if tool.is_long_running else None,
                "effect": tool.effect_when(confirmed=confirmation is not None),
                "timeout_s": tool.timeout.total_seconds() if tool.timeout else None,
                "retries": tool.retries,
                "heartbeat_timeout_s": tool.heartbeat_timeout.total_seconds() if tool.heartbeat_timeout else None,
                "task_queue": tool.task_queue,
                "deadline_s": tool.deadline.total_seconds() if tool.deadline else None,
            }
        )
        origin = self.approvals.covering(self.contexts.work.agent, tool.name, call, call.args or original)
        return call.model_copy(update={"standing": origin}) if origin else call

    async def _respond(self, call: Call, tool: BaseTool, args: JsonObject, context: ToolContext) -> Call:
        """Take the model's structured answer."""

        async def run() -> Attempt:
            value = await tool.run_async(args=args, tool_context=context)
            if not isinstance(value, ResponseRefused):
                self.answer, self.answered = value, True
            return Attempt(context, value)

        return _settled(call, await run_with_callbacks(self.hooks, tool, args, context, run))

    async def _before(self, call: Call, tool: BaseTool, args: JsonObject) -> Call | None:
        """Ask the callbacks before a call that waits, or that no activity runs; return the call when they answer it."""
        if not self.hooks.has("before_tool_callback"):
            return None
        context = self.contexts.proposed(call.id, tool.name)
        try:
            outcome = await ask_before(self.hooks, tool, args, context)
        except CallbackRaised as error:
            outcome = raised_outcome(tool, error.cause, context)
        if outcome is not None:
            return _settled(call, outcome)
        if actions := outcome_of(None, context=context).actions:
            self.written.append(actions)
        return None

    async def _agent(self, call: Call, tool: AgentTool, args: JsonObject) -> Call:
        """Have another agent called, in an invocation of its own."""
        request = args.get("request")
        if answered := await self._before(call, tool, args):
            return answered
        started = self.contexts.log.state.input
        if started and started.depth >= MAX_DEPTH:
            text = f"Agents may call one another {MAX_DEPTH} deep; `{tool.name}` was not called."
            return _refused(call, text, "TooDeep")
        try:
            message = tool.message_for(args)
        except ValueError as error:
            return _answered(call, {"error": str(error)})
        state = self.contexts.after(merge_actions(self.written) if self.written else None).state
        size = len(encode([responses.inherited_state(state), message]))
        limit = min(MAX_VALUE_BYTES, MAX_GIVEN_BYTES - self._given_bytes)
        if size > limit:
            text = f"`{tool.name}` was not called: its input would be {size} bytes, over the limit of {limit}."
            return _refused(call, text, "TooLarge")
        self._given_bytes += size
        return call.model_copy(
            update={
                "kind": "agent",
                # While nothing else goes on here, the history does not grow, and the server can see to the child.
                "detached": self._several
                or bool(self.contexts.work.branch or any(run.open for run in self.contexts.log.state.runs.at_work())),
                "agent": tool.agent.name,
                # The argument `request` is what the workflow takes by itself; anything else has to be spelt out.
                "message": None if message == request else message,
                "skip_summarization": tool.skip_summarization,
                "after": self.hooks.has("after_tool_callback", "on_tool_error_callback"),
            }
        )


def _settled(call: Call, outcome: ToolOutcome) -> Call:
    """Return a call whose outcome is known already."""
    return _answered(call, outcome.response or {}, actions=outcome.actions, transfer=outcome.transfer)


def _refused(call: Call, text: str, error_type: str) -> Call:
    return _answered(call, {"error": text, "error_type": error_type})


def _answered(call: Call, response: JsonObject, **fields: Any) -> Call:
    return call.model_copy(update={"kind": "answered", "response": response, **fields})
