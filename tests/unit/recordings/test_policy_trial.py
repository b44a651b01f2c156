"""Trying policies on recorded calls: what they would ask, compared with what people were asked and decided."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.converter import DataConverter

from waystation.agents import Agent
from waystation.apps.registry import Registry
from waystation.core.approval import ApprovalPolicy
from waystation.core.log import Log
from waystation.replay.history_logs import UnreadableHistory, list_files, read_files
from waystation.replay.policy_suggestions import SuggestionMaker, interval_of
from waystation.replay.policy_trial import PolicyTrial, TrialReport, TriedCall
from waystation.testing import ScriptedModel, says
from waystation.tools import ApprovalRule, FunctionTool

CORPUS = Path("tests/corpus")
FINANCE = ApprovalPolicy(approvers=("role:finance",))


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


async def missing(_: str) -> bytes:
    """A store without content."""
    raise AssertionError("no value of these histories is in a store")


async def read(*names: str) -> list[Log | UnreadableHistory]:
    """Return the logs of recorded histories."""
    files = [CORPUS / f"{name}.json" for name in names]
    return [log async for log in read_files(files, DataConverter.default, missing)]


def clerk(tool: Callable[..., object] | FunctionTool = pay, *rules: ApprovalRule) -> Registry:
    """An agent with the name and the tool of the recorded one."""
    model = ScriptedModel(says("done"))
    return Registry.of(Agent(name="clerk", model=model, tools=[tool], approval_rules=list(rules)))


async def try_on(registry: Registry, *names: str, limit_s: float = 5.0) -> list[TriedCall]:
    """Try the policies of agents on recorded histories."""
    trial, tried = PolicyTrial(registry, limit_s=limit_s), list[TriedCall]()
    for log in await read(*names):
        assert isinstance(log, Log)
        tried += [call async for call in trial.try_log(log)]
    return [call for call in tried if call.tool.startswith("pay")]


def report_on(calls: Sequence[TriedCall]) -> TrialReport:
    """Return the report about calls."""
    report = TrialReport()
    for call in calls:
        report.add(call)
    return report


async def test_a_call_that_people_rejected_must_not_run_without_asking() -> None:
    """The report names it, and the trial fails."""
    calls = await try_on(clerk(), "confirmation-rejected", "confirmation-approved")
    report = report_on(calls)
    assert [(call.decision, call.asks, call.is_let_through) for call in calls] == [
        ("reject", False, True),
        ("approve", False, False),
    ]
    assert (report.asked, report.asks, report.let_through.links) == (2, 0, ["confirmation-rejected/fc-1"])
    assert not report.passes
    assert report_on(calls[1:]).passes


async def test_each_rule_has_its_calls_and_what_people_decided_about_them() -> None:
    """A rule is named after its conditions unless it has a name."""
    large, other = ApprovalRule(FINANCE, over={"amount": 100}), ApprovalRule(FINANCE, name="the rest")
    report = report_on(await try_on(clerk(pay, large, other), "confirmation-edited", "confirmation-expired"))
    assert dict(report.rules["clerk: amount over 100"].decisions) == {"edit": 1}
    assert report.untried == {"its agent no longer has the tool": 1}  # the second recording has another tool
    assert list(report.rules) == ["clerk: amount over 100"]


async def test_a_call_of_which_other_people_are_asked_is_counted() -> None:
    """Anybody could answer the recorded call."""
    report = report_on(await try_on(clerk(pay, ApprovalRule(FINANCE)), "confirmation-approved"))
    (rule,) = report.rules.values()
    assert (rule.calls, rule.new, rule.elsewhere, dict(rule.decisions)) == (1, 0, 1, {"approve": 1})


async def test_a_rule_that_raises_asks_and_is_counted() -> None:
    """As in a worker, a failing function never lets a call run."""

    def is_large(amount: int) -> bool:
        raise ZeroDivisionError(amount)

    report = report_on(await try_on(clerk(pay, ApprovalRule(FINANCE, when=is_large)), "confirmation-approved"))
    (rule,) = report.rules.values()
    assert (rule.calls, dict(rule.failures), report.passes) == (1, {"ZeroDivisionError": 1}, False)


async def test_a_rule_that_does_not_end_is_counted_once_and_not_called_again() -> None:
    """Its thread may still run."""
    release, entered = threading.Event(), list[int]()

    def is_large(amount: int) -> bool:
        entered.append(amount)
        return release.wait()

    registry = clerk(pay, ApprovalRule(FINANCE, when=is_large))
    try:
        calls = await try_on(registry, "confirmation-approved", "confirmation-rejected", limit_s=0.05)
    finally:
        release.set()
    assert [(call.failures, call.untried) for call in calls] == [
        (("TimeoutError",), ""),
        ((), "author code for its tool did not end before"),
    ]
    assert entered == [5]


async def test_a_rule_in_shadow_mode_asks_nobody_and_is_reported() -> None:
    """It is evaluated although another rule comes first."""
    rules = ApprovalRule(FINANCE), ApprovalRule(FINANCE, name="candidate", shadow=True)
    (call,) = await try_on(clerk(pay, *rules), "confirmation-approved")
    assert (call.rule, call.shadows) == ("all calls", ("candidate",))
    (call,) = await try_on(clerk(pay, rules[1]), "confirmation-approved")
    assert (call.asks, call.shadows) == (False, ("candidate",))


async def test_an_agent_or_a_damaged_file_that_is_not_there_fails_the_trial(tmp_path: Path) -> None:
    """Nothing is silently left out."""
    (tmp_path / "broken.json").write_text("{")
    files = list_files([tmp_path, CORPUS / "confirmation-approved.json"])
    broken, log = [found async for found in read_files(files, DataConverter.default, missing)]
    assert isinstance(broken, UnreadableHistory)
    assert broken.reason == "ForeignHistory"
    assert isinstance(log, Log)
    calls = [call async for call in PolicyTrial(Registry()).try_log(log)]
    assert {call.untried for call in calls} == {"the agent is not in these folders"}
    assert not report_on(calls).passes


async def test_the_calls_of_called_agents_in_a_file_are_tried_too() -> None:
    """The file of an invocation contains the histories of the agents that it called."""
    assert {log.invocation_id for log in await read("called-agent") if isinstance(log, Log)} >= {"called-agent"}


def decided(amount: int, decision: str) -> TriedCall:
    """A call about which people decided."""
    return TriedCall(
        id=f"i/{amount}", agent="clerk", tool="pay", args={"amount": amount}, asked=True, asks=True, decision=decision
    )


def test_a_suggestion_has_support_an_interval_and_its_exceptions() -> None:
    """Rejections of large amounts lead to a limit below them. Small evidence leads to nothing."""
    maker = SuggestionMaker()
    calls = [decided(amount, "approve") for amount in range(100)]
    for call in calls[:49]:
        maker.add(call)
    assert maker.suggest() == []
    for call in [*calls[49:], *(decided(amount, "reject") for amount in range(200, 240))]:
        maker.add(call)
    (best,) = maker.suggest()
    assert best.condition.startswith("over={'amount': ")
    assert (best.approved, best.exceptions) == (best.calls, ())
    assert best.interval == interval_of(best.approved, best.calls)
    assert 0.9 < best.interval[0] < 1


@pytest.mark.parametrize("decision", ["open", "remembered", "waive"])
def test_only_decisions_of_people_count_as_evidence(decision: str) -> None:
    """A call that nobody has judged does not support running it."""
    maker = SuggestionMaker()
    for amount in range(200):
        maker.add(replace(decided(amount, decision)))
    assert maker.suggest() == []
