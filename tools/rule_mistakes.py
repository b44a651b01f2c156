"""Mistakes in approval rules: a rule that matches nothing protects nothing, and nobody would notice."""

from collections.abc import Iterator, Sequence

from waystation.agents.approval_rule import ApprovalRule
from waystation.core.errors import AuthoringError
from waystation.tools.agent_tool import AgentTool
from waystation.tools.base_tool import BaseTool, declare
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.function_tool import FunctionTool
from waystation.tools.functions import EMPTY, Signature, name_of
from waystation.tools.native_tool import NativeTool


def rule_problems(rules: Sequence[ApprovalRule], entries: Sequence[BaseTool | BaseToolset]) -> list[str]:
    """Return what is wrong with rules, given the tools and toolsets to which they apply."""
    # What toolsets give is known only when they are asked.
    whole = not any(isinstance(entry, BaseToolset) for entry in entries)
    found = (entry for entry in entries if not isinstance(entry, AgentTool | NativeTool))
    tools = [entry for entry in found if isinstance(entry, BaseTool)]
    return [
        f"approval rule {number} {problem}"
        for number, rule in enumerate(rules, 1)
        for problem in (
            *(f"has a policy that {mistake}" for mistake in rule.policy.mistakes()),
            *(_matching_nothing(rule, tools) if whole else ()),
            *_asking_in_vain(rule, tools),
        )
    ]


def _matching_nothing(rule: ApprovalRule, tools: Sequence[BaseTool]) -> Iterator[str]:
    for pattern in rule.tools or ():
        if not any(ApprovalRule(rule.policy, tools=(pattern,)).names(tool.name) for tool in tools):
            known = ", ".join(sorted({tool.name for tool in tools})) or "none"
            yield f"is about tools named {pattern!r}, of which there is none; there are: {known}."
    about = [(tool, _parameters(tool)) for tool in tools if rule.names(tool.name)]
    if not about or any(parameters is None for _, parameters in about):
        return
    for name in rule.over or ():
        if not any(name in (parameters or ()) for _, parameters in about):
            yield f"is about calls with a large {name!r}, which is a parameter of none of the tools that it is about."


def _asking_in_vain(rule: ApprovalRule, tools: Sequence[BaseTool]) -> Iterator[str]:
    """Yield for which tools the rule's predicate would raise at every call."""
    if rule.when is None:
        return
    wanted = Signature(rule.when, name_of(rule.when))
    mandatory = [name for name in wanted.annotations if wanted.python.parameters[name].default is EMPTY]
    for tool in tools:
        if rule.names(tool.name) and (parameters := _parameters(tool)) is not None:
            for name in mandatory:
                if name not in parameters:
                    yield (
                        f"asks about {name!r}, which {tool.name!r} does not take, so every call of it would wait; name "
                        "the tools that it is about in `tools`, or give the parameter of `when` a default."
                    )


def _parameters(tool: BaseTool) -> set[str] | None:
    """Return what predicates are given of a tool's calls; None when that is not known."""
    try:
        declared = declare(tool)
    except AuthoringError:  # which is reported elsewhere
        return None
    if declared is None:
        return None
    schema = declared.get("parametersJsonSchema") or {}
    context = tool.signature.context if isinstance(tool, FunctionTool) else None
    return {*schema.get("properties", {}), *([context] if context else [])}
