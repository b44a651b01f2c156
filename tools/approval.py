"""Whether a person has to agree to a call, and by which policy: the tool's own, an agent's rules, an app's.

What author code is asked here may raise anything; whatever cannot be decided, a person decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from waystation.agents import ApprovalRule
from waystation.agents.memoize import memoize
from waystation.core import ApprovalPolicy, Confirmation, InvalidTool, JsonObject, copy_json, digest, plain, usual_hint
from waystation.tools import (
    AgentTool,
    BaseTool,
    SetModelResponseTool,
    ToolContext,
    TransferToAgentTool,
    call_predicate,
    declare,
    declared_by,
    exit_loop,
    place_of,
)

log = structlog.get_logger(__name__)

_TEXTS = frozenset({"title", "description"})
_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value is an object of schemas under names, which are nobody's texts whatever they are."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found of one call."""

    confirmation: Confirmation | None = None
    """What a person is asked before the call; None when nobody is."""
    policy: ApprovalPolicy | None = None
    """Who may answer, whether the call is confirmed, long-running, or asks from inside."""


async def judged(
    tool: BaseTool, args: JsonObject, context: ToolContext, rules: Sequence[ApprovalRule] = ()
) -> Judgement:
    """Look at a call: the tool's own policy comes first, then the first rule that matches."""
    confirmation = await _own(tool, args, context)
    if tool.approval is not None and (confirmation is not None or tool.is_long_running):
        return Judgement(confirmation, tool.approval)
    effect = tool.effect_when(confirmed=confirmation is not None)
    for rule in rules if _does_something(tool) else ():
        if rule.names(tool.name) and rule.is_about(effect) and await _holds(rule, tool, args, context):
            if confirmation is None and not tool.is_long_running:
                confirmation = _usual(tool)
            return Judgement(confirmation, rule.policy)
    return Judgement(confirmation, tool.approval)


def _does_something(tool: BaseTool) -> bool:
    """Whether a call is more than a step of the agents themselves; what a called agent does is judged there."""
    steps = isinstance(tool, TransferToAgentTool | SetModelResponseTool | AgentTool)
    return not (steps or getattr(tool, "func", None) is exit_loop)


async def _own(tool: BaseTool, args: JsonObject, context: ToolContext) -> Confirmation | None:
    try:
        found = await tool.confirmation_for(copy_json(args), context)
        # Made anew, so that whatever cannot be recorded is found here.
        return None if found is None else Confirmation(hint=plain(found.hint), payload=plain(found.payload))
    except Exception as error:  # noqa: BLE001  # author's code
        # Only the type: the text may quote arguments.
        log.warning(
            "confirmation_predicate.failed", tool=tool.name, error_type=type(error).__name__, place=place_of(error)
        )
        return _usual(tool)


def _usual(tool: BaseTool) -> Confirmation:
    """Return what is asked without anything to fill in, with ADK's words when the tool's own are of no use."""
    try:
        return Confirmation(hint=plain(tool.confirmation_hint()))
    except Exception as error:  # noqa: BLE001  # author's code
        log.warning("confirmation_hint.failed", tool=tool.name, error_type=type(error).__name__, place=place_of(error))
        return Confirmation(hint=usual_hint(tool.name))


async def _holds(rule: ApprovalRule, tool: BaseTool, args: JsonObject, context: ToolContext) -> bool:
    """Whether what a rule says of arguments holds. Those that the tool would refuse concern nobody: nothing runs."""
    if rule.when is None and rule.over is None:
        return True
    try:
        seen = tool.seen(copy_json(args), context)
        if seen is None:
            return False
        amounts = [(seen.get(name), limit) for name, limit in (rule.over or {}).items()]
        if amounts and not any(_is_over(value, limit) for value, limit in amounts if value is not None):
            return False
        if rule.when is None:
            return True
        return await call_predicate(rule.when, seen, context)
    except Exception as error:  # noqa: BLE001  # author's code
        log.warning("approval_rule.failed", tool=tool.name, error_type=type(error).__name__, place=place_of(error))
        return True


def _is_over(value: Any, limit: float) -> bool:
    """Whether an argument is above a limit, or nobody knows."""
    if isinstance(value, bool):
        return True
    try:
        # Not `>`: what is no number is over.
        return not float(value) <= limit
    except (TypeError, ValueError, OverflowError):
        return True


def parameters_digest(tool: BaseTool) -> str:
    """Return the digest of a tool's parameters, which no change of a description or title changes.

    A tool may change, so it is kept only for those of which it is known on what it depends.
    """
    made_of = declared_by(tool)
    return _digest(tool) if made_of is None else memoize(tool, "_parameters", made_of, lambda: _digest(tool))


def _digest(tool: BaseTool) -> str:
    try:
        declared = declare(tool)
    except InvalidTool:  # a tool that has run cannot be undone, so nothing is to fail here
        return digest(None)
    return digest(_bare((declared or {}).get("parametersJsonSchema")))


def _bare(schema: Any) -> Any:
    """Return a schema without its texts."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _part(key, value) for key, value in schema.items() if not (key in _TEXTS and isinstance(value, str))}


def _part(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key in _OF_SCHEMAS and isinstance(value, dict):
        return {name: _bare(each) for name, each in value.items()}
    return _bare(value)
