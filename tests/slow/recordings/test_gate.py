"""The deployment gate in detail, and replays that hang or crash."""

import sys
from pathlib import Path

import pytest
from temporalio.client import (
    Client,
    FetchWorkflowHistoryEventsInput,
    Interceptor,
    OutboundInterceptor,
    WorkflowHistoryEventAsyncIterator,
)

from tests.programs import command
from tests.server.recordings.test_gate import (
    AGENT,
    PAYS,
    TROUBLE,
    agents,
    clerk,
    deployed,
    listed,
    misfit,
    own_server,
    parked,
    talking,
)
from tests.steps import wait_for_calls
from waystation.agents import Agent, SequentialAgent
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.replay import GateReport, gate
from waystation.storage import Blobs
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says

__all__ = ["agents", "own_server"]


async def test_a_tool_of_another_kind_is_a_misfit(own_server: EmbeddedServer, agents: Path) -> None:
    """A tool that has become long-running does not fit a pending call."""
    deployed(agents, AGENT.replace("[FunctionTool(pay, require_confirmation=True)", "[LongRunningFunctionTool(pay)"))
    lacks = await misfit(own_server, agents, PAYS)
    assert (lacks["reason"], lacks["tool"]) == ("other_kind", "pay")


async def test_a_tool_without_the_recorded_arguments_is_a_misfit(own_server: EmbeddedServer, agents: Path) -> None:
    """A renamed parameter does not fit a pending call."""
    deployed(agents, AGENT.replace("amount", "cents"))
    lacks = await misfit(own_server, agents, PAYS)
    assert lacks["reason"] == "arguments_refused"
    assert "'cents' is a required property" in lacks["problem"]


async def test_a_tool_with_other_parameters_than_the_displayed_ones_is_a_misfit(
    own_server: EmbeddedServer, agents: Path
) -> None:
    """Changed parameters do not fit an approval request, even if the arguments are accepted."""
    deployed(agents, AGENT.replace('to: str = "dana"', 'to: str = "kim"'))
    assert (await misfit(own_server, agents, PAYS))["reason"] == "parameters_changed"


async def test_a_tool_that_has_run_is_not_needed(own_server: EmbeddedServer, agents: Path) -> None:
    """A long-running call that waits for its answer does not run again."""
    deployed(agents, AGENT.replace(", LongRunningFunctionTool(ask)", ""))
    asks = calls(("ask", {"what": "now?"}))
    async with AgentEnvironment(clerk(asks, says("Asked.")), server=own_server) as env:
        await parked(env, "one")
        report = await gate(env.client, agents=[agents], processes=1)
    assert (report.passes, dict(report.counts)) == (True, {"replays": 1})


async def test_an_agent_without_a_model_is_a_misfit(own_server: EmbeddedServer, agents: Path) -> None:
    """The answer to a call needs a model, even if it needs no tool."""
    inner = 'from waystation.agents import SequentialAgent\n\ninner = Agent(\n    name="inner"'
    changed = AGENT.replace('root_agent = Agent(\n    name="clerk"', inner)
    deployed(agents, changed + 'root_agent = SequentialAgent(name="clerk", sub_agents=[inner])\n')
    lacks = await misfit(own_server, agents, calls(("ask", {"what": "now?"})), says("Asked."))
    assert lacks == {
        "reason": "other_kind",
        "problem": "Agent 'clerk' is a SequentialAgent now; it has no model to continue with.",
        "agent": "clerk",
    }


@pytest.mark.parametrize(("order", "lacking"), [("first, clerk, last", "last"), ("last, clerk, first", None)])
async def test_a_missing_later_agent_of_a_sequence_is_a_misfit(
    own_server: EmbeddedServer, agents: Path, order: str, lacking: str | None
) -> None:
    """A sequence needs its later agents, and not those that are done."""
    sequence = 'from waystation.agents import SequentialAgent\n\nclerk = Agent(\n    name="clerk"'
    changed = AGENT.replace('root_agent = Agent(\n    name="clerk"', sequence)
    first = 'first = Agent(name="first")\n'
    deployed(agents, changed + first + 'root_agent = SequentialAgent(name="team", sub_agents=[first, clerk])\n')
    known = {
        "clerk": clerk(PAYS),
        **{name: Agent(name=name, model=ScriptedModel(says("Hi."))) for name in ("first", "last")},
    }
    team = SequentialAgent(name="team", sub_agents=[known[name] for name in order.split(", ")])
    async with AgentEnvironment(team, server=own_server) as env:
        await wait_for_calls(await env.client.start("team", "pay dana 200", id="one"), "fc-2-1")
        await listed(env, "one")
        report = await gate(env.client, agents=[agents], processes=1)
    assert [each["agent"] for found in report.findings for each in found.misfits] == ([lacking] if lacking else [])


async def test_a_missing_agent_is_a_misfit(own_server: EmbeddedServer, agents: Path) -> None:
    """A missing agent breaks its invocations, and the sessions whose next message it would answer."""
    deployed(agents, AGENT.replace('name="clerk"', 'name="cashier"'))
    async with AgentEnvironment(clerk(PAYS), server=own_server) as env:
        await listed(env, *await talking(env))
        report = await gate(env.client, agents=[agents], processes=1)
    assert {(found.kind, found.misfits[0]["reason"]) for found in report.findings} == {
        ("AgentInvocation", "agent_gone"),
        ("AgentSession", "agent_gone"),
    }


async def test_agents_that_cannot_be_loaded_do_not_pass(own_server: EmbeddedServer, agents: Path) -> None:
    """The error of an agent is reported, and nothing is replayed."""
    deployed(agents, "import nothing_of_the_kind\n")
    async with AgentEnvironment(clerk(), server=own_server) as env:
        report = await gate(env.client, agents=[agents], processes=1)
    assert (report.passes, report.checked) == (False, 0)
    assert "nothing_of_the_kind" in report.problems[0]


async def test_large_values_without_a_store_have_their_own_verdict(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """A workflow with missing values fails the gate."""
    agent = clerk(calls(("pay", {"amount": 2, "to": "d" * 9_000})))
    async with AgentEnvironment(agent, server=own_server, offload_over=4_000) as env:
        await parked(env, "one")
        elsewhere = AgentClient(env.temporal, blobs=Blobs(tmp_path / "other"))
        report = await gate(elsewhere, processes=1)
    assert (report.passes, dict(report.counts)) == (False, {"lacking": 1})


class Fetching(Interceptor):
    """Counts fetched histories, and reports one invocation as deleted."""

    def __init__(self) -> None:
        self.fetched = 0
        self.held = 0
        self.report = GateReport(tools_checked=False)

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Wrap the client's calls."""
        counts = self

        class Noting(OutboundInterceptor):
            def fetch_workflow_history_events(
                self, input: FetchWorkflowHistoryEventsInput
            ) -> WorkflowHistoryEventAsyncIterator:
                counts.fetched += 1
                counts.held = max(counts.held, counts.fetched - counts.report.checked)
                if input.id == "gone":
                    input.id = "never-started"
                return super().fetch_workflow_history_events(input)

        return Noting(next)


async def test_histories_in_memory_are_bounded(own_server: EmbeddedServer) -> None:
    """At most two histories for each process are in memory, and a deleted workflow does not fail the gate."""
    fetching = Fetching()

    def told(report: GateReport, total: int) -> None:
        del total
        fetching.report = report

    async with AgentEnvironment(clerk(*[PAYS] * 8), server=own_server) as env:
        await parked(env, "gone", *"abcdefg")
        config = env.temporal.config()
        config["interceptors"] = [fetching]
        report = await gate(AgentClient(Client(**config), blobs=env.client.blobs), processes=1, progress=told)
    assert (report.passes, dict(report.counts)) == (True, {"replays": 7, "vanished": 1})
    assert (fetching.fetched, fetching.held <= 3) == (8, True)


async def test_a_sample_of_closed_workflows_is_checked(own_server: EmbeddedServer, agents: Path) -> None:
    """A sample of closed workflows is checked without tools."""
    deployed(agents, AGENT.replace("FunctionTool(pay, require_confirmation=True), ", ""))
    async with AgentEnvironment(clerk(says("1"), says("2"), says("3")), server=own_server) as env:
        for message in ("a", "b", "c"):
            await (await env.client.start("clerk", message)).result()
        await listed(env)
        report = await gate(env.client, agents=[agents], sample=2, processes=1)
    assert (report.passes, report.sampled, dict(report.counts)) == (True, 2, {"replays": 2})


async def test_the_command_reports_in_a_table_and_by_its_exit_code(own_server: EmbeddedServer, agents: Path) -> None:
    """Without agents the output says that tools were not checked."""
    async with AgentEnvironment(clerk(PAYS), server=own_server) as env:
        await parked(env, "one")
        where = ("--address", own_server.address, "--store", str(env.store))
        passed = await command(*where, "replay", "--open", "--processes", "1")
        deployed(agents, AGENT.replace("amount", "cents"))
        failed = await command(*where, "replay", "--open", "--agents", str(agents), "--processes", "1")
        as_json = await command(*where, "replay", "--open", "--agents", str(agents), "--processes", "1", "--json")
    assert passed.code == 0
    assert passed.out == (
        "passes  1 checked: 1 replay\n"
        "Tools were not checked. To check them, pass the agents to deploy with --agents DIR.\n"
    )
    assert failed.code == 1
    assert failed.out.startswith("1 do not match the agents\n")
    assert failed.out.endswith("would break  1 checked: 1 do not match the agents\n")
    [record] = as_json.records
    assert (as_json.code, record["passes"], record["counts"]) == (1, False, {"misfit": 1})
    assert record["findings"][0]["misfits"][0]["reason"] == "arguments_refused"


@pytest.mark.parametrize(
    "arguments",
    [[], ["x", "--open"], ["x", "--sample", "3"], ["x", "--agents", "."], ["x", "--processes", "2"]],
)
async def test_contradicting_options_are_refused(arguments: list[str]) -> None:
    """`--open` and names of invocations exclude each other."""
    assert (await command("replay", *arguments)).code == 2


async def test_a_replay_that_hangs_or_crashes_is_reported_like_any_other(
    own_server: EmbeddedServer, tmp_path: Path
) -> None:
    """The process is replaced, and the other workflows are checked."""
    program = tmp_path / "trouble.py"
    program.write_text(TROUBLE)
    async with AgentEnvironment(clerk(*[PAYS] * 4), server=own_server) as env:
        await parked(env, "one", "hangs", "crashes", "two")
        report = await gate(env.client, processes=1, limit_s=10, program=[sys.executable, str(program)])
    assert (report.passes, dict(report.counts)) == (False, {"replays": 2, "unchecked": 2})
    assert {found.id: found.problem for found in report.findings} == {
        "hangs": "The replay hung for 10 s.",
        "crashes": "The replay crashed: out of memory",
    }
