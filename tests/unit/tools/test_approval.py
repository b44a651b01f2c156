"""Deciding which calls need an approval, and by which policy: the tool's own or a rule's."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from mcp.types import Tool
from pydantic import BaseModel, ValidationError

from tests.unit.tools.rest_service import spec
from tests.unit.tools.rest_service import tool as rest_tool
from waystation.agents import Agent, ApprovalRule, ReadonlyContext
from waystation.agents.toolbox import list_tools
from waystation.apps.registry import authoring_problems
from waystation.core.approval import ApprovalPolicy, Escalation, default_hint
from waystation.core.contract import Confirmation, Effect
from waystation.core.errors import InvalidTool
from waystation.core.payload import JsonObject
from waystation.tools import (
    ActivityTool,
    AgentTool,
    BaseTool,
    BaseToolset,
    CrewaiTool,
    FunctionTool,
    GoogleSearchTool,
    LangchainTool,
    LongRunningFunctionTool,
    NativeTool,
    NexusTool,
    RequestInputTool,
    RestApiTool,
    ToolContext,
    WorkflowTool,
    exit_loop,
    find_required_approval,
)
from waystation.tools.approval import RequiredApproval
from waystation.tools.authenticated_function_tool import AuthenticatedFunctionTool
from waystation.tools.get_user_choice_tool import get_user_choice_tool
from waystation.tools.load_artifacts_tool import LoadArtifactsTool, load_artifacts_tool
from waystation.tools.load_memory_tool import LoadMemoryTool, load_memory_tool
from waystation.tools.mcp_tool.mcp_tool import McpTool
from waystation.tools.preload_memory_tool import PreloadMemoryTool
from waystation.tools.request_input_tool import request_input

OWN = ApprovalPolicy(approvers=("role:own",))
FIRST = ApprovalPolicy(approvers=("role:first",))
SECOND = ApprovalPolicy(approvers=("role:second",))


def pay(amount: float, currency: str = "EUR", tool_context: ToolContext | None = None) -> str:
    """Pay."""
    return f"{amount} {currency}"


async def judge(tool: BaseTool, args: JsonObject, *rules: ApprovalRule) -> RequiredApproval:
    return await find_required_approval(tool, args, ToolContext(), rules)


async def policy_of(tool: BaseTool, args: JsonObject, *rules: ApprovalRule) -> ApprovalPolicy | None:
    """Return the policy of the call's confirmation, or None without a confirmation."""
    required = await judge(tool, args, *rules)
    return required.policy if required.confirmation else None


async def test_a_policy_requires_approval_of_every_call() -> None:
    """A policy needs no flag, and the confirmation has the tool's hint."""
    tool = FunctionTool(pay, approval=OWN, hint="Really?")
    required = await judge(tool, {"amount": 1})
    assert required.policy == OWN
    assert required.confirmation is not None
    assert required.confirmation.hint == "Really?"
    assert tool.effect_when(confirmed=True) == "once"


async def test_a_predicate_may_decide_together_with_a_policy() -> None:
    """The call keeps its policy even if the predicate is false, because the tool may ask later."""
    tool = FunctionTool(pay, approval=OWN, require_confirmation=lambda amount: amount > 100)
    assert await policy_of(tool, {"amount": 101}) == OWN
    assert await judge(tool, {"amount": 100}) == RequiredApproval(None, OWN)


async def test_a_long_running_tool_runs_and_its_answer_has_the_policy() -> None:
    """A long-running tool runs without a confirmation, and its answer has the policy."""
    assert await judge(LongRunningFunctionTool(pay, approval=OWN), {"amount": 1}) == RequiredApproval(None, OWN)


async def test_a_custom_tool_has_a_policy_as_an_attribute() -> None:
    """The method `check_require_confirmation` of a custom tool decides, if the tool has one."""

    class Shred(BaseTool):
        approval = OWN

    class Choosy(Shred):
        async def check_require_confirmation(self, args: JsonObject, tool_context: ToolContext) -> bool:
            return bool(args["all"])

    assert await policy_of(Shred(name="shred", description=""), {}) == OWN
    assert await policy_of(Choosy(name="shred", description=""), {"all": True}) == OWN
    assert await policy_of(Choosy(name="shred", description=""), {"all": False}) is None


@pytest.mark.parametrize("hint", [3, "\ud800", Exception("no hint")])
async def test_an_unusable_hint_is_replaced_by_the_default(hint: Any) -> None:
    """An approver is asked even if the hint is unusable, whether the tool or a rule requires the approval."""

    class Shred(BaseTool):
        def confirmation_hint(self) -> str:
            if isinstance(hint, Exception):
                raise hint
            return hint  # type: ignore[no-any-return]  # the mistake

    tool, gated = Shred(name="shred", description=""), Shred(name="shred", description="")
    gated.approval = OWN
    for required in (await judge(tool, {}, ApprovalRule(FIRST)), await judge(gated, {})):
        assert required.confirmation is not None
        assert required.confirmation.hint.startswith("Please approve or reject the tool call shred()")


@pytest.mark.parametrize("confirmation", [True, Confirmation(payload=object())])
async def test_a_confirmation_that_cannot_be_recorded_has_the_default_hint(confirmation: Any) -> None:
    """The confirmation has the default hint, because a model call that cannot be recorded would be retried forever."""

    class Shred(BaseTool):
        async def confirmation_for(self, args: JsonObject, tool_context: ToolContext) -> Confirmation | None:
            return confirmation  # type: ignore[no-any-return]  # the mistake

    required = await judge(Shred(name="shred", description=""), {})
    assert required.confirmation == Confirmation(hint=default_hint("shred"))


async def test_the_tools_own_policy_precedes_the_first_matching_rule() -> None:
    """The tool's own policy precedes the rules, which are evaluated in order."""
    rules = (ApprovalRule(FIRST, over={"amount": 1000}), ApprovalRule(SECOND))
    assert await policy_of(FunctionTool(pay, approval=OWN), {"amount": 5000}, *rules) == OWN
    assert await policy_of(FunctionTool(pay), {"amount": 5000}, *rules) == FIRST
    assert await policy_of(FunctionTool(pay), {"amount": 5}, *rules) == SECOND
    assert await judge(FunctionTool(pay), {"amount": 5}) == RequiredApproval()


async def test_a_tools_predicate_does_not_exempt_a_call_from_rules() -> None:
    """The author of a tool cannot exempt it from the rules of its operator."""
    tool = FunctionTool(pay, approval=OWN, require_confirmation=lambda amount: False)
    assert await policy_of(tool, {"amount": 5}, ApprovalRule(FIRST)) == FIRST


async def test_a_rule_sets_the_approvers_of_a_confirmed_tool() -> None:
    """A rule applies to a tool with `require_confirmation` and no policy."""
    tool = FunctionTool(pay, require_confirmation=True)
    assert await policy_of(tool, {"amount": 5}, ApprovalRule(FIRST)) == FIRST
    assert await policy_of(tool, {"amount": 5}) is None
    assert (await judge(tool, {"amount": 5})).confirmation is not None


async def test_a_rule_governs_the_answer_to_a_long_running_call() -> None:
    """The function runs, and the rule decides who may answer."""
    required = await judge(LongRunningFunctionTool(pay), {"amount": 5}, ApprovalRule(FIRST))
    assert required == RequiredApproval(None, FIRST)


@pytest.mark.parametrize(
    ("patterns", "matches"),
    [("pay", True), ("p*", True), (("book", "pa?"), True), (["Pay"], False), ("pa", False)],
)
async def test_tools_are_named_by_patterns(patterns: Sequence[str], matches: bool) -> None:
    """Patterns are case-sensitive, like names in models."""
    assert (await policy_of(FunctionTool(pay), {"amount": 1}, ApprovalRule(FIRST, tools=patterns)) == FIRST) is matches


@pytest.mark.parametrize(
    ("effect", "confirmed", "matches"),
    [
        ("read", False, {"all", "not once"}),
        (None, False, {"all", "not read", "not once"}),
        (None, True, {"all", "once", "not read"}),
        ("repeatable", False, {"all", "not read", "not once"}),
        ("once", False, {"all", "once", "not read"}),
        ("read", True, {"all", "not once"}),
    ],
)
async def test_rules_match_the_effect_of_the_call(effect: Effect | None, confirmed: bool, matches: set[str]) -> None:
    """A tool without a declared effect does not count as reading only."""
    tool = FunctionTool(pay, effect=effect, require_confirmation=confirmed)
    rules = {
        "all": ApprovalRule(FIRST),
        "once": ApprovalRule(FIRST, effects=("once",)),
        "not read": ApprovalRule(FIRST, unless_effect="read"),
        "not once": ApprovalRule(FIRST, unless_effect="once"),
    }
    assert {name for name, rule in rules.items() if await policy_of(tool, {"amount": 1}, rule) == FIRST} == matches


@pytest.mark.parametrize(
    ("amount", "over"),
    [(100, False), (100.01, True), ("5000", True), ("5", False), (-5, False), (1e300, True)],
)
async def test_an_amount_is_compared_as_the_function_receives_it(amount: object, over: bool) -> None:
    """A model cannot hide a large number in a string."""
    rule = ApprovalRule(FIRST, over={"amount": 100})
    assert (await policy_of(FunctionTool(pay), {"amount": amount}, rule) == FIRST) is over


class Remote(BaseTool):
    """A tool that accepts any arguments."""

    def _get_declaration(self) -> JsonObject:
        return {"name": self.name, "parametersJsonSchema": {"type": "object"}}


@pytest.mark.parametrize(
    ("args", "over"),
    [
        ({"amount": 101}, True),
        ({"amount": "101"}, True),
        ({"amount": "much"}, True),
        ({"amount": [1]}, True),
        ({"amount": True}, True),
        ({"amount": "nan"}, True),
        ({"amount": 10**400}, True),
        ({"amount": 5}, False),
        ({"amount": None}, False),
        ({}, False),
        ({"total": 200}, True),
    ],
)
async def test_a_value_that_is_not_a_number_exceeds_every_limit(args: JsonObject, over: bool) -> None:
    """An unclear amount needs an approval; a missing argument does not."""
    rule = ApprovalRule(FIRST, over={"amount": 100, "total": 100})
    assert (await policy_of(Remote(name="r", description=""), args, rule) == FIRST) is over


async def test_a_predicate_of_a_rule_receives_the_arguments_that_it_names() -> None:
    """A sync or async predicate receives converted arguments, defaults and the context."""

    async def foreign(currency: str, tool_context: ToolContext) -> bool:
        return currency != "EUR" and tool_context.user_id != "dana"

    rule = ApprovalRule(FIRST, when=foreign)
    assert await policy_of(FunctionTool(pay), {"amount": 1, "currency": "USD"}, rule) == FIRST
    assert await policy_of(FunctionTool(pay), {"amount": 1}, rule) is None


@pytest.mark.parametrize("predicate", [lambda amount: 1 / 0, lambda nothing_of_the_kind: False])
async def test_a_predicate_of_a_rule_that_raises_matches(predicate: Any) -> None:
    """A predicate that raises matches, so that an approver decides."""
    assert await policy_of(FunctionTool(pay), {"amount": 1}, ApprovalRule(FIRST, when=predicate)) == FIRST


async def test_all_conditions_of_a_rule_must_hold() -> None:
    """A rule is skipped if one of its conditions fails."""
    rule = ApprovalRule(FIRST, tools="pay", over={"amount": 10}, when=lambda currency: currency == "USD")
    assert await policy_of(FunctionTool(pay), {"amount": 11, "currency": "USD"}, rule) == FIRST
    assert await policy_of(FunctionTool(pay), {"amount": 9, "currency": "USD"}, rule) is None
    assert await policy_of(FunctionTool(pay), {"amount": 11}, rule) is None


async def test_arguments_that_the_function_refuses_need_no_approval() -> None:
    """The predicates of rules are not called for invalid arguments, because nothing runs."""
    rule = ApprovalRule(FIRST, over={"amount": 10})
    assert await policy_of(FunctionTool(pay), {"amount": "much"}, rule) is None


async def test_a_predicate_cannot_change_the_arguments() -> None:
    """A predicate receives a copy."""
    args = {"items": [1]}
    rule = ApprovalRule(FIRST, when=lambda items: items.append(2))
    await judge(Remote(name="r", description=""), args, rule)
    assert args == {"items": [1]}


async def test_leaving_a_loop_needs_no_approval() -> None:
    """The tool `exit_loop` needs no approval, because it only ends a loop."""
    assert await judge(FunctionTool(exit_loop), {}, ApprovalRule(FIRST)) == RequiredApproval()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"approval": {"approvers": ["a"]}}, "`approval` is {'approvers': ['a']}; use an ApprovalPolicy."),
        ({"approval": ApprovalPolicy(actions=("respond",))}, "add one of 'approve', 'edit' to `actions`"),
        (
            {"approval": ApprovalPolicy(remember=timedelta(1), remember_args=("amuont",))},
            "`remember_args` of its `approval` names 'amuont', which is not a parameter of the tool.",
        ),
        ({"title": "Pay {amuont}"}, "`title` names 'amuont', which is not a parameter of the tool."),
        ({"title": "Pay {amount.real}"}, "{amount.real} is not the name of an argument"),
    ],
)
def test_mistakes_in_a_tools_policy_are_reported(settings: JsonObject, problem: str) -> None:
    """Mistakes are reported when the tool is created, together with its other mistakes."""
    with pytest.raises(InvalidTool) as raised:
        FunctionTool(pay, retries=-1, **settings)
    assert problem in str(raised.value)
    assert "`retries` is -1" in str(raised.value)


class Ruling(BaseModel):
    """A response of an approver."""

    granted: bool
    note: str = ""


def test_a_response_schema_is_a_model_or_a_schema() -> None:
    """A model and a schema are both recorded as JSON schema."""
    by_model = LongRunningFunctionTool(pay, response_schema=Ruling).answer_schema() or {}
    assert (by_model["required"], sorted(by_model["properties"])) == (["granted"], ["granted", "note"])
    schema = {"type": "object", "required": ["granted"]}
    assert LongRunningFunctionTool(pay, response_schema=schema).answer_schema() == schema
    assert LongRunningFunctionTool(pay).answer_schema() is None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"response_schema": {"type": "objekt"}},
            "its `response_schema` is not a valid JSON schema: type: 'objekt' is not",
        ),
        ({"response_schema": int}, "its `response_schema` does not describe an object"),
        ({"response_schema": object()}, "its `response_schema` has no JSON schema"),
        ({"response_schema": {"type": "object", "title": "x" * 20_000}}, "use at most 16000"),
        ({"approval": ApprovalPolicy(actions=("edit",))}, "add one of 'approve', 'reject', 'respond' to `actions`"),
        ({"approval": ApprovalPolicy(remember=timedelta(1))}, "every long-running call needs its own answer"),
    ],
)
def test_mistakes_in_the_answers_of_a_long_running_tool_are_reported(settings: JsonObject, problem: str) -> None:
    """Mistakes are reported when the tool is created."""
    with pytest.raises(InvalidTool) as raised:
        LongRunningFunctionTool(pay, **settings)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (
            ApprovalPolicy,
            {"aprovers": ("role:finance",)},
            "ApprovalPolicy has no field 'aprovers'. Its fields are: approvers",
        ),
        (Escalation, {"after": timedelta(1), "to": ("a",), "notfy": ()}, "Escalation has no field 'notfy'"),
    ],
)
def test_a_misspelled_field_of_a_policy_is_refused(kind: Any, fields: JsonObject, message: str) -> None:
    """A misspelled field is refused, because ignoring it would let anyone answer."""
    with pytest.raises(TypeError, match=message):
        kind(**fields)


def test_a_policy_of_a_newer_version_is_read() -> None:
    """Unknown fields are ignored at every level."""
    recorded = {"quorum": 2, "new": 1, "escalation": [{"after": "PT1H", "to": ["a"], "new": 1}]}
    policy = ApprovalPolicy.model_validate(recorded)
    assert (policy.quorum, policy.escalation[0].to) == (2, ("a",))


@pytest.mark.parametrize(
    "wrong",
    [
        {"tools": ()},
        {"effects": ("write",)},
        {"unless_effect": "write"},
        {"when": "amount > 100"},
        {"over": {}},
        {"over": {"amount": "much"}},
        {"tool": "pay"},
    ],
)
def test_a_rule_with_a_mistake_is_refused(wrong: JsonObject) -> None:
    """A rule with a mistake is refused, for example one that matches nothing or everything."""
    with pytest.raises(ValidationError):
        ApprovalRule(FIRST, **wrong)
    with pytest.raises(ValidationError):
        ApprovalRule({"approvers": ["a"]})  # type: ignore[arg-type]  # the mistake in question


def test_an_agent_tool_needs_no_approval_by_its_attribute() -> None:
    """The calls of the agent need their own approvals."""
    tool = AgentTool(Agent(name="helper"))
    assert (tool.approval, tool.gated) == (None, False)


async def test_tools_that_ask_the_user_only_read() -> None:
    """A rule for everything but reading does not send the user's own questions to approvers."""
    rule = ApprovalRule(FIRST, unless_effect="read")
    for tool in (request_input, get_user_choice_tool, load_memory_tool, load_artifacts_tool):
        assert await judge(tool, {"message": "x", "options": [], "query": "x"}, rule) == RequiredApproval(), tool


@pytest.mark.parametrize(("method", "matches"), [("get", False), ("put", True), ("post", True)])
async def test_operations_of_services_have_the_effect_of_their_method(method: str, matches: bool) -> None:
    """A rule for everything but reading covers the other methods."""
    tool = rest_tool(spec("http://127.0.0.1:9", method=method))
    assert (await policy_of(tool, {}, ApprovalRule(FIRST, unless_effect="read")) == FIRST) is matches


@pytest.mark.parametrize(
    ("hints", "matches"), [({"readOnlyHint": True}, False), ({"idempotentHint": True}, True), (None, True)]
)
async def test_tools_of_servers_have_the_effect_of_their_annotations(hints: JsonObject | None, matches: bool) -> None:
    """A tool without annotations has the strictest effect."""
    mcp_tool = Tool.model_validate({"name": "look", "inputSchema": {"type": "object"}, "annotations": hints})
    tool = McpTool(mcp_tool=mcp_tool, sessions=None, headers_for=None)  # type: ignore[arg-type]  # it is not called
    assert (await policy_of(tool, {}, ApprovalRule(FIRST, unless_effect="read")) == FIRST) is matches
    assert (await policy_of(tool, {}, ApprovalRule(FIRST, effects="once")) == FIRST) is (hints is None)


UNUSED: Any = None
FOREIGN = SimpleNamespace(name="pay", description="", args_schema=Ruling, run=pay)
KINDS: dict[type[BaseTool], Callable[[], BaseTool]] = {
    Remote: lambda: Remote(name="pay", description=""),
    FunctionTool: lambda: FunctionTool(pay),
    LongRunningFunctionTool: lambda: LongRunningFunctionTool(pay),
    RequestInputTool: RequestInputTool,
    AuthenticatedFunctionTool: lambda: AuthenticatedFunctionTool(pay),
    ActivityTool: lambda: ActivityTool("pay", schema=Ruling),
    WorkflowTool: lambda: WorkflowTool("pay", schema=Ruling),
    NexusTool: lambda: NexusTool("pay", endpoint="e", service="s", schema=Ruling),
    LangchainTool: lambda: LangchainTool(FOREIGN),
    CrewaiTool: lambda: CrewaiTool(FOREIGN, name="pay"),
    McpTool: lambda: McpTool(
        mcp_tool=Tool(name="pay", input_schema={"type": "object"}), sessions=UNUSED, headers_for=UNUSED
    ),
    RestApiTool: lambda: rest_tool(spec("https://pets.example.com")),
    LoadArtifactsTool: LoadArtifactsTool,
    LoadMemoryTool: LoadMemoryTool,
    AgentTool: lambda: AgentTool(Agent(name="clerk", model="gemini-3.5-flash")),
    NativeTool: GoogleSearchTool,
    PreloadMemoryTool: PreloadMemoryTool,
}
REFUSED = {AgentTool, NativeTool, PreloadMemoryTool}
"""The classes whose calls cannot wait for an approval."""
OTHERS = {
    *("AdkAgentTool", "AdkRequestTool", "AdkTool", "RunCodeTool", "SetModelResponseTool", "TransferToAgentTool"),
    *("BaseAuthenticatedTool", "FrameworkTool", "TemporalTool", "_LangchainRun"),
}
"""Tool classes without an author's policy, tool classes that the tests with google-adk cover, and base classes."""


class Listed(BaseToolset):
    def __init__(self, tool: BaseTool, **settings: Any) -> None:
        super().__init__(**settings)
        self.tools = [tool]

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        return self.tools


def classes(above: type[BaseTool]) -> Iterator[type[BaseTool]]:
    for cls in above.__subclasses__():
        if cls.__module__.startswith("waystation."):
            yield cls
            yield from classes(cls)


def test_every_class_of_tools_is_listed_here() -> None:
    """Every class is listed, so that the next test covers it: it either asks or refuses policies."""
    unknown = {cls.__name__ for cls in classes(BaseTool) if not issubclass(cls, NativeTool)} - OTHERS
    assert unknown <= {kind.__name__ for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("rule", [False, True, lambda: True, lambda: False], ids=["none", "all", "yes", "no"])
@pytest.mark.parametrize("place", ["declared", "listed", "prefixed"])
async def test_a_tool_with_a_policy_asks_or_does_not_load(kind: type[BaseTool], rule: Any, place: str) -> None:
    """A policy alone asks at each call and a rule decides with it, for declared tools and those of toolsets."""
    tool = KINDS[kind]()
    tool.approval, tool.require_confirmation = OWN, rule
    toolset = Listed(tool, tool_name_prefix="p" if place == "prefixed" else None)
    agent = Agent(name="a", model="gemini-3.5-flash", tools=[tool if place == "declared" else toolset])
    problems = authoring_problems(agent)
    if kind in REFUSED and place == "declared":
        assert "would have no effect" in str(problems[0])
        return
    assert not problems
    for listed in (await list_tools(agent, ReadonlyContext)).values():
        required = await judge(listed, {"amount": 1, "message": "m", "name": "n", "query": "q", "granted": True})
        assert required.policy == OWN
        assert tool.is_long_running or (required.confirmation is not None) == (not callable(rule) or rule())
        assert kind not in REFUSED


def test_policies_without_effect_are_mistakes() -> None:
    """Policies of a toolset, of a plain function, and of a rule for an exempt tool are reported."""

    def refund() -> None: ...

    refund.approval = OWN  # type: ignore[attr-defined]
    toolset = Listed(FunctionTool(pay))
    toolset.approval = OWN  # type: ignore[attr-defined]
    agent = Agent(name="a", model="gemini-3.5-flash", tools=[refund, toolset])
    problems = authoring_problems(agent)
    assert [type(problem) for problem in problems] == [InvalidTool, InvalidTool]
    assert "`approval`" in str(problems[0])
    assert "ApprovalRule" in str(problems[1])
    looping = Agent(name="a", model="gemini-3.5-flash", tools=[exit_loop, pay])
    rule = ApprovalRule(OWN, tools="exit_loop")
    assert "match no tool" in str(authoring_problems(looping, [rule])[0])
