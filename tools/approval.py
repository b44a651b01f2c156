"""Decide whether a call needs approval, and by which policy: the tool's, an agent's rule or an app's rule.

When author code raises, the call needs approval.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from waystation.agents import ApprovalRule
from waystation.agents.memoize import memoize
from waystation.core import (
    ApprovalPolicy,
    Confirmation,
    InvalidTool,
    JsonObject,
    copy_json,
    default_hint,
    digest,
    to_plain_json,
)
from waystation.tools import (
    AgentTool,
    BaseTool,
    SetModelResponseTool,
    ToolContext,
    TransferToAgentTool,
    call_predicate,
    declaration_key,
    declare,
    exit_loop,
    find_author_line,
)

log = structlog.get_logger(__name__)

_TEXTS = frozenset({"title", "description"})
_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value maps names to schemas. The names may equal keywords such as `title`."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data."""


@dataclass(frozen=True, slots=True)
class RequiredApproval:
    """The approval that one call needs."""

    confirmation: Confirmation | None = None
    """The question for the approver before the call; None when the call needs no confirmation."""
    policy: ApprovalPolicy | None = None
    """The policy for approvers of the call, for all kinds of questions; None when anybody may answer."""


async def judge_call(
    tool: BaseTool, args: JsonObject, context: ToolContext, rules: Sequence[ApprovalRule] = ()
) -> RequiredApproval:
    """Return the approval that a call needs: by the tool's own policy, otherwise by the first matching rule."""
    confirmation = await _own_confirmation(tool, args, context)
    if tool.approval is not None and (confirmation is not None or tool.is_long_running):
        return RequiredApproval(confirmation, tool.approval)
    effect = tool.effect_when(confirmed=confirmation is not None)
    for rule in rules if _is_subject_to_rules(tool) else ():
        if rule.names(tool.name) and rule.is_about(effect) and await _matches_arguments(rule, tool, args, context):
            if confirmation is None and not tool.is_long_running:
                confirmation = _default_confirmation(tool)
            return RequiredApproval(confirmation, rule.policy)
    return RequiredApproval(confirmation, tool.approval)


def _is_subject_to_rules(tool: BaseTool) -> bool:
    """Whether rules apply to a tool. The calls of a called agent are judged on their own."""
    steps = isinstance(tool, TransferToAgentTool | SetModelResponseTool | AgentTool)
    return not (steps or getattr(tool, "func", None) is exit_loop)


async def _own_confirmation(tool: BaseTool, args: JsonObject, context: ToolContext) -> Confirmation | None:
    try:
        found = await tool.confirmation_for(copy_json(args), context)
        # Copied, so that values that cannot be recorded raise here.
        return (
            None
            if found is None
            else Confirmation(hint=to_plain_json(found.hint), payload=to_plain_json(found.payload))
        )
    except Exception as error:  # noqa: BLE001  # author's code
        # Only the type: the text may quote arguments.
        log.warning(
            "confirmation_predicate.failed",
            tool=tool.name,
            error_type=type(error).__name__,
            place=find_author_line(error),
        )
        return _default_confirmation(tool)


def _default_confirmation(tool: BaseTool) -> Confirmation:
    """Return the question without a payload, in ADK's words when the tool's hint is unusable."""
    try:
        return Confirmation(hint=to_plain_json(tool.confirmation_hint()))
    except Exception as error:  # noqa: BLE001  # author's code
        log.warning(
            "confirmation_hint.failed", tool=tool.name, error_type=type(error).__name__, place=find_author_line(error)
        )
        return Confirmation(hint=default_hint(tool.name))


async def _matches_arguments(rule: ApprovalRule, tool: BaseTool, args: JsonObject, context: ToolContext) -> bool:
    """Whether a rule's conditions on arguments hold. They never hold for arguments that the tool would reject."""
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
        log.warning(
            "approval_rule.failed", tool=tool.name, error_type=type(error).__name__, place=find_author_line(error)
        )
        return True


def _is_over(value: Any, limit: float) -> bool:
    """Whether an argument is above a limit, or cannot be compared."""
    if isinstance(value, bool):
        return True
    try:
        # Not `>`: NaN counts as above.
        return not float(value) <= limit
    except (TypeError, ValueError, OverflowError):
        return True


def parameters_digest(tool: BaseTool) -> str:
    """Return a digest of a tool's parameters that ignores descriptions and titles.

    It is cached only for tools whose declaration depends on known values.
    """
    made_of = declaration_key(tool)
    return _digest(tool) if made_of is None else memoize(tool, "_parameters", made_of, lambda: _digest(tool))


def _digest(tool: BaseTool) -> str:
    try:
        declared = declare(tool)
    except InvalidTool:  # the tool may have run already, so this must not fail
        return digest(None)
    return digest(_strip_texts((declared or {}).get("parametersJsonSchema")))


def _strip_texts(schema: Any) -> Any:
    """Return a schema without titles and descriptions."""
    if isinstance(schema, list):
        return [_strip_texts(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _strip_keyword(key, value)
        for key, value in schema.items()
        if not (key in _TEXTS and isinstance(value, str))
    }


def _strip_keyword(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key in _OF_SCHEMAS and isinstance(value, dict):
        return {name: _strip_texts(item) for name, item in value.items()}
    return _strip_texts(value)
