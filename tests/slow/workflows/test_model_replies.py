"""Replies of models with very many calls."""

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.workflows.test_model_replies import payer
from tests.steps import tool_responses
from waystation.activities.model_call.annotate import MAX_CALLS
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says


async def test_all_300_calls_of_one_reply_run(serve: Serve) -> None:
    """The model receives the responses in call order."""
    till = Till()
    agent, model = payer(till, calls(*[("pay", {"amount": n}) for n in range(300)]), says("Done."))
    async with serve(agent, max_cached_workflows=10) as env:
        assert (await env.client.run("payer", "pay")).text == "Done."
        assert sorted(till.paid) == list(range(300))
        assert tool_responses(model.requests[1]) == [{"paid": n} for n in range(300)]


async def test_calls_that_would_exceed_the_servers_limit_on_activities_are_refused(serve: Serve) -> None:
    """The server fails every workflow task that would put more than 2,000 activities of an invocation in flight."""
    model = ScriptedModel(calls(*[("missing", {})] * (MAX_CALLS + 1)), says("Done."))
    async with serve(Agent(name="caller", model=model)) as env:
        assert (await env.client.run("caller", "call")).text == "Done."
        *_, last, refused = tool_responses(model.requests[1])
        assert ("error_type" in last, refused["error_type"]) == (False, "TooManyCalls")
