"""The inbox, and answering several calls together."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.agents import Till
from tests.server.conftest import Serve, empty_server
from tests.server.web.desk import asker, begun, payer
from tests.server.web.sites import Browser, hidden, path_of, site
from tests.steps import wait_until
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.embedded import EmbeddedServer
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.web.limits import Limits
from waystation.web.logins import Login
from waystation.web.pending_list import InboxQuery, PendingList
from waystation.web.shared_reads import SharedReads


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[EmbeddedServer]:
    """A server of its own, because the inbox lists the whole namespace."""
    async with empty_server() as server:
        yield server


async def listed(me: Browser, **filters: str) -> list[str]:
    """Return the approval ids on a page of the inbox."""
    page = (await me.page(f"/approvals?{urlencode(filters)}")).text
    return [html.unescape(id) for id in re.findall(r'name="call" value="([^"]*)"', page)]


async def posted(me: Browser, *ids: str) -> None:
    """Wait until the inbox lists exactly these calls."""

    async def look() -> bool:
        return set(await listed(me)) == set(ids)

    await wait_until(look, f"{ids} in the list")


async def test_the_list_shows_what_waits_and_where_to_look(serve: Serve) -> None:
    """The inbox shows call, agent, age and deadline with a link to the page, and no secrets."""
    agent = payer(Till(), {"amount": 5, "to": "acme"}, deadline=timedelta(minutes=10))
    async with serve(agent) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        await posted(me, id)
        page = html.unescape((await me.page("/approvals")).text)
        for text in ('pay(amount=5, to="acme")', f'href="{path_of(id)}"', "payer", "in 10 minutes", "just now"):
            assert text in page
        assert 'class="soon"' in page
        await invocation.reject()


async def test_the_list_is_filtered_by_agent_tool_and_who_has_taken_it_on(serve: Serve) -> None:
    """An inbox without matches says so."""
    async with serve(payer(Till(), {"amount": 5}), asker("Which day?")) as env, site(env.client) as web:
        async with web.browser() as me:
            paying, payment = await begun(env.client, "payer")
            asking, question = await begun(env.client, "asker")
            await posted(me, payment, question)
            assert await listed(me, agent="asker") == [question]
            assert await listed(me, agent="asker", tool="pay") == []
            assert "No pending call matches." in (await me.page("/approvals?tool=unheard-of")).text
            page = await me.send(
                path_of(question), {**await me.fields(path_of(question)), "action": "respond", "response": "Friday"}
            )
            assert "was answered by dana" in page.text
            assert (await me.page("/approvals?page=no-such-page")).status_code == 400
        await paying.reject()
        await asking.result()


async def test_arguments_too_large_for_a_list_are_said_to_be_so(serve: Serve) -> None:
    """The inbox gives the size of large arguments; the page of the call has all of them."""
    long = {"amount": 5, "note": "x" * 10_000}
    async with serve(payer(Till(), long)) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        await posted(me, id)
        assert "pay(…), 10,022 bytes of arguments" in (await me.page("/approvals?tool=pay")).text
        assert "10,000 characters" in (await me.page(path_of(id))).text
        await invocation.reject()


async def test_a_long_list_has_pages(serve: Serve) -> None:
    """Each call is on exactly one page."""
    async with (
        serve(
            Agent(name="asker", model=FunctionModel(_asks), tools=[LongRunningFunctionTool(_ask)]), verify=False
        ) as env,
        site(env.client, limits=Limits(calls_per_page=2)) as web,
        web.browser() as me,
    ):
        invocations: list[Invocation] = []
        for number in range(5):
            invocations.append(await env.client.start("asker", "go", id=f"paged-{number}-{env.client.task_queue}"))

        async def all_there() -> bool:
            waiting = {call.invocation_id async for call in env.client.approvals.each(agent="asker")}
            return waiting == {each.id for each in invocations}

        await wait_until(all_there, "all calls")
        listed_ids: list[str] = []
        path = "/approvals?agent=asker"
        for _ in range(5):
            page = (await me.page(path)).text
            listed_ids += [html.unescape(id) for id in re.findall(r'name="call" value="([^"]*)"', page)]
            following = re.search(r'href="([^"]*)" rel="next"', page)
            if following is None:
                break
            path = html.unescape(following[1])
        assert sorted(listed_ids) == sorted(f"{each.id}/fc-1" for each in invocations)
        await invocations[0].answer("claim", "fc-1", by="dana")

        async def taken_on() -> bool:
            return "claimed by dana" in (await me.page("/approvals?agent=asker&show=claimed")).text

        await wait_until(taken_on, "the oldest call, which is on the last page, on the first of those taken on")
        for each in invocations:
            await each.handle.terminate()


def _ask(question: str) -> None:
    """Ask a person."""


def _asks(_: LlmRequest) -> LlmResponse:
    return calls(("_ask", {"question": "Which day?"}))


async def test_nothing_waiting_is_said(serve: Serve) -> None:
    """An empty inbox says so."""
    async with serve(payer(Till())) as env, site(env.client) as web, web.browser() as me:
        assert "No pending call matches." in (await me.page("/approvals?agent=nobody-of-that-name")).text


async def test_several_are_answered_together_once_all_of_them_were_shown(serve: Serve) -> None:
    """The page shows arguments and digests, and each call gets a result, including calls decided before."""
    till = Till()
    agent = payer(till, {"amount": 5}, {"amount": 6}, {"amount": 7})
    async with serve(agent) as env, site(env.client) as web, web.browser() as me:
        invocation, first = await begun(env.client, "payer")
        ids = [first.replace("fc-1", f"fc-{number}") for number in (1, 2, 3)]
        page = (await me.page(f"/approvals/several?{urlencode({'call': ids}, doseq=True)}")).text
        for amount in (5, 6, 7):
            assert f'<th scope="row">amount</th><td><code class="value">{amount}</code>' in page
        assert page.count("<span>on behalf of user</span> <span>until <time") == 3
        chosen = [html.unescape(value) for value in re.findall(r'name="call" value="([^"]*)"', page)]
        assert [value.rpartition("|")[0] for value in chosen] == ids
        await invocation.reject("fc-2", by="erin")
        form = {**hidden(page), "call": [*chosen, "nobody/fc-1|x"], "action": "approve", "comment": "all fine"}
        results = await me.send("/approvals/several", form)
        assert "2 of 4 answers count" in results.text
        lines = [html.unescape(re.sub("<[^>]*>", "", line)) for line in re.findall(r"<li class.*?</li>", results.text)]
        assert lines[0] == f"{ids[0]}: approved"
        assert lines[1].startswith(f"{ids[1]}: This call was rejected by erin (unverified)")
        assert lines[2] == f"{ids[2]}: approved"
        assert "No call has the ID 'nobody/fc-1'" in lines[3]
        repeated = await me.send("/approvals/several", form)
        assert repeated.status_code == 409
        assert "This form was already sent" in repeated.text
        await invocation.result()
        assert sorted(till.paid) == [5, 7]


async def test_together_only_what_all_take_is_offered_and_not_too_many(serve: Serve) -> None:
    """A wrong digest refuses only the answer to that call."""
    agent, limits = payer(Till(), {"amount": 5}, {"amount": 6}), Limits(calls_per_answer=2)
    async with serve(agent) as env, site(env.client, limits=limits) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        ids = [id, id.replace("fc-1", "fc-2")]
        assert (await me.page("/approvals/several")).status_code == 303
        assert (await me.page(f"/approvals/several?{urlencode({'call': [*ids, 'x']}, doseq=True)}")).status_code == 422
        fields = hidden((await me.page(f"/approvals/several?{urlencode({'call': ids}, doseq=True)}")).text)
        wrong = {**fields, "call": [f"{each}|{'0' * 32}" for each in ids], "action": "approve"}
        changes: tuple[dict[str, Any], ...] = (
            {"call": []},
            {"action": "respond"},
            {"call": ["x"]},
            {"call": ["a|b"] * 3 + ["c|d", "e|f"]},
        )
        for changed in changes:
            assert (await me.send("/approvals/several", {**wrong, **changed})).status_code == 422
        results = await me.send("/approvals/several", wrong)
        assert results.text.count("The answer refers to different arguments") == 2
        assert len(await invocation.pending()) == 2
        await invocation.reject("fc-1")
        await invocation.reject("fc-2")


async def test_many_open_inboxes_cost_one_read_and_one_page_of_rows(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many calls are pending, a response has at most 50, and requests at the same time share a read."""
    agents = [asker(*(f"Question {number}" for number in range(30))) for _ in range(2)]
    agents[1].name = "other"
    async with serve(*agents, verify=False) as env, site(env.client) as web, web.browser() as me:
        invocations = [(await begun(env.client, agent.name, user_id="many"))[0] for agent in agents]

        async def listed() -> bool:
            return "of 60</span>" in (await me.page("/approvals?user=many")).text

        await wait_until(listed, "60 calls in the list")
        reads: list[dict[str, Any]] = []
        read = env.client.approvals.list

        async def count(**filters: Any) -> Any:
            reads.append(filters)
            return await read(**filters)

        monkeypatch.setattr(env.client.approvals, "list", count)
        shared, query = PendingList(env.client, SharedReads()), InboxQuery(user="many")
        await asyncio.gather(*(shared.select(Login("dana"), query, max_age_s=3_600) for _ in range(20)))
        assert len(reads) == 1
        page = await me.page("/approvals/rows?user=many")
        assert page.text.count('name="call"') == 50
        assert page.text.count("“Please pay what I owe.”") == 50  # the request, as the tool has no hint
        assert len(page.content) < 100_000
        for invocation in invocations:
            await invocation.handle.terminate()
