"""A call that is answered over one interface closes in all others, without a reload."""

from benchmarks.closing import WATCHES, open_call, time_closing
from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import payer
from tests.server.web.sites import site
from waystation.extensions import load_interfaces


async def test_an_answered_call_closes_in_every_open_client(serve: Serve) -> None:
    """The inbox's stream, a run of AG-UI, a subscription of A2A and a task of MCP are open in another web server."""
    till, interfaces = Till(), load_interfaces(["a2a", "ag-ui", "mcp"])
    async with (
        serve(payer(till, {"amount": 5})) as env,
        site(env.client, interfaces=interfaces) as first,
        site(env.client, interfaces=interfaces) as second,
        first.program() as answering,
        second.program() as watching,
    ):
        answering.timeout = watching.timeout = 60
        call = await open_call(answering, "payer", "Pay.")
        closed = await time_closing(answering, watching, call)
    assert (closed.keys(), till.paid) == (WATCHES.keys(), [5])
