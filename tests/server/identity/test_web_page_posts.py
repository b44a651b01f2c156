"""Hazard 18: any web page can post to the HTTP API of a server that its visitors can reach."""

import base64
import json

import httpx2
import psutil

from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of, payer, start_pending
from tests.steps import wait_until
from tests.tiers import SERVER_HTTP_ADDRESS, find_cluster
from tests.unit.identity.conftest import Installation
from waystation.core.log import AnswerIgnored
from waystation.embedded import EmbeddedServer


def listening_ports(process: psutil.Process) -> list[int]:
    """Return the ports at which a process and its children accept connections."""
    return sorted(
        found.laddr.port
        for each in (process, *process.children(recursive=True))
        for found in each.net_connections(kind="tcp")
        if found.status == psutil.CONN_LISTEN
    )


async def http_api(server: EmbeddedServer) -> str:
    """Return the address of the server's HTTP API. A development server gives it a random port."""
    if address := find_cluster(SERVER_HTTP_ADDRESS):
        return f"http://{address}/api/v1/namespaces/default"
    async with httpx2.AsyncClient(timeout=5) as client:
        for port in listening_ports(psutil.Process(server.pid)):
            try:
                answer = await client.get(f"http://127.0.0.1:{port}/api/v1/namespaces/default")
            except httpx2.HTTPError:  # another program listens on the port
                continue
            if "namespaceInfo" in answer.text:
                return f"http://127.0.0.1:{port}/api/v1/namespaces/default"
    raise AssertionError("The server has no HTTP API any more: then this hazard is gone.")


async def test_a_web_page_that_posts_an_answer_decides_nothing(
    serve: Serve, open_server: EmbeddedServer, there: Installation
) -> None:
    """The server is configured to accept the request, but the workflow does not count it as an approval."""
    async with serve(payer(), server=open_server, identity=there.worker) as env:
        invocation = await start_pending(env)
        answer = {"function_call_id": "fc-1", "action": "approve", "by": "dana@example.com"}
        encoded = {
            "metadata": {"encoding": base64.b64encode(b"json/plain").decode()},
            "data": base64.b64encode(json.dumps(answer).encode()).decode(),
        }
        async with httpx2.AsyncClient(timeout=5) as browser:
            posted = await browser.post(
                f"{await http_api(env.server)}/workflows/{invocation.id}/signal/answer",
                # Requests that a page may send to another origin without asking first.
                headers={"content-type": "text/plain", "origin": "https://mallory.example"},
                content=json.dumps({"input": {"payloads": [encoded]}}),
            )
        assert posted.status_code == 200

        async def ignored() -> list[AnswerIgnored]:
            return [entry.body for entry in (await invocation.log()).entries if isinstance(entry.body, AnswerIgnored)]

        (seen,) = await wait_until(ignored, "that the answer was ignored")
        assert seen.reason == "NotAllowed"
        assert (await invocation.pending())[0].approved_by == ()
        await client_of(env, there).invocation(invocation.id).reject(token=there.provider.token())
        await invocation.result()
