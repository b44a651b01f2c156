"""Whether the call that is about to run is the one that a person agreed to.

The workflow says what was approved, as a digest; here it is compared with the arguments as they are now, with the tool
as it is declared now, and with the policy that was recorded. It is the last moment at which anything can differ.
"""

from collections.abc import Sequence

import structlog

from waystation.agents.approval_rule import ApprovalRule
from waystation.core import responses
from waystation.core.call import CallState
from waystation.core.errors import NotJson
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, encode, plain
from waystation.core.policy import call_digest
from waystation.core.tool_call import ToolCallInput, ToolOutcome
from waystation.tools.approval import judged, parameters_digest
from waystation.tools.base_tool import BaseTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

events = structlog.get_logger("waystation.activities")

CHANGED_ARGUMENTS = (
    "`{tool}` was not run: a person approved it with other arguments, and they were changed since, which only a "
    "callback around tools can do. Approval is needed anew for what is to run."
)
CHANGED_TOOL = (
    "`{tool}` was not run: the parameters that it takes were changed after a person was asked. Call it again if it is "
    "still needed; somebody will be asked again."
)
CHANGED_POLICY = "`{tool}` was not run: what was approved is not this call. Call it again if it is still needed."
UNASKED = (
    "`{tool}` was not run: a callback changed its arguments to such for which a person has to be asked, after it had "
    "been decided that nobody is."
)


async def refusal(
    call: CallState,
    given: ToolCallInput,
    tool: BaseTool,
    args: JsonObject,
    context: ToolContext,
    rules: Sequence[ApprovalRule] = (),
) -> ToolOutcome | None:
    """Return what the model is told instead of running the tool; None when nothing speaks against it."""
    found = await _differing(call, given, tool, args, context, rules)
    no = call.answer if context.tool_confirmation is not None and not context.tool_confirmation.confirmed else None
    if no is not None and (found is not None or await _takes_no_answer(call, tool, args, context, rules)):
        events.warning("tool_call.not_approved", tool=call.name, function_call_id=call.id, reason="Rejected")
        return ToolOutcome(function_call_id=call.id, response=responses.rejected(no))
    return found


async def _differing(
    call: CallState,
    given: ToolCallInput,
    tool: BaseTool,
    args: JsonObject,
    context: ToolContext,
    rules: Sequence[ApprovalRule],
) -> ToolOutcome | None:
    if given.digest is None:
        return await _unasked(call, tool, args, context, rules)
    try:
        shown, declared = plain(args), parameters_digest(tool)
    except NotJson:
        return _refused(call, CHANGED_ARGUMENTS, "DigestMismatch")
    if call_digest(call.agent, call.name, shown, declared=declared, policy=call.policy) == given.digest:
        return None
    if declared != call.declared:
        return _refused(call, CHANGED_TOOL, "DigestMismatch")
    return _refused(call, CHANGED_ARGUMENTS if shown != call.args else CHANGED_POLICY, "DigestMismatch")


async def _takes_no_answer(
    call: CallState, tool: BaseTool, args: JsonObject, context: ToolContext, rules: Sequence[ApprovalRule]
) -> bool:
    """Whether a tool would not look at the answer to what it had asked from inside, since a deploy has changed it: now
    its function takes no context, or it is confirmed before it runs."""
    if isinstance(tool, FunctionTool) and tool.signature.context is None:
        return True
    if call.call.confirmation is not None or call.call.standing:
        return False
    return (await judged(tool, args, context, rules)).confirmation is not None


async def _unasked(
    call: CallState, tool: BaseTool, args: JsonObject, context: ToolContext, rules: Sequence[ApprovalRule]
) -> ToolOutcome | None:
    """Look whether a callback has made a call, which nobody had to agree to, one that somebody has to agree to."""
    if args == call.args or call.call.confirmation is not None or context.tool_confirmation is not None:
        return None
    found = await judged(tool, args, context, rules)
    return _refused(call, UNASKED, "ApprovalNeeded") if found.confirmation is not None else None


def asking(call: CallState, tool: BaseTool, args: JsonObject, outcome: ToolOutcome) -> ToolOutcome:
    """Return the outcome with what a person's answer is bound to, when the tool asks for one from inside."""
    if outcome.actions is None or call.id not in outcome.actions.requested_tool_confirmations:
        return outcome
    bound = {
        "approval": call.call.approval or tool.approval,
        "declared": call.declared or parameters_digest(tool),
        "args": None if args == call.args else recordable(args),
    }
    return outcome.model_copy(update=bound)


def recordable(args: JsonObject) -> JsonObject | None:
    """Return arguments as callbacks left them; None when they cannot be recorded, and then the call will not run."""
    try:
        kept: JsonObject = plain(args)
    except NotJson:
        return None
    return kept if len(encode(kept)) <= MAX_VALUE_BYTES else None


def _refused(call: CallState, text: str, error_type: str) -> ToolOutcome:
    events.warning("tool_call.not_approved", tool=call.name, function_call_id=call.id, reason=error_type)
    response = {"error": text.format(tool=call.name), "error_type": error_type}
    return ToolOutcome(function_call_id=call.id, response=response, error_type=error_type)
