"""The policies and rules of the how-to page pass `waystation worker check` and do what the page describes."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.server.conftest import Serve
from tests.server.workflows.outside import waiting
from waystation.agents import ApprovalRule
from waystation.agents.registry import Registry, discover
from waystation.apps import App
from waystation.core import ApprovalPolicy
from waystation.testing import ScriptedModel, calls, says

TEXT = (ROOT / "docs" / "how-to" / "require-approval.md").read_text()
SECTIONS = {part.splitlines()[0]: part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """The agents of both sections; there is no mistake in them."""
    folder = tmp_path_factory.mktemp("approvals")
    for number, section in enumerate(("Policies", "Rules")):
        (block,) = re.findall(r"^```python\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)
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


@pytest.mark.parametrize(("section", "kind"), [("Policies", ApprovalPolicy), ("Rules", ApprovalRule)])
def test_every_field_has_a_row(section: str, kind: type) -> None:
    """And no row is about anything else."""
    names = set(ApprovalPolicy.model_fields) if kind is ApprovalPolicy else {field.name for field in fields(kind)}
    rows = re.findall(r"^\| (`.*?) \|", SECTIONS[section], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == names - {"policy"}


async def test_policies(serve: Serve, shown: Registry) -> None:
    """Both kinds of tools wait, each under its own policy."""
    model = ScriptedModel(
        calls(("refund", {"order": "o", "amount": 5}), ("ask_lawyer", {"question": "q"})), says("Done.")
    )
    async with serve(app_of(shown, "support_agent"), model=model) as env:
        invocation = await env.client.start("support_agent", "go")
        refund, asked = await waiting(invocation, "fc-1", "fc-2")
        await invocation.cancel()
    assert (refund.kind, refund.policy and refund.policy.approvers[0]) == ("confirmation", "role:support-lead")
    assert (asked.kind, asked.policy and asked.policy.approvers) == ("long_running", ("role:legal",))
    assert (asked.response_schema or {})["required"] == ["granted"]


async def test_rules(serve: Serve, shown: Registry) -> None:
    """By amount, by predicate, by default; reading needs nobody."""
    paid = [{"payee": "Rose", "amount": 5000}, {"payee": "Rose Ltd", "amount": 5}, {"payee": "Rose", "amount": 5}]
    model = ScriptedModel(calls(*(("pay", args) for args in paid), ("rate", {"currency": "CHF"})), says("Done."))
    async with serve(app_of(shown, "treasury_agent"), model=model) as env:
        invocation = await env.client.start("treasury_agent", "go")
        pending = await waiting(invocation, "fc-1", "fc-2", "fc-3")
        await invocation.cancel()
    assert [call.policy.quorum for call in pending if call.policy] == [2, 2, 1]


def test_links_lead_somewhere() -> None:
    """To files, and to sections of the page itself."""
    for path, section in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", TEXT):
        assert not path or (ROOT / "docs" / "how-to" / Path(path)).exists(), path
        if not path:
            assert section in {name.lower().replace(" ", "-") for name in SECTIONS}, section
