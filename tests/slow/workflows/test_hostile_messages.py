"""Messages over the limits of the server."""

import pytest
from temporalio.service import RPCError

from tests.server.conftest import Serve
from tests.server.workflows.outside import (
    Till,
)
from tests.server.workflows.test_hostile_messages import HUGE, payer, start_waiting, stock


async def test_an_update_over_the_servers_limit_delays_but_does_not_stick_the_invocation(serve: Serve) -> None:
    """The server takes it and no worker can refuse it, because refusals repeat it; after 20 s the server lets go."""
    till = Till()
    async with serve(payer(till), tasks_may_fail=True) as env:
        invocation = await start_waiting(env.client)
        with pytest.raises(RPCError, match="Workflow Task in failed state"):
            await stock(env, invocation).execute_update("submit_answer", HUGE)
        await invocation.approve("fc-1", signal=True)
        assert (await invocation.result()).text == "Paid."
        assert till.paid == [5]
