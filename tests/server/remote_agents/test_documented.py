"""The programs of the how-to page work."""

import runpy
import socket
import sys
from pathlib import Path

from tests.documents import blocks, how_to
from tests.server.conftest import Serve
from tests.server.processes.workers import Process, until
from tests.server.remote_agents.test_remote_agents import answer_of, list_pending
from waystation.embedded import HOST
from waystation.testing import ScriptedModel, calls, says


async def can_connect(port: int) -> bool:
    """Return whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


async def test_the_page_works(serve: Serve, tmp_path: Path) -> None:
    """The remote agent of the page asks the question of the page, and is answered."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    files = dict(
        zip(("remote.py", "agent.py", "login.py"), blocks(how_to("call-remote-agents"), "python"), strict=True)
    )
    for name, code in files.items():
        (tmp_path / name).write_text(code.replace("8201", str(port)))
    assert runpy.run_path(str(tmp_path / "login.py"))["root_agent"].name == "billing_agent"
    desk = runpy.run_path(str(tmp_path / "agent.py"))["root_agent"]
    desk.model = ScriptedModel(calls(("billing_agent", {"request": "Bill order 7."})), says("Done."))
    async with Process(sys.executable, str(tmp_path / "remote.py")), serve(desk) as env:
        await until(lambda: can_connect(port), "the remote agent")
        invocation = await env.client.start("desk_agent", "Bill order 7.")
        [call] = await until(lambda: list_pending(env.client.approvals, invocation), "the question")
        assert call.args["message"] == "The remote agent 'billing_agent' asks: For which month?"
        await env.client.invocation(call.invocation_id).respond({"result": "May"}, call.function_call_id)
        assert await answer_of(invocation) == {"result": "Billed for May."}
