"""The command `waystation worker check` reports rules that match nothing."""

from typing import Any

import pytest

from waystation.agents import Agent, ApprovalRule
from waystation.apps.registry import authoring_problems
from waystation.core.approval import ApprovalPolicy
from waystation.core.errors import InvalidTool
from waystation.core.payload import JsonObject
from waystation.tools.agent_tool import AgentTool
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

POLICY = ApprovalPolicy()


def pay(amount: float, ctx: ToolContext) -> None:
    """Pay."""


def book(guests: int) -> None:
    """Book."""


class Nothing(BaseToolset):
    """A toolset with unknown tools."""

    async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
        return []


def problems(*rules: ApprovalRule, tools: tuple[Any, ...] = (pay, book)) -> list[str]:
    """Return the problems of an agent with these rules and tools."""
    agent = Agent(name="clerk", tools=list(tools), approval_rules=list(rules))
    return [str(problem) for problem in authoring_problems(agent)]


def test_a_rule_that_matches_something_is_valid() -> None:
    """Rules match by pattern, by amount, by predicate, by an amount of one tool, and by a predicate with a default."""
    assert (
        problems(
            ApprovalRule(POLICY),
            ApprovalRule(POLICY, tools="p*", over={"amount": 5}),
            ApprovalRule(POLICY, over={"guests": 5}),
            ApprovalRule(POLICY, tools="pay", when=lambda amount, ctx: True),
            ApprovalRule(POLICY, when=lambda amount=0: amount > 5),
            ApprovalRule(POLICY, when=lambda **args: True),
        )
        == []
    )


def test_a_pattern_without_a_match_is_named() -> None:
    """The error lists the existing tools; each pattern of a rule must match one."""
    (problem,) = problems(ApprovalRule(POLICY), ApprovalRule(POLICY, tools=("pay", "bok*")))
    assert problem == (
        "Agent 'clerk': approval rule 2 names tools 'bok*', which match no tool; the tools are: book, pay."
    )


def test_an_amount_that_no_tool_takes_is_named() -> None:
    """An amount that no tool takes is named, because it would never exceed the limit."""
    (problem,) = problems(ApprovalRule(POLICY, over={"amuont": 5}))
    assert "has a limit for 'amuont', which is not a parameter of any of its tools" in problem


def test_a_predicate_that_would_always_raise_is_named() -> None:
    """A predicate that would always raise is named, because every call of the tool would need an approval."""
    (problem,) = problems(ApprovalRule(POLICY, when=lambda amount: amount > 5))
    assert "with the parameter 'amount', which 'book' does not have" in problem


def test_all_mistakes_are_reported_together() -> None:
    """The mistakes of all rules and of the tools are reported together."""
    rules = (ApprovalRule(POLICY, tools="x"), ApprovalRule(POLICY, over={"y": 1}))
    assert len(problems(*rules, tools=(pay, lambda amount: None))) == 3


@pytest.mark.parametrize("rule", [{"tools": "remote_*"}, {"over": {"sum": 5}}])
def test_rules_for_unknown_tools_are_not_reported(rule: JsonObject) -> None:
    """Rules for unknown tools are accepted, because they may match the tools of a toolset."""
    assert problems(ApprovalRule(POLICY, **rule), tools=(pay, Nothing())) == []


def test_the_rules_of_an_app_apply_to_the_tools_of_all_agents() -> None:
    """The rules apply to agents that are called as tools, too, but match no calls of these agents themselves."""
    helper = Agent(name="helper", tools=[book])
    root = Agent(name="clerk", tools=[pay, AgentTool(helper)])
    rules = [ApprovalRule(POLICY, tools=name) for name in ("pay", "book", "helper")]
    (problem,) = authoring_problems(root, rules)
    assert str(problem).startswith("Agent 'clerk': in its app, approval rule 3 names tools 'helper'")


def test_contradictory_policies_are_named() -> None:
    """The policies of a rule and of a tool that contradict each other are named."""
    never = ApprovalPolicy(approvers=("ann",), quorum=2)
    [of_rule] = problems(ApprovalRule(never))
    assert "approval rule 1 has a policy that requires 2 people (`quorum`), but names only ann" in of_rule
    with pytest.raises(InvalidTool, match=r"its `approval` requires 2 people \(`quorum`\), but names only ann"):
        FunctionTool(book, approval=never)
