"""Replies of models with very many calls."""

from tests.server.conftest import Serve
from tests.server.workflows.outside import Till, told
from tests.server.workflows.test_model_replies import payer
from waystation.testing import calls, says


async def test_300_calls_in_one_reply_are_all_carried_out(serve: Serve) -> None:
    """Told in call order."""
    till = Till()
    agent, model = payer(till, calls(*[("pay", {"amount": n}) for n in range(300)]), says("Done."))
    async with serve(agent, max_cached_workflows=10) as env:
        assert (await env.client.run("payer", "pay")).text == "Done."
        assert sorted(till.paid) == list(range(300))
        assert told(model.requests[1]) == [{"paid": n} for n in range(300)]
