"""The policies and rules of the how-to page pass `waystation worker check` and do what the page describes."""

import re
from dataclasses import fields

import pytest

from tests.documents import DOCS, blocks, how_to, section
from tests.server.conftest import Serve
from tests.steps import wait_for_calls
from waystation.agents import ApprovalRule
from waystation.apps import App
from waystation.apps.registry import Registry, discover
from waystation.core.approval import ApprovalPolicy
from waystation.testing import ScriptedModel, calls, says

PAGE = how_to("require-approval")
REFERENCE = (DOCS / "reference" / "approval-policies.md").read_text()


@pytest.fixture(scope="module")
def documented_agents(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Return the agents of both sections, without mistakes."""
    folder = tmp_path_factory.mktemp("approvals")
    for number, heading in enumerate(("## Set a policy", "## Apply rules to an agent or an app")):
        (block,) = blocks(section(PAGE, heading), "python")
        package = folder / f"approvals_{number}"
        package.mkdir()
        (package / "agent.py").write_text(block)
    registry, problems = discover([folder])
    assert [str(problem) for problem in problems] == []
    return registry


def app_of(registry: Registry, name: str) -> App:
    """Return an agent of the page, with the rules of its app."""
    root = registry.roots[name]
    return App(name="shown", root_agent=root.agent, approval_rules=list(root.approval_rules))


@pytest.mark.parametrize(("heading", "kind"), [("## Policies", ApprovalPolicy), ("## Rules", ApprovalRule)])
def test_every_field_has_a_row(heading: str, kind: type) -> None:
    """The reference page lists exactly the existing fields."""
    names = set(ApprovalPolicy.model_fields) if kind is ApprovalPolicy else {field.name for field in fields(kind)}
    rows = re.findall(r"^\| (`.*?) \|", section(REFERENCE, heading), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == names - {"policy"}


async def test_policies(serve: Serve, documented_agents: Registry) -> None:
    """Both kinds of tools wait, each under its own policy."""
    model = ScriptedModel(
        calls(("refund", {"order": "o", "amount": 5}), ("ask_lawyer", {"question": "q"})), says("Done.")
    )
    async with serve(app_of(documented_agents, "support_agent"), model=model) as env:
        invocation = await env.client.start("support_agent", "go")
        refund, question = await wait_for_calls(invocation, "fc-1", "fc-2")
        await invocation.cancel()
    assert (refund.kind, refund.policy and refund.policy.approvers[0]) == ("confirmation", "role:support-lead")
    assert (question.kind, question.policy and question.policy.approvers) == ("long_running", ("role:legal",))
    assert (question.response_schema or {})["required"] == ["granted"]


async def test_rules(serve: Serve, documented_agents: Registry) -> None:
    """Calls wait by amount, by predicate and by default; a read does not."""
    paid = [{"payee": "Rose", "amount": 5000}, {"payee": "Rose Ltd", "amount": 5}, {"payee": "Rose", "amount": 5}]
    model = ScriptedModel(calls(*(("pay", args) for args in paid), ("rate", {"currency": "CHF"})), says("Done."))
    async with serve(app_of(documented_agents, "treasury_agent"), model=model) as env:
        invocation = await env.client.start("treasury_agent", "go")
        pending = await wait_for_calls(invocation, "fc-1", "fc-2", "fc-3")
        await invocation.cancel()
    assert [call.policy.quorum for call in pending if call.policy] == [2, 2, 1]
