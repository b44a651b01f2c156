"""One matrix over all interfaces: each person gets the same verdict everywhere on starts, reads, answers and ends."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.interfaces.drivers import INTERFACES, Interface, Reply, Shown, answer_json, cancel_json, show
from tests.server.web.sites import site
from tests.unit.identity.conftest import Installation, installed
from tests.unit.identity.test_bearer import RESOURCE, write
from waystation.agents import Agent
from waystation.approvers import Gatekeeper
from waystation.approvers.audit import gather_invocation
from waystation.core.approval import ApprovalPolicy
from waystation.extensions import load_interfaces
from waystation.testing import FunctionModel, calls, responses
from waystation.tools.function_tool import FunctionTool

ACCEPTED, STRANGER, UNKNOWN = "accepted", "not logged in", "does not exist"
IN_INBOX = r"Answer the call at /approvals/"
"""The refusal of an interface whose answers name no digest, after the arguments have changed."""
"""Verdicts. Every other one is a pattern of the text with which a request is refused."""
NO_AUTHOR, NO_APPROVER = r"needs the role 'author'", r"does not name you"
VERBS = ("start", "read", "answer", "cancel")
TABLES = """[oidc.grant]
author = ["role:authors"]
viewer = ["role:viewers", "robot"]
approver = ["robot"]
[envelope]
public_key = "envelope-public.json"
"""
APPROVE = {"action": "approve"}


@dataclass(frozen=True)
class Situation:
    """A row of the matrix: a person, the call of a requester, and the verdict on each request."""

    name: str
    person: str
    verdicts: Mapping[str, str]
    """The verdict by verb. In a personal interface, the calls of others do not exist in any case."""
    agent: str = "payer"
    answer: Mapping[str, Any] = field(default_factory=lambda: APPROVE)
    digest: str = ""
    """The digest that the person has seen; empty for the current one."""
    needs_digest: bool = False
    """Whether it exists only in interfaces whose answers repeat the digest."""
    in_own_place: bool = False
    """Whether the person names the call in an invocation, task or thread of their own."""

    def expects(self, interface: Interface, verb: str) -> str:
        """Return the verdict that an interface has to give."""
        if self.digest == OLD and not interface.has_digests:
            return IN_INBOX
        verdict = self.verdicts[verb]
        is_other = self.person != "ann" and verdict != STRANGER and verb != "start"
        return UNKNOWN if is_other and interface.is_personal else verdict


EDIT = {"action": "edit", "args": {"amount": 4}}
WRONG, OLD = "0" * 64, "the digest of the first arguments"
REFUSED = (
    Situation("no token", "", dict.fromkeys(VERBS, STRANGER)),
    Situation("a token for another server", "elsewhere", dict.fromkeys(VERBS, STRANGER)),
    Situation("a forged token", "forged", dict.fromkeys(VERBS, STRANGER)),
    Situation("another person who has the ID", "bob", dict.fromkeys(VERBS[1:], UNKNOWN)),
    Situation("another person, in a place of their own", "bob", {"answer": UNKNOWN}, in_own_place=True),
    Situation("the same subject in another tenant", "namesake", dict.fromkeys(VERBS[1:], UNKNOWN)),
    Situation("an approver of another tenant", "mallory", dict.fromkeys(VERBS[1:], UNKNOWN)),
    Situation("a viewer", "vera", {"start": NO_AUTHOR, "read": ACCEPTED, "answer": NO_APPROVER, "cancel": NO_AUTHOR}),
    Situation(
        "a machine", "robot", {"start": NO_AUTHOR, "read": ACCEPTED, "answer": r"is a machine", "cancel": NO_AUTHOR}
    ),
    Situation("the requester under four eyes", "ann", {"answer": r"requested"}, agent="eyes"),
    Situation(
        "a digest of other arguments", "ann", {"answer": r"different arguments"}, digest=WRONG, needs_digest=True
    ),
)
"""Requests that change nothing, so that one call serves all of them."""
COUNTED = (
    Situation("an approver edits", "erin", {"answer": ACCEPTED}, answer=EDIT),
    Situation("the arguments have changed since", "ann", {"answer": r"different arguments"}, digest=OLD),
    Situation("an approver who has seen the change", "ann", {"answer": ACCEPTED}, needs_digest=True),
    Situation("an answered call again", "ann", {"answer": r"already|\"type\": \"CUSTOM\""}),
)
"""Answers to a call one after the other, until it is answered."""


@pytest.fixture
def openid(own_openid: FakeOpenId) -> FakeOpenId:
    """Return a provider whose tokens are for this server."""
    own_openid.audience = RESOURCE
    return own_openid


@pytest.fixture
def there(tmp_path: Path, openid: FakeOpenId) -> Installation:
    """Return an installation whose workers and web server accept access tokens, with tenants."""
    return installed(tmp_path / "identity", openid, {"audience": RESOURCE, "tenant_claim": "org"})


def make_agents(till: Till) -> list[Agent]:
    """Return agents that pay once in each invocation: one asks two people, the other never its requester."""

    def agent(name: str, policy: ApprovalPolicy) -> Agent:
        model = FunctionModel(lambda request: "Done." if responses(request) else calls(("pay", {"amount": 5})))
        return Agent(name=name, model=model, tools=[FunctionTool(till.pay, approval=policy)])

    approvers = ("role:finance", "ann")
    two, eyes = ApprovalPolicy(approvers=approvers, quorum=2), ApprovalPolicy(approvers=approvers, not_requester=True)
    return [agent("payer", two), agent("eyes", eyes)]


def make_tokens(openid: FakeOpenId) -> dict[str, str]:
    """Return the tokens of all people, by their name in the matrix."""
    token = openid.token
    stranger = FakeOpenId(audience=RESOURCE, issuer=openid.url)
    return {
        "ann": token("ann", roles=["authors"], org="acme"),
        "bob": token("bob", roles=["authors"], org="acme"),
        "namesake": token("ann", roles=["authors"], org="globex"),
        "mallory": token("mallory", roles=["finance", "viewers", "authors"], org="globex"),
        "vera": token("vera", roles=["viewers"], org="acme"),
        "erin": token("erin", roles=["finance", "authors"], org="acme"),
        "robot": token("robot", roles=["finance"], org="acme", azp="robot"),
        "elsewhere": token("ann", roles=["authors"], org="acme", aud="https://elsewhere.example.com"),
        "forged": stranger.token("ann", roles=["authors"], org="acme"),
    }


class People:
    """HTTP clients of the people."""

    def __init__(self, url: str, tokens: Mapping[str, str], stack: contextlib.AsyncExitStack) -> None:
        self._url, self._tokens, self._stack, self._made = url, tokens, stack, dict[str, httpx.AsyncClient]()

    async def find(self, name: str) -> httpx.AsyncClient:
        """Return the client of a person."""
        if name not in self._made:
            headers = {"Authorization": f"Bearer {self._tokens[name]}"} if name else {}
            http = httpx.AsyncClient(base_url=self._url, headers=headers, timeout=60)
            self._made[name] = await self._stack.enter_async_context(http)
        return self._made[name]


@contextlib.asynccontextmanager
async def people_at(url: str, openid: FakeOpenId) -> AsyncIterator[People]:
    """Connect the people to a server."""
    async with contextlib.AsyncExitStack() as stack:
        yield People(url, make_tokens(openid), stack)


async def send(interface: Interface, http: httpx.AsyncClient, verb: str, shown: Shown, row: Situation) -> Reply:
    """Send a request, and return the reply without the IDs of the call."""
    if verb == "start":
        reply = (await interface.start(http, shown.agent))[0]
    elif verb == "answer":
        reply = await interface.answer(http, shown, row.answer)
    else:
        reply = await getattr(interface, verb)(http, shown)
    return reply.without(shown.place, shown.invocation, shown.call)


async def judge(interface: Interface, people: People, shown: Shown, row: Situation, verb: str) -> str:
    """Return the verdict on a request: the expected one, or the reply."""
    http, expected = await people.find(row.person), row.expects(interface, verb)
    reply = await send(interface, http, verb, shown, row)
    if expected == ACCEPTED:
        return ACCEPTED if reply.accepted else reply.text
    if expected == STRANGER:
        return STRANGER if reply.status == 401 else reply.text
    if expected == UNKNOWN:
        unknown = replace(shown.unknown, place=shown.place) if row.in_own_place else shown.unknown
        same = await send(interface, http, verb, unknown, row)
        return UNKNOWN if same == reply else f"{reply} instead of {same}"
    return expected if not reply.accepted and re.search(expected, reply.text) else reply.text


async def begin(interface: Interface, http: httpx.AsyncClient, agent: str) -> Shown:
    """Start an agent, and return its call."""
    reply, *place = await interface.start(http, agent)
    assert reply.accepted, reply
    return await show(http, agent, *place)


async def walk(name: str, people: People) -> tuple[dict[str, str], str]:
    """Go through all situations in an interface. Return the replies that are wrong, and the ID of the invocation."""
    interface, wrong = INTERFACES[name], dict[str, str]()
    ann, bob, erin = [await people.find(each) for each in ("ann", "bob", "erin")]
    shown = {agent: await begin(interface, ann, agent) for agent in ("payer", "eyes")}
    own, old = await begin(interface, bob, "payer"), shown["payer"].digest
    for row in (*REFUSED, *COUNTED):
        seen = shown[row.agent]
        seen = replace(seen, digest=old if row.digest == OLD else row.digest or seen.digest)
        seen = replace(seen, place=own.place) if row.in_own_place else seen
        for verb in row.verdicts if interface.has_digests or not row.needs_digest else ():
            if getattr(interface, verb) is not None:
                verdict = await judge(interface, people, seen, row, verb)
                if verdict != row.expects(interface, verb):
                    wrong[f"{name}: {row.name}: {verb}"] = verdict
        if row.answer == EDIT:
            if interface.is_personal:
                assert (await answer_json(erin, seen, EDIT)).accepted
            shown["payer"] = await show(ann, "payer", seen.place, seen.invocation)
        if row.digest == OLD and not interface.has_digests:
            assert (await answer_json(ann, shown["payer"], APPROVE)).accepted
    for http, mine in ((ann, shown["eyes"]), (bob, own)):
        assert (await cancel_json(http, replace(mine, place=mine.invocation))).accepted
    return wrong, shown["payer"].invocation


async def test_every_interface_gives_the_same_verdicts(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """The answer that counts is in the audit, with its interface, its person and the issuer of the proof."""
    till = Till()
    lines = ('tenant_claim = "org"', 'machines = ["robot"]')
    file = write(there.folder / "tokens.toml", openid, *lines, tables=TABLES)
    keeper = Gatekeeper.from_file(file, "default", interface="web")
    async with (
        serve(*make_agents(till), identity=there.worker) as env,
        site(env.client, gatekeeper=keeper, interfaces=load_interfaces(["a2a", "adk", "ag-ui", "mcp"])) as web,
        people_at(web.url, openid) as people,
    ):
        walks = await asyncio.gather(*(walk(name, people) for name in INTERFACES))
        audits = [(await gather_invocation(env.client, id)).by_invocation[id] for _, id in walks]
    assert {label: reply for wrong, _ in walks for label, reply in wrong.items()} == {}
    assert till.paid == [4] * len(INTERFACES)
    decided = [line for audit in audits for line in audit if line["kind"] == "decided"]
    proofs = [(line["interface"], line["verified"]["subject"], line["verified"]["issuer"]) for line in decided]
    assert len({line["args_digest"] for audit in audits for line in audit if line.get("action") == "edit"}) == 1
    assert proofs == [(each.name if each.has_digests else "api", "ann", openid.url) for each in INTERFACES.values()]
