"""Annotate a model's function calls with everything that the workflow needs to run them.

User code (predicates, tool settings, callbacks of calls that run without an activity) is evaluated once, here. The
results are recorded with the reply, so the workflow does not need the agent.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from waystation.activities.answer_verification import to_recordable
from waystation.activities.callbacks import (
    Attempt,
    CallbackRaised,
    Hooks,
    add_transfer,
    build_error_outcome,
    run_before_tool,
    run_with_callbacks,
)
from waystation.activities.contexts import Contexts, callable_tools, unknown_tool
from waystation.activities.proofs import Proofs, may_need_verified_approval
from waystation.agents.toolbox import DECLARED, ToolMap
from waystation.core import ids, summary
from waystation.core.approval import ApprovalPolicy, RememberedApproval, find_covering_approval
from waystation.core.contract import Call, EventActions, ToolOutcome, merge_actions
from waystation.core.log import responses
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, copy_json, encode
from waystation.tools import AgentTool, ArgumentsRejected, BaseTool, TemporalTool, ToolContext
from waystation.tools.approval import RequiredApproval, find_required_approval, parameters_digest
from waystation.tools.approval_rule import ApprovalRule
from waystation.tools.outcome import create_outcome
from waystation.tools.output_schema import ResponseRejected, SetModelResponseTool
from waystation.tools.transfer import TransferToAgentTool

MAX_DEPTH = 8
MAX_DESCRIPTION = 1_000
"""Maximum number of characters of a tool's description to record with a call that approvers may see."""
"""Maximum depth of agents that call each other as tools. A deeper call is refused."""
MAX_AGENT_INPUT_BYTES = 2_000_000
"""Maximum total input of the agents that one reply calls. Calls that exceed it are refused, because the server
terminates a workflow if one of its workflow tasks sends 4 MB."""
MAX_CALLS = 500
"""Maximum number of calls in one reply. Further calls are refused: the server fails every workflow task that would make
an invocation have more than 2,000 activities or 2,000 called agents in flight."""
MAX_QUICK_CALLS = 25
"""Maximum number of calls of one reply that run as local activities. Together with `MAX_QUICK_BYTES`, it limits the
size of the workflow task that records their results."""
UNUSABLE_ARGUMENTS = "$unusable"
"""Key of the text of arguments that cannot be used as an object. Callbacks may see it. It is never recorded."""
MAX_SHOWN_ARGUMENTS = 1_000
"""Maximum number of characters of unusable arguments in the error that the model receives."""


def to_recorded_name(name: str, tools: Mapping[str, BaseTool]) -> str:
    """Return the name of a call for the record: a tool's own name or, if there is no such tool, a valid one."""
    return name if name in tools else re.sub(r"^(?![A-Za-z_])", "_", re.sub(r"[^\w.:-]", "_", name, flags=re.A))[:64]


def find_content_problem(content: object) -> str | None:
    """Return what is wrong with a model's content, or None if the content is valid."""
    if not isinstance(content, dict) or not isinstance(content.get("role"), str | None):
        return "it is not an object with a role and parts."
    parts = content.get("parts")
    if not isinstance(parts, list | None) or not all(isinstance(part, dict) for part in parts or ()):
        return "its parts are not a list of objects."
    for part in parts or ():
        call = part.get("functionCall", {})
        if not isinstance(call, dict) or not all(isinstance(call.get(key), str | None) for key in ("name", "id")):
            return "a function call is not an object with a name."
        if "functionResponse" in part:
            return "it has a function response, which only tools and people can give."
        if not isinstance(part.get("text"), str | None):
            return "a text is not a string."
    return None


class ReplyApprovals(NamedTuple):
    """Approval rules and remembered approvals that apply to the calls in one reply."""

    rules: Sequence[ApprovalRule] = ()
    """The agent's rules, followed by its app's rules."""
    remembered: Sequence[RememberedApproval] = ()
    """The remembered approvals that are in force."""
    proofs: Proofs | None = None
    """Signs calls that verified approvers may have to approve, and checks remembered approvals."""
    keyless: bool = False
    """Whether a remembered approval counts without proof if this worker has no keys. Used only if `proofs` is None."""
    requesters: Sequence[str] | None = ()
    """The names of the requesters, or None if they are not verified."""
    has_completion_key: bool = False
    """Whether this worker can make completion URLs for machines."""

    def covering(self, agent: str, tool: str, call: Call, args: JsonObject) -> str | None:
        """Return the approval ID of the remembered approval that covers a call, or None.

        It is None if the call needs no approval, or if no remembered approval covers it.
        """
        if not (self.remembered and call.confirmation and call.approval):
            return None
        approval = find_covering_approval(
            self.remembered,
            root=call.root,
            agent=agent,
            tool=tool,
            args=args,
            declared=call.declared,
            origin=call.tool_origin,
            policy=call.approval,
            is_proven=partial(self._is_proven, call.approval),
        )
        return approval.origin if approval else None

    def _is_proven(self, policy: ApprovalPolicy, approval: RememberedApproval) -> bool:
        if self.proofs is None:
            return self.keyless or not policy.must_verify
        return self.proofs.is_remembered(approval, policy, self.requesters)


@dataclass(slots=True)
class Annotator:
    """Annotates the calls in one reply, and collects the actions and the structured answer that user code produces."""

    contexts: Contexts
    tools: ToolMap
    hooks: Hooks
    approvals: ReplyApprovals
    calls: list[Call] = field(default_factory=list)
    """The annotated calls, one for each function call, in order."""
    written: list[EventActions] = field(default_factory=list)
    """The actions of callbacks for calls that still have to run. They are recorded with the reply."""
    answer: Any = None
    """The structured answer, if one of the calls was `set_model_response`."""
    has_answer: bool = False
    """Whether there is a structured answer, which may be None."""
    _has_several_calls: bool = False
    """Whether the reply makes more than one call."""
    _agent_input_bytes: int = 0
    """Total input size of the agents that the reply has called so far."""

    async def annotate(self, content: JsonObject) -> JsonObject:
        """Return the content with the engine's call IDs. Append an annotated call to `calls` for each function call.

        In the returned content, unusable arguments are replaced with an empty object, and names of tools that the agent
        does not have with names that every model service accepts.
        """
        work, parts = self.contexts.work, list[JsonObject]()
        self._has_several_calls = sum("functionCall" in part for part in content.get("parts") or ()) > 1
        for part in content.get("parts") or ():
            if "functionCall" in part:
                requested = part["functionCall"]
                function_call_id = ids.function_call(work.calls_made + len(self.calls) + 1, work.index)
                self.calls.append(await self._call(function_call_id, requested))
                args = requested.get("args")
                usable: JsonObject = {"args": {}} if UNUSABLE_ARGUMENTS in (args or {}) else {}
                usable["name"] = to_recorded_name(requested.get("name") or "", self.tools)
                part = {**part, "functionCall": {**requested, "id": function_call_id, **usable}}
            parts.append(part)
        return {**content, "parts": parts}

    async def _call(self, function_call_id: str, requested: JsonObject) -> Call:
        call = Call(id=function_call_id, model_id=requested.get("id"))
        name, args = requested.get("name") or "", requested.get("args") or {}
        if len(self.calls) >= MAX_CALLS:
            text = f"`{name}()` was not called: a reply can make at most {MAX_CALLS} calls. Call it in another reply."
            return _refuse(call, text, "TooManyCalls")
        tool = callable_tools(self.tools).get(name)
        if tool is None:
            # If there are tool callbacks, the tool activity runs them.
            if self.hooks.has_tool_callbacks:
                return call.model_copy(update={"unknown": True})
            return _answer(call, {"error": unknown_tool(summary.clip(name), self.tools)})
        if UNUSABLE_ARGUMENTS in args:
            text = summary.clip(str(args[UNUSABLE_ARGUMENTS]), MAX_SHOWN_ARGUMENTS)
            text = f"Invoking `{name}()` failed as its arguments are not a valid JSON object: {text}"
            return _refuse(call, text, "InvalidArguments")
        args = copy_json(args)
        context = self.contexts.proposed(function_call_id, name)
        match tool:
            case SetModelResponseTool():
                return await self._respond(call, tool, args, context)
            case TransferToAgentTool() if not self.hooks.has_tool_callbacks:
                # A transfer does not need an activity.
                outcome = create_outcome(await tool.run_async(args=args, tool_context=context), context=context)
                return _answer_with(call, add_transfer(outcome, self.hooks))
            case AgentTool():
                return await self._agent(call, tool, args)
            case TemporalTool():
                return await self._target(call, tool, args, context)
        return await self._function(call, tool, args, context)

    async def _function(self, call: Call, tool: BaseTool, args: JsonObject, context: ToolContext) -> Call:
        """Annotate a call to a tool that runs in an activity.

        If the call needs confirmation, the `before_tool` callbacks run first. If one of them answers the call, the tool
        does not run.
        """
        required = await find_required_approval(tool, args, context, self.approvals.rules)
        confirmation, original = required.confirmation, copy_json(args)
        if confirmation is not None and (answered_call := await self._before(call, tool, args)):
            return answered_call
        return self._plan(call, tool, required, args, original)

    async def _target(self, call: Call, tool: TemporalTool, args: JsonObject, context: ToolContext) -> Call:
        """Annotate a call for which the workflow runs a user's activity, workflow or Nexus operation.

        The target receives arguments that match the tool's schema, and nothing else.
        """
        original = copy_json(args)
        if answered_call := await self._before(call, tool, args):
            return answered_call
        try:
            args = tool.prepare(args)
        except ValueError as error:
            return _answer(call, dict(ArgumentsRejected.wrong(tool.name, [str(error)])))
        required = await find_required_approval(tool, args, context, self.approvals.rules)
        check = bool(required.confirmation or required.policy) or may_need_verified_approval(tool, self.approvals.rules)
        update = {
            "target": tool.target(check=check),
            "after": self.hooks.has("after_tool_callback", "on_tool_error_callback"),
        }
        return self._plan(call.model_copy(update=update), tool, required, args, original)

    def _plan(
        self, call: Call, tool: BaseTool, required: RequiredApproval, args: JsonObject, original: JsonObject
    ) -> Call:
        """Annotate a call with the tool's settings and the approval that it needs. The model sent `original`."""
        confirmation = required.confirmation
        asks = confirmation is not None or tool.is_long_running or required.policy is not None
        origin, policy = self.tools.origins.get(tool.name), required.policy or tool.approval
        root, machine = self.contexts.conversation.log.state.root, tool.answered_by
        call = call.model_copy(
            update={
                "kind": "long_running" if tool.is_long_running else "function",
                "args": None if encode(args) == encode(original) else to_recordable(args),
                "confirmation": confirmation.shortened(tool.name) if confirmation else None,
                "approval": required.policy,
                "shadows": tuple(rule.label for rule in required.shadows),
                "machine_policy": machine.policy(has_key=self.approvals.has_completion_key) if machine else None,
                "declared": parameters_digest(tool) if asks else None,
                "tool_origin": origin if asks or origin != DECLARED else None,
                "root": root if policy and policy.remember else None,
                "response_schema": tool.answer_schema() if tool.is_long_running else None,
                "effect": tool.effect_when(confirmed=confirmation is not None),
                "timeout_s": tool.timeout.total_seconds() if tool.timeout else None,
                "retries": tool.retries,
                "heartbeat_timeout_s": tool.heartbeat_timeout.total_seconds() if tool.heartbeat_timeout else None,
                "task_queue": tool.task_queue,
                "quick": tool.quick and not asks and len(self.calls) < MAX_QUICK_CALLS,
                "title": tool.title if isinstance(tool.title, str) else None,
                "description": (tool.description or "")[:MAX_DESCRIPTION] or None if asks or tool.title else None,
                "deadline_s": tool.deadline.total_seconds() if tool.deadline else None,
            }
        )
        agent, used = self.contexts.work.agent, call.args or original
        if standing := self.approvals.covering(agent, tool.name, call, used):
            call = call.model_copy(update={"standing": standing})
        proofs = self.approvals.proofs if may_need_verified_approval(tool, self.approvals.rules) else None
        return proofs.signed_call(call, root, agent, tool.name, used) if proofs else call

    async def _respond(self, call: Call, tool: BaseTool, args: JsonObject, context: ToolContext) -> Call:
        """Run `set_model_response`, and store the structured answer unless the tool rejects it."""

        async def run() -> Attempt:
            value = await tool.run_async(args=args, tool_context=context)
            if not isinstance(value, ResponseRejected):
                self.answer, self.has_answer = value, True
            return Attempt(context, value)

        return _answer_with(call, await run_with_callbacks(self.hooks, tool, args, context, run))

    async def _before(self, call: Call, tool: BaseTool, args: JsonObject) -> Call | None:
        """Run the `before_tool` callbacks for a call that needs confirmation or goes to another agent.

        Return the answered call if a callback returns a value or raises an exception, or None if the call should run.
        """
        if not self.hooks.has("before_tool_callback"):
            return None
        context = self.contexts.proposed(call.id, tool.name)
        try:
            outcome = await run_before_tool(self.hooks, tool, args, context)
        except CallbackRaised as error:
            outcome = build_error_outcome(tool, error.cause, context)
        if outcome is not None:
            return _answer_with(call, outcome)
        if actions := create_outcome(None, context=context).actions:
            self.written.append(actions)
        return None

    async def _agent(self, call: Call, tool: AgentTool, args: JsonObject) -> Call:
        """Annotate a call to another agent, which runs in a separate invocation.

        Refuse the call if it is nested too deeply or its input is too large.
        """
        request = args.get("request")
        if answered_call := await self._before(call, tool, args):
            return answered_call
        started = self.contexts.log.state.input
        if started and started.depth >= MAX_DEPTH:
            text = f"`{tool.name}` was not called: agents can call each other at most {MAX_DEPTH} levels deep."
            return _refuse(call, text, "TooDeep")
        try:
            message = tool.message_for(args)
        except ValueError as error:
            return _answer(call, {"error": str(error)})
        state = self.contexts.after(merge_actions(self.written) if self.written else None).state
        size = len(encode([responses.inherited_state(state), message]))
        limit = min(MAX_VALUE_BYTES, MAX_AGENT_INPUT_BYTES - self._agent_input_bytes)
        if size > limit:
            text = f"`{tool.name}` was not called: its input would be {size} bytes, over the limit of {limit}."
            return _refuse(call, text, "TooLarge")
        self._agent_input_bytes += size
        return call.model_copy(
            update={
                "kind": "agent",
                # Run the agent as an attached child only if nothing else runs. The history does not grow in that case,
                # and the server manages the child.
                "detached": self._has_several_calls
                or bool(self.contexts.work.branch or any(run.open for run in self.contexts.log.state.runs.at_work())),
                "agent": tool.agent.name,
                # By default, the workflow uses the argument `request` as the message.
                "message": None if message == request else message,
                "skip_summarization": tool.skip_summarization,
                "after": self.hooks.has("after_tool_callback", "on_tool_error_callback"),
            }
        )


def _answer_with(call: Call, outcome: ToolOutcome) -> Call:
    return _answer(call, outcome.response or {}, actions=outcome.actions, transfer=outcome.transfer)


def _refuse(call: Call, text: str, error_type: str) -> Call:
    return _answer(call, {"error": text, "error_type": error_type})


def _answer(call: Call, response: JsonObject, **fields: Any) -> Call:
    return call.model_copy(update={"kind": "answered", "response": response, **fields})
