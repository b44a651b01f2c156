"""Loops with many rounds."""

import json

from tests.server.conftest import Serve
from tests.server.workflows.test_bounds_of_trees import ROUNDS, always, note
from waystation.agents import Agent, LoopAgent, ParallelAgent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, says


async def test_a_round_of_a_loop_costs_the_same_at_any_length(serve: Serve) -> None:
    """The history grows by the new events, not by the conversation or by the agents that have run."""

    def once_a_round(request: LlmRequest) -> LlmResponse:
        told = any("functionResponse" in part for part in request.contents[-1]["parts"])
        return says("noted") if told else calls(("note", {"text": "x" * 300}))

    pair = [Agent(name=name, model=FunctionModel(once_a_round), tools=[note]) for name in ("left", "right")]
    both = ParallelAgent(name="both", sub_agents=[pair[0], always("beside", says("y" * 300))])
    loop = LoopAgent(name="loop", sub_agents=[both, pair[1]], max_iterations=ROUNDS)
    # Kept in the cache. The history is replayed once when the environment ends.
    async with serve(loop, max_cached_workflows=10) as env:
        invocation = await env.client.start("loop", "go")
        assert (await invocation.result()).status == "completed"
        histories = await invocation.histories()
    rounds = [0]
    replies = 0
    for event in (event for history in histories for event in history.events):
        rounds[-1] += event.ByteSize()
        given = event.activity_task_scheduled_event_attributes
        if given.activity_type.name == "call_model" and json.loads(given.input.payloads[0].data)["agent"] == "right":
            replies += 1
            if replies % 2 == 0:  # its second call in the round
                rounds.append(0)
    assert len(rounds) == ROUNDS + 1
    # The most expensive of six rounds are left out, because one may include continue-as-new.
    early, late = (sum(sorted(window)[:4]) for window in (rounds[2:8], rounds[ROUNDS - 6 : ROUNDS]))
    assert abs(late - early) <= 0.1 * early, rounds
