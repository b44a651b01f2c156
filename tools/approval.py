"""Decide whether a call needs approval, and whether the tool's policy or a rule of the agent or app applies.

If user code, such as a predicate, raises an exception, the call needs approval.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from waystation.core.approval import ApprovalPolicy, default_hint
from waystation.core.contract import Confirmation
from waystation.core.errors import InvalidTool
from waystation.core.payload import JsonObject, copy_json, digest, to_plain_json
from waystation.tools import (
    AgentTool,
    ApprovalRule,
    BaseTool,
    NativeTool,
    SetModelResponseTool,
    ToolContext,
    TransferToAgentTool,
    call_predicate,
    declaration_key,
    declare,
    exit_loop,
    report_failure,
)
from waystation.tools.memoize import memoize

_TEXTS = frozenset({"title", "description"})
_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value maps names to schemas. A name can look like a keyword: a property can be called `title`."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data rather than a schema."""


@dataclass(frozen=True, slots=True)
class RequiredApproval:
    """The approval that one call needs."""

    confirmation: Confirmation | None = None
    """The question to ask the approver before the call runs, or None if the call does not need confirmation."""
    policy: ApprovalPolicy | None = None
    """The policy for every question about the call, or None if anyone may answer."""
    rule: ApprovalRule | None = field(default=None, compare=False)
    """The rule that requires it, or None if the tool itself does."""
    shadows: tuple[ApprovalRule, ...] = field(default=(), compare=False)
    """The matching rules that are only evaluated."""


async def find_required_approval(
    tool: BaseTool, args: JsonObject, context: ToolContext, rules: Sequence[ApprovalRule] = ()
) -> RequiredApproval:
    """Return the approval that a call needs. The tool's own policy takes precedence over the first matching rule."""
    confirmation = await _own_confirmation(tool, args, context)
    effect = tool.effect_when(confirmed=confirmation is not None)
    about = [rule for rule in rules if is_subject_to_rules(tool) and rule.names(tool.name) and rule.is_about(effect)]
    shadows = [rule for rule in about if rule.shadow and await _matches_arguments(rule, tool, args, context)]
    required = RequiredApproval(confirmation, tool.approval, shadows=tuple(shadows))
    if tool.approval is not None and (confirmation is not None or tool.is_answered_by_people):
        return required
    for rule in about:
        if not rule.shadow and await _matches_arguments(rule, tool, args, context):
            if confirmation is None and not tool.is_answered_by_people:
                confirmation = _default_confirmation(tool)
            return replace(required, confirmation=confirmation, policy=rule.policy, rule=rule)
    return required


def is_subject_to_rules(tool: BaseTool) -> bool:
    """Return whether rules apply to a tool. AgentTools are exempt: the called agent's calls are judged separately."""
    steps = isinstance(tool, TransferToAgentTool | SetModelResponseTool | AgentTool | NativeTool)
    return not (steps or getattr(tool, "func", None) is exit_loop)


async def _own_confirmation(tool: BaseTool, args: JsonObject, context: ToolContext) -> Confirmation | None:
    try:
        found = await tool.confirmation_for(copy_json(args), context)
        # Convert here, so that a value that cannot be recorded raises inside this `try`.
        return (
            None
            if found is None
            else Confirmation(hint=to_plain_json(found.hint), payload=to_plain_json(found.payload))
        )
    except Exception as error:  # noqa: BLE001  # user code
        report_failure("confirmation_predicate.failed", tool.name, error)
        return _default_confirmation(tool)


def _default_confirmation(tool: BaseTool) -> Confirmation:
    """Return the tool's question without a payload. If its hint is unusable, use ADK's default wording."""
    try:
        return Confirmation(hint=to_plain_json(tool.confirmation_hint()))
    except Exception as error:  # noqa: BLE001  # user code
        report_failure("confirmation_hint.failed", tool.name, error)
        return Confirmation(hint=default_hint(tool.name))


async def _matches_arguments(rule: ApprovalRule, tool: BaseTool, args: JsonObject, context: ToolContext) -> bool:
    """Return whether the arguments meet a rule's conditions. Arguments that the tool would reject never do."""
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
    except Exception as error:  # noqa: BLE001  # user code
        report_failure("approval_rule.failed", tool.name, error)
        return True


def _is_over(value: Any, limit: float) -> bool:
    """Return whether an argument exceeds a limit or cannot be compared with it."""
    if isinstance(value, bool):
        return True
    try:
        # Use `not <=` rather than `>`, so that NaN counts as over the limit.
        return not float(value) <= limit
    except (TypeError, ValueError, OverflowError):
        return True


def parameters_digest(tool: BaseTool) -> str:
    """Return a digest of a tool's parameters, ignoring titles and descriptions.

    The digest is cached only if the values that the tool's declaration depends on are known.
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
    """Return a copy of a schema without titles and descriptions."""
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
