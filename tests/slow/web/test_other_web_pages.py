"""Foreign web pages in a browser on the machine of a development server."""

import base64
import json

import psutil
from playwright.async_api import Browser

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.identity.test_web_page_posts import listening_ports
from tests.server.web.desk import begun, payer
from tests.steps import reject_and_finish
from waystation.embedded import EmbeddedServer

POST = "([url, body]) => fetch(url, {method: 'POST', mode: 'no-cors', body}).then(() => 1, () => 0)"
"""Requests that a page may send to another origin without asking first. It cannot read the reply."""
READ = "url => fetch(url).then(reply => reply.text(), () => '')"
"""Paths that a page may read from its own origin, whose name leads to this machine."""
WORKFLOWS = "/api/v1/namespaces/default/workflows"


async def test_a_page_cannot_answer_calls_or_read_histories(serve: Serve, chromium: Browser) -> None:
    """Neither a post without a preflight request, nor a page whose host name leads to this machine, reaches it."""
    async with EmbeddedServer() as server, serve(payer(Till(), {"amount": 5}), server=server) as env:
        invocation, _ = await begun(env.client, "payer")
        answer = json.dumps({"function_call_id": "fc-1", "action": "approve", "by": "dana"}).encode()
        encoded = {"metadata": {"encoding": base64.b64encode(b"json/plain").decode()}}
        body = json.dumps({"input": {"payloads": [{**encoded, "data": base64.b64encode(answer).decode()}]}})
        page = await chromium.new_page()
        await page.route("**/page", lambda route: route.fulfill(body="<h1>Hello</h1>"))
        read, replies = "", 0
        for port in listening_ports(psutil.Process(server.pid)):
            await page.goto(f"http://mallory.example:{port}/page")
            signals = f"http://127.0.0.1:{port}{WORKFLOWS}/{invocation.id}/signal/answer"
            replies += await page.evaluate(POST, [signals, body])
            read += await page.evaluate(READ, WORKFLOWS)
        await page.close()
        assert replies, "no port speaks HTTP: then this test proves nothing"
        assert [call.function_call_id for call in await invocation.pending()] == ["fc-1"]
        assert invocation.id not in read
        await reject_and_finish(invocation)
