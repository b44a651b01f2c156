"""Agents as AG-UI serves them: threads, interrupts, answers and tools of clients."""

import json
from typing import Any
from uuid import uuid4

from tests.server.conftest import Serve
from tests.server.web.desk import payer
from tests.server.web.sites import Site, site
from tests.server.workflows.outside import Till
from waystation.extensions import load_interfaces


class Client:
    """A client of AG-UI that keeps nothing but its thread."""

    def __init__(self, web: Site, agent: str, thread: str | None = None, **params: str) -> None:
        self.web, self.agent, self.params = web, agent, params
        self.thread = thread or f"agui-{uuid4().hex}"

    async def run(self, *messages: Any, **fields: Any) -> list[dict[str, Any]]:
        """Run the agent, and return all events."""
        sent = [{"id": id, "role": "user", "content": text} for id, text in messages]
        body = {"threadId": self.thread, "runId": uuid4().hex, "messages": sent, **fields}
        async with self.web.program() as http:
            response = await http.post(f"/agui/{self.agent}", json=body, params=self.params, timeout=60)
            assert response.status_code == 200, response.text
        lines = response.text.split("\n")
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def test_approve(serve: Serve) -> None:
    """x."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client, interfaces=load_interfaces(["ag-ui"])) as web:
        client = Client(web, "payer")
        for e in await client.run(("m1", "Pay.")):
            print(json.dumps(e)[:400])
            last = e
        [interrupt] = last["outcome"]["interrupts"]
        for e in await client.run(("m1", "Pay."), resume=[{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True, "editedArgs": {"amount": 7}}}]):
            print(json.dumps(e)[:400])
        assert till.paid == [7]
