"""Redacting invocations with several runs hides carried state, too."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.server.conftest import Serve
from tests.server.workflows.test_continuing import start_with_cuts
from tests.steps import approve_and_finish, force_continue_as_new, start_and_wait, wait_for_calls
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy
from waystation.history import format_saved_history
from waystation.replay import Recording, redact, replay
from waystation.storage.driver import offloading
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool

RULES = [["secrets"], ["field:to", "field:by", "field:sum"], ["text"]]


async def redacted(invocation: Invocation, rules: list[str], file: Path) -> Recording:
    """Redact an invocation, and read the result from a file."""
    blobs = invocation.client.blobs
    saved = await redact(await invocation.saved(), rules, converter=offloading(blobs, short_forms=True))
    await asyncio.to_thread(file.write_text, json.dumps(format_saved_history(saved)))
    return await Recording.read(file, store=str(file.parent / "nowhere"))


async def test_an_approval_with_a_digest_counts_across_runs(serve: Serve, tmp_path: Path) -> None:
    """Two approvals in two runs still count, and the refused one between them stays refused."""

    def pay(amount: int, to: str) -> dict[str, int]:
        return {"paid": amount}

    policy = ApprovalPolicy(approvers=("ann", "bob"), quorum=2, verified=False, digest=True)
    helper = Agent(name="helper", description="Helps.", model=ScriptedModel(says("Tweety helps.")))
    model = ScriptedModel(
        calls(("helper", {"request": "sing"})), calls(("pay", {"amount": 5, "to": "dana"})), says("Paid dana.")
    )
    agent = Agent(name="payer", model=model, tools=[FunctionTool(pay, approval=policy), AgentTool(helper)])
    async with serve(agent) as env:
        invocation = await start_with_cuts(env, "payer", cut_after=30)
        (call,) = await wait_for_calls(invocation, "fc-2")
        await invocation.answer("approve", "fc-2", signal=True, by="eve", digest=call.digest)
        await invocation.approve(by="ann", digest=call.digest)
        await force_continue_as_new(invocation)
        await wait_for_calls(invocation, "fc-2")
        await approve_and_finish(invocation, by="bob", digest=call.digest)
        before = await invocation.log()
        recordings = [await redacted(invocation, rules, tmp_path / "payer.json") for rules in RULES]
    assert before.state.ignored
    for recording in recordings:
        await replay(recording)
        paid = recording.log.state.calls["fc-2"]
        assert (paid.response, len(paid.approved_by), paid.closed) == ({"paid": 5}, 2, True)
        assert recording.log.state.ignored == before.state.ignored
        assert [each.id for each in recording.below()] == [f"{invocation.id}/fc-1"]


@pytest.mark.slow
async def test_a_fork_that_a_person_answered_replays(serve: Serve, tmp_path: Path) -> None:
    """The log of a fork begins with the run that holds the copied entries."""

    def pay(amount: int, to: str) -> dict[str, int]:
        return {"paid": amount}

    model = ScriptedModel(calls(("pay", {"amount": 5, "to": "dana"})), says("Paid dana."))
    agent = Agent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    async with serve(agent) as env:
        source = await start_and_wait(env.client.start("payer", "Tweety sings"), "fc-1")
        fork = await env.client.forks.start(source.id, 2)
        (call,) = await wait_for_calls(fork, "fc-1")
        await approve_and_finish(fork, "fc-1", digest=call.digest)
        before = await fork.log()
        recordings = [await redacted(fork, rules, tmp_path / "fork.json") for rules in RULES]
        await source.handle.cancel()
    for recording in recordings:
        await replay(recording)
        assert [event.id for event in recording.events] == [event.id for event in before.state.events]
        assert recording.log.state.calls["fc-1"].response == {"paid": 5}
