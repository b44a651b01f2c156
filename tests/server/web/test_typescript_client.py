"""The TypeScript client of the JSON API, in `clients/typescript/api`."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from docs.typescript_client import PACKAGE, TYPES, describe_origin
from tests.agents import Till
from tests.documents import blocks
from tests.server.conftest import Serve
from tests.server.web.desk import payer
from tests.server.web.sites import TOKEN, site

NODE = Path(sys.executable).with_name("node")
[EXAMPLE] = blocks((PACKAGE / "README.md").read_text(), "ts")
REFUSED = """
import { Problem, Waystation, parseEvents } from './index.ts';

const url = process.env.URL!;
const token = () => process.env.TOKEN!;
const waystation = new Waystation({ url, token });
const names: string[] = [];
const refused = async (request: Promise<unknown>) => {
  const error = await request.then(() => undefined, (error) => error);
  names.push(error instanceof Problem ? `${error.status} ${error.name}` : String(error));
};
await refused(waystation.get('/api/v1/invocations/{id}', { path: { id: 'no/such' } }));
await refused(waystation.get('/api/v1/calls', { query: { show: 'yours' as 'mine' } }));
await refused(new Waystation({ url, token: () => 'wrong' }).get('/api/v1/calls', {}));

function cutFirst(seen: (string | null)[]): typeof fetch {
  return async (input, init) => {
    seen.push(new Headers(init?.headers).get('Last-Event-ID'));
    const response = await fetch(input, init);
    if (seen.length > 1) return response;
    const events = parseEvents(response.body!);
    const first = (await events.next()).value;
    await events.return(undefined);
    const data = JSON.stringify(first.data);
    const lines = [`id: ${first.id}`, `event: ${first.event}`, `data: ${data}`, '', 'data: {"cut'];
    const text = new TextEncoder().encode(lines.join('\\r\\n'));
    return new Response(new ReadableStream({ start: (to) => { to.enqueue(text); to.close(); } }));
  };
}

// The connection of each request breaks: a response is lost, and a stream ends after its first event.
let sent = 0;
const start = new Waystation({ url, token, fetch: async (...request) => {
  const response = await fetch(...request);
  if (++sent === 1) throw new TypeError('fetch failed');
  return response;
} });
const body = { agent: 'payer', message: 'Pay.' };
const { invocation_id: id, existed } = await start.post('/api/v1/invocations', { body, key: 'k' });
const { pending } = await waystation.get('/api/v1/invocations/{id}', { path: { id }, query: { wait_s: 50 } });
const call = pending[0]!;
const waits: boolean[] = [];
const connections: (string | null)[] = [];
const watching = new Waystation({ url, token, fetch: cutFirst(connections) });
for await (const calls of watching.followCalls({ query: { agent: 'payer' } })) {
  waits.push(calls.some((each) => each.id === call));
  if (!waits.at(-1)) break;
  if (waits.length === 1) {
    await waystation.post('/api/v1/calls/{id}/answers', { path: { id: call }, body: { action: 'approve' } });
  }
}
await waystation.get('/api/v1/invocations/{id}', { path: { id }, query: { wait_s: 50 } });
const resumed: (string | null)[] = [];
const cut = new Waystation({ url, token, fetch: cutFirst(resumed) });
const ids: string[] = [];
for await (const { id: each } of cut.stream('/api/v1/invocations/{id}/events/stream', { path: { id } })) ids.push(each);
const report = await (await waystation.request('get', '/api/v1/invocations/{id}/report', { path: { id } })).text();
const page = report.includes('</html>');
console.log(JSON.stringify({ names, sent, existed, resumed, waits, connections, ids, report: page }));
"""


async def run(folder: Path, program: str, **environment: str) -> str:
    """Run a program beside the sources of the client, and return what it prints."""
    for file in (PACKAGE / "src").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "package.json").write_text('{"type": "module"}')
    file = folder / "program.ts"
    file.write_text(program)
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(NODE, file, env=os.environ | environment, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


def test_the_types_are_those_of_the_document() -> None:
    """The types are up to date; run `python -m docs.typescript_client` after changing a route."""
    assert TYPES.read_text().startswith(describe_origin())


async def test_the_documented_program_starts_approves_and_follows(serve: Serve, tmp_path: Path) -> None:
    """The example of the README works."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web:
        program = EXAMPLE.replace("@waystation/client", "./index.ts").replace("http://127.0.0.1:8288", web.url)
        program = program.replace("order-42", uuid4().hex)  # other pages use this key, too
        lines = (await run(tmp_path, program, WAYSTATION_WEB_TOKEN=TOKEN)).splitlines()
    assert (lines[-1].split()[0], till.paid) == ("end", [5])


async def test_the_client_repeats_what_is_safe_and_names_errors(serve: Serve, tmp_path: Path) -> None:
    """A lost response with a key and a stream that breaks are repeated, each without a second effect or a gap.

    A call that is answered while the stream of calls is broken is missing in the list afterward.
    """
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web:
        result = json.loads(await run(tmp_path, REFUSED, URL=web.url, TOKEN=TOKEN))
    assert result.pop("names") == ["404 UnknownInvocation", "400 InvalidRequest", "401 NotLoggedIn"]
    ids = result.pop("ids")
    # The last event, `end`, has no ID of its own.
    assert list(dict.fromkeys(ids)) == [str(number) for number in range(len(set(ids)))]
    assert (result.pop("waits")[0], result.pop("connections")) == (True, [None, None])
    assert result == {"sent": 2, "existed": True, "resumed": [None, "0"], "report": True}
    assert till.paid == [5]
