"""`waystation policy test`: the policies of a checkout against the invocations of a namespace or saved histories."""

from pathlib import Path
from xml.etree import ElementTree

from tests.programs import command
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from tests.steps import start_and_wait
from waystation.agents import Agent
from waystation.core.actions import Action
from waystation.core.approval import ApprovalPolicy
from waystation.testing import ScriptedModel, calls, says
from waystation.tools import ApprovalRule, FunctionTool

CANDIDATE = '''"""An agent whose policy was changed."""

from waystation import Agent, ApprovalPolicy, ApprovalRule


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


root_agent = Agent(
    name="policy_payer",
    model="gemini-3.5-flash",
    tools=[pay],
    approval_rules=[ApprovalRule(ApprovalPolicy(), over={"amount": 100}, name="large")],
)
'''


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


async def test_a_change_of_a_policy_is_tried_on_what_people_decided(
    serve: Serve, waystation: Command, tmp_path: Path
) -> None:
    """A rejected payment below the new limit fails the trial, live and from a file, and JUnit names it."""
    (tmp_path / "policy_payer").mkdir()
    (tmp_path / "policy_payer" / "agent.py").write_text(CANDIDATE)
    (tmp_path / "policy_payer" / "__init__.py").write_text("from . import agent\n")
    model = ScriptedModel(calls(("pay", {"amount": 50}), ("pay", {"amount": 500})), says("done"))
    shadow = ApprovalRule(ApprovalPolicy(), name="try-all", shadow=True)
    tool = FunctionTool(pay, require_confirmation=True)
    async with serve(Agent(name="policy_payer", model=model, tools=[tool], approval_rules=[shadow])) as env:
        invocation = await start_and_wait(env.client.start("policy_payer", "pay"), "fc-1", "fc-2")
        for call in await invocation.pending():
            action: Action = "reject" if call.args["amount"] == 50 else "approve"
            await invocation.answer(action, call.function_call_id, by="dana")
        await invocation.result()
        options = "--agents", str(tmp_path), "--json", "--junit", str(tmp_path / "junit.xml")
        live = await waystation(env, "policy", "test", *options, "--agent", "policy_payer")
        assert live.err == ""
        (report,) = live.records
        assert (live.code, report["asked"], report["asks"]) == (1, 2, 1)
        assert report["rules"]["policy_payer: large"]["decisions"] == {"approve": 1}
        assert report["let_through"]["links"] == [f"{invocation.id}/fc-1"]
        assert report["shadows"]["policy_payer: try-all"]["calls"] == 2
        suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
        assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
        saved = tmp_path / "saved.json"
        saved.write_text((await waystation(env, "history", invocation.id)).out)
        offline = await command("policy", "test", str(saved), *options)
        assert offline.err == ""
        assert (offline.code, offline.records) == (1, live.records)
        (habit,) = (await waystation(env, "audit", "approvers", "--agent", "policy_payer", "--json")).records
        assert (habit["answers"], habit["approvals"], habit["verified"]) == (2, 1, False)
