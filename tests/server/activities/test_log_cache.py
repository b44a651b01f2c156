"""The log cache rebuilds logs from a real history with as few reads as possible."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from temporalio.client import Client

from tests.server.activities.conftest import Pages
from tests.server.conftest import Serve
from waystation.activities.log_cache import LogCache
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import Answer, Origin
from waystation.core.contract import Position, ToolOutcome
from waystation.core.errors import ForeignHistory
from waystation.core.log import START as START_REF
from waystation.core.log import AnswerCounted, CallReturned, Log, parse_ref, without_verdict
from waystation.core.projection import Scheduled, Sources, Started, catch_up, position_of
from waystation.embedded import EmbeddedServer
from waystation.history import HistoryReader
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, ScriptedModel, calls, responses, says
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


def note(word: str, tool_context: ToolContext) -> dict[str, str]:
    """Note a word."""
    tool_context.state[word] = True
    return {"noted": word}


def ask() -> dict[str, str]:
    """Wait for an answer."""
    return {"status": "asked"}


class Recorded:
    """An invocation and its recorded history."""

    def __init__(self, invocation: Invocation, run_id: str, positions: Sequence[Position]) -> None:
        self.invocation = invocation
        self.run_id = run_id
        self.positions = positions
        """The positions of its activities, oldest first."""

    async def at(self, views: LogCache, position: Position) -> Log:
        """Read the log at a position."""
        return await views.at(self.invocation.id, self.run_id, position)


async def recorded(invocation: Invocation) -> Recorded:
    """Read the history of an invocation."""
    history = await invocation.history()
    facts = list(HistoryReader().read(history.events))
    run_id = history.run_id or (await invocation.handle.describe()).run_id
    return Recorded(invocation, run_id, [position_of(fact) for fact in facts if isinstance(fact, Scheduled)])


async def waits(env: AgentEnvironment) -> Invocation:
    """Start an invocation of the agent below and return it when it waits."""
    invocation = await env.client.start("asker", "go")
    async with asyncio.timeout(20):
        async for event in invocation.events():
            if event.content and event.content["parts"] == [{"text": "asked"}]:
                break
    return invocation


@pytest.fixture
async def env(serve: Serve) -> AsyncIterator[AgentEnvironment]:
    """Serve an agent that makes two calls at a time, then one that waits, and reports it: seven activities."""

    def act(request: LlmRequest) -> LlmResponse:
        answers = dict(responses(request))
        if not answers:
            return calls(("note", {"word": "a"}), ("note", {"word": "b"}))
        if "ask" not in answers:
            return calls(("ask", {}))
        return says("asked" if answers["ask"] == {"status": "asked"} else "done")

    agent = Agent(name="asker", model=FunctionModel(act), tools=[note, LongRunningFunctionTool(ask)])
    async with serve(agent, verify=False) as env:
        yield env


async def test_an_unknown_run_is_read_once_for_all_of_its_positions(
    env: AgentEnvironment, temporal: Client, pages: Pages
) -> None:
    """A process that never saw the run reads its history once and then knows every earlier position."""
    views, run = LogCache(temporal), await recorded(await waits(env))
    log = await run.at(views, run.positions[-1])
    refs = [str(entry.ref).partition(".")[0] for entry in log.entries]
    assert refs == ["start", ">1", "m1", *sorted(("fc-1", "fc-2"), key=refs.index), ">2", "m2", "fc-3"]
    assert log.state.session.values == {"a": True, "b": True}
    for position in run.positions:
        assert (await run.at(views, position)).entries[: position.at + len(position.new)]
    assert (views.reads, pages.cold, pages.tail) == (1, 1, 0)


async def test_new_entries_are_read_from_the_end(env: AgentEnvironment, temporal: Client, pages: Pages) -> None:
    """After an answer only the tail of the history is read, and the log equals that of a fresh reader."""
    views, run = LogCache(temporal), await recorded(await waits(env))
    await run.at(views, run.positions[-1])
    await run.invocation.respond({"said": "yes"})
    await run.invocation.result()
    later = await recorded(run.invocation)
    followed = await later.at(views, later.positions[-1])
    fresh = await later.at(LogCache(env.temporal), later.positions[-1])
    assert [(each.ref, each.body) for each in followed.entries] == [(each.ref, each.body) for each in fresh.entries]
    assert str(without_verdict(followed.entries[-1].ref)) == "u1"
    assert (views.reads, pages.cold, pages.tail) == (2, 1, 1)


@pytest.mark.slow
async def test_a_long_tail_is_read_in_several_pages(serve: Serve, temporal: Client, pages: Pages) -> None:
    """Every event of a long tail is applied once and in order."""
    words = [f"w{number}" for number in range(10)]
    model = ScriptedModel(calls(("ask", {})), says("asked"), *(calls(("note", {"word": word})) for word in words))
    agent = Agent(name="asker", model=model, tools=[note, LongRunningFunctionTool(ask)])
    async with serve(agent, verify=False) as env:
        views, run = LogCache(temporal), await recorded(await waits(env))
        await run.at(views, run.positions[-1])
        await run.invocation.respond({"said": "yes"})
        await run.invocation.result()
        later = await recorded(run.invocation)
        log = await later.at(views, later.positions[-1])
        assert list(log.state.session.values) == words
        assert (views.reads, pages.cold) == (2, 1)
        assert pages.tail > 1


@pytest.fixture
def in_workers(monkeypatch: pytest.MonkeyPatch) -> list[LogCache]:
    """Return the log caches of the workers that this test starts."""
    made: list[LogCache] = []

    def remembered(client: Client, *args: Any, **options: Any) -> LogCache:
        made.append(LogCache(client, *args, **options))
        return made[-1]

    monkeypatch.setattr("waystation.worker.plugin.LogCache", remembered)
    return made


async def test_a_process_that_produced_all_results_reads_nothing(serve: Serve, in_workers: list[LogCache]) -> None:
    """A single worker does not read back its own results, however many calls an invocation makes."""
    # One at a time: of two at once the second may be taken first, and then reads what only the first one names.
    turns = [calls(("note", {"word": f"{turn}"})) for turn in range(10)]
    async with serve(Agent(name="busy", model=ScriptedModel(*turns, says("done")), tools=[note])) as env:
        result = await env.client.run("busy", "go")
    assert len(result.state_delta) == 10
    assert [views.reads for views in in_workers] == [0]


@pytest.mark.parametrize("signal", [False, True], ids=["update", "signal"])
async def test_an_answer_is_not_read_back(serve: Serve, in_workers: list[LogCache], signal: bool) -> None:
    """The worker that received an answer does not read it from the history, and does not keep it twice."""
    model = ScriptedModel(calls(("ask", {})), says("asked"), says("done"))
    async with serve(Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)])) as env:
        invocation = await waits(env)
        await invocation.respond({"said": "yes"}, signal=signal)
        assert (await invocation.result()).text == "done"
    [views] = in_workers
    assert views.reads == 0
    [run] = views._runs.values()
    assert [str(ref).partition(".")[0] for ref in run.sources._bodies] == ["m3"]


async def test_simultaneous_reads_of_one_run_share_one_request(
    env: AgentEnvironment, temporal: Client, pages: Pages
) -> None:
    """Parallel tools of a process without a cached log read the history once."""
    views, run = LogCache(temporal), await recorded(await waits(env))
    logs = await asyncio.gather(*(run.at(views, position) for position in (*run.positions, *run.positions)))
    assert len({id(log) for log in logs}) == 1
    assert (views.reads, pages.cold, pages.tail) == (1, 1, 0)


async def test_reads_of_several_runs_do_not_mix(env: AgentEnvironment, temporal: Client) -> None:
    """Every run has its own log."""
    views = LogCache(temporal)
    runs = [await recorded(await waits(env)) for _ in range(3)]
    logs = await asyncio.gather(*(run.at(views, run.positions[-1]) for run in runs))
    assert [log.invocation_id for log in logs] == [run.invocation.id for run in runs]
    assert [log.state.session.values for log in logs] == [{"a": True, "b": True}] * 3
    assert views.reads == 3


async def test_an_unrecorded_result_of_an_attempt_is_never_used(env: AgentEnvironment, temporal: Client) -> None:
    """If the server discarded the attempt that produced a cached result, the recorded result is used."""
    run = await recorded(await waits(env))
    bodies = {str(entry.ref): entry.body for entry in (await run.at(LogCache(temporal), run.positions[-1])).entries}
    views = LogCache(temporal)
    origin = Origin("AgentInvocation", run.run_id)
    views.expect(run.invocation.id, run.run_id, origin, START_REF, bodies["start"], 100)
    for ref, body in bodies.items():
        if ref.startswith(("m1.", "fc-2.")):
            views.put(run.run_id, parse_ref(ref), body, 100)
    stale = ToolOutcome(function_call_id="fc-1", response={"noted": "stale"}, mark="aaaaaa")
    views.put(run.run_id, parse_ref("fc-1.aaaaaa"), CallReturned(stale), 100)
    model_1, tool_1, tool_2, model_2, *_ = run.positions
    for position in (model_1, tool_1, tool_2):
        assert "fc-1" not in {str(entry.ref).partition(".")[0] for entry in (await run.at(views, position)).entries}
    assert views.reads == 0
    assert (await run.at(views, model_2)).state.calls["fc-1"].response == {"noted": "a"}
    assert views.reads == 1


async def test_an_answer_whose_workflow_task_was_lost_is_never_used(env: AgentEnvironment, temporal: Client) -> None:
    """An update may get the number of another one that arrived in a lost task. The recorded one is used."""
    views, run = LogCache(temporal), await recorded(await waits(env))
    await run.at(views, run.positions[-1])
    lost = Answer(function_call_id="fc-3", action="respond", response={"said": "no"})
    views.put(run.run_id, parse_ref("u1.aaaaaaaaaaaaaaaa"), AnswerCounted("fc-3", lost), 100)
    await run.invocation.respond({"said": "yes"})
    await run.invocation.result()
    later = await recorded(run.invocation)
    assert (await later.at(views, later.positions[-1])).state.calls["fc-3"].response == {"said": "yes"}
    assert views.reads == 2


@pytest.mark.slow
async def test_the_least_recently_used_run_is_evicted_first(env: AgentEnvironment, temporal: Client) -> None:
    """With room for two runs, a third one evicts the least recently used."""
    views = LogCache(temporal, max_runs=2)
    one, two, three = [await recorded(await waits(env)) for _ in range(3)]
    for run in (one, two, one, three):
        await run.at(views, run.positions[-1])
    assert views.reads == 3
    for run in (one, three):
        await run.at(views, run.positions[-1])
    assert views.reads == 3
    await two.at(views, two.positions[-1])
    assert views.reads == 4


@pytest.mark.slow
async def test_content_is_bounded(env: AgentEnvironment, temporal: Client) -> None:
    """Runs are evicted until the rest fits; the current one always stays."""
    views = LogCache(temporal, max_bytes=1)
    one, two = [await recorded(await waits(env)) for _ in range(2)]
    for run in (one, one, two, two, one):
        assert (await run.at(views, run.positions[-1])).state.session.values == {"a": True, "b": True}
    assert views.reads == 3


@pytest.mark.slow
async def test_local_results_count_as_content(env: AgentEnvironment, temporal: Client) -> None:
    """A large result evicts other runs at the next read."""
    views = LogCache(temporal, max_bytes=1_000_000)
    one, two = [await recorded(await waits(env)) for _ in range(2)]
    for run in (one, two):
        await run.at(views, run.positions[-1])
    views.put(two.run_id, parse_ref("fc-9.bbbbbb"), CallReturned(ToolOutcome(function_call_id="fc-9")), 2_000_000)
    await two.at(views, two.positions[-1])
    assert views.reads == 2
    await one.at(views, one.positions[-1])
    assert views.reads == 3


@pytest.mark.slow
async def test_a_run_that_is_evicted_during_a_read_leaves_no_trace(env: AgentEnvironment, temporal: Client) -> None:
    """With room for one run and several simultaneous reads, the cache holds one run in the end."""
    views = LogCache(temporal, max_runs=1)
    runs = [await recorded(await waits(env)) for _ in range(3)]
    logs = await asyncio.gather(*(run.at(views, run.positions[-1]) for run in runs * 4))
    assert [log.invocation_id for log in logs] == [run.invocation.id for run in runs * 4]
    assert len(views._runs) == 1


async def test_a_result_for_an_unknown_run_is_not_kept(env: AgentEnvironment, temporal: Client) -> None:
    """A run that was evicted while its tool ran is read again when needed."""
    views, run = LogCache(temporal), await recorded(await waits(env))
    views.put(run.run_id, parse_ref("m1.cccccc"), CallReturned(ToolOutcome(function_call_id="fc-1")), 100)
    assert (await run.at(views, run.positions[-1])).state.session.values == {"a": True, "b": True}
    assert views.reads == 1


@pytest.mark.parametrize("ref", ["m1.absent", "u7", "m1"], ids=["no such attempt", "no such update", "no attempt"])
async def test_a_reference_to_nothing_is_refused_and_forgotten(
    env: AgentEnvironment, temporal: Client, ref: str
) -> None:
    """A position with an unknown entry is refused, and the next reader gets a whole log."""
    views, run = LogCache(temporal), await recorded(await waits(env))
    last = run.positions[-1]
    wrong = Position(at=last.at + len(last.new), new=(ref,))
    refusals = await asyncio.gather(*(run.at(views, wrong) for _ in range(3)), return_exceptions=True)
    assert [type(refusal) for refusal in refusals] == [ForeignHistory] * 3
    assert "lacks entries" in str(refusals[0])
    assert len(views._runs) == 0
    assert (await run.at(views, last)).state.session.values == {"a": True, "b": True}


async def test_a_position_beyond_the_history_is_refused(env: AgentEnvironment, temporal: Client) -> None:
    """A position that starts after the end of the log cannot be reached."""
    views, run = LogCache(temporal), await recorded(await waits(env))
    with pytest.raises(ForeignHistory):
        await run.at(views, Position(at=99, new=("m9.dddddd",)))


async def test_entries_that_no_command_names_are_still_found(env: AgentEnvironment, temporal: Client) -> None:
    """The whole history is read when a command assumes entries that no command names."""
    views, run = LogCache(temporal), await recorded(await waits(env))
    last = run.positions[-1]
    beyond = Position(at=last.at + len(last.new) + 2, new=())
    log = await run.at(views, beyond)
    assert [str(entry.ref).partition(".")[0] for entry in log.entries][-3:] == ["fc-3", ">3", "m3"]
    await run.invocation.respond({"said": "yes"})
    await run.invocation.result()
    later = await recorded(run.invocation)
    assert str(without_verdict((await later.at(views, later.positions[-1])).entries[-1].ref)) == "u1"


async def test_a_foreign_history_is_refused_every_time(server: EmbeddedServer, temporal: Client) -> None:
    """A workflow of another type has no log, however often it is requested."""
    handle = await temporal.start_workflow("Elsewhere", {"agent": "x"}, id="foreign", task_queue="nobody")
    views = LogCache(temporal)
    for _ in range(2):
        with pytest.raises(ForeignHistory, match="'Elsewhere'"):
            await views.at("foreign", handle.result_run_id or "", Position(at=0, new=("start",)))
    await handle.terminate()


START = b'{"agent": "asker", "message": "hello"}'


@pytest.mark.parametrize(
    ("position", "reached", "refs"),
    [
        (Position(at=0, new=("start",)), True, ["start"]),
        (Position(at=0, new=("start", ">1")), True, ["start", ">1"]),
        (Position(at=1, new=(">1",)), False, []),
        (Position(at=0, new=("start", "m1.eeeeee", ">2")), False, ["start"]),
        (Position(at=0, new=()), True, []),
    ],
    ids=["start", "two", "gap", "missing", "nothing"],
)
def test_a_log_catches_up_as_far_as_it_can(position: Position, reached: bool, refs: list[str]) -> None:
    """Entries are appended in the order of the position, up to the first one with an unknown source."""
    log, sources = Log("i"), Sources()
    sources.learn(Started([START]))
    assert catch_up(log, position, sources, 1.0) is reached
    assert [str(entry.ref) for entry in log.entries] == refs


def test_a_log_beyond_the_position_is_unchanged() -> None:
    """A position behind the log changes nothing, and an overlapping one adds only new entries."""
    log, sources = Log("i"), Sources()
    sources.learn(Started([START]))
    assert catch_up(log, Position(at=0, new=("start", ">1")), sources, 1.0)
    assert catch_up(log, Position(at=0, new=("start",)), sources, 2.0)
    assert catch_up(log, Position(at=0, new=("start", ">1", ">2")), sources, 3.0) is True
    assert [(str(entry.ref), entry.time) for entry in log.entries] == [("start", 1.0), (">1", 1.0), (">2", 3.0)]
