"""The list of invocations and the pages of one: pending calls, usage, and actions."""

import html
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Browser as Chromium
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.web.browsers import opened
from tests.server.web.desk import begun, payer
from tests.server.web.logins import DANA, ERIN, gatekeeper, person
from tests.server.web.sites import Browser, hidden, page_of, path_of, site
from tests.steps import approve_and_finish, make_quick_settings, start_and_finish, wait_for_hold, wait_until
from tests.unit.identity.conftest import Installation
from waystation.agents import Agent
from waystation.client import Invocation, read_entry
from waystation.core.approval import ApprovalPolicy
from waystation.core.budget import Budget, Price, Usage
from waystation.core.errors import ModelOverloaded, ModelRefused
from waystation.replay import Recording, report
from waystation.testing import AgentEnvironment, FunctionModel, ScriptedModel, calls, says
from waystation.tools import AgentTool, ToolContext
from waystation.tools.function_tool import FunctionTool
from waystation.web.invocation_details import DetailsReader

FOR_DANA = ApprovalPolicy(approvers=("dana",))
PRICED = Budget(prices={"*": Price(prompt=1_000_000, output=1_000_000)})


def boss(till: Till, name: str = "boss") -> Agent:
    """Return an agent that lets another one pay, which needs dana's approval."""
    clerk = payer(till, {"amount": 5}, approval=FOR_DANA)
    return Agent(
        name=name, model=ScriptedModel(calls(("payer", {"request": "pay"})), says("Done.")), tools=[AgentTool(clerk)]
    )


async def waits_below(env: AgentEnvironment, agent: str = "boss") -> tuple[Invocation, str]:
    """Start a boss, and wait until visibility lists the call of the agent that it called. Return its approval ID."""
    invocation = await env.client.start(agent, "Pay the roofer.")
    id = f"{invocation.id}/fc-1/fc-1"

    async def listed() -> bool:
        return any([call.approval_id == id async for call in env.client.approvals.each()])

    await wait_until(listed, "the call of the called agent")
    return invocation, id


def row_of(page: str, id: str) -> str:
    """Return the text of an invocation's row in the list, with the addresses of its links. Empty if there is none."""
    match = re.search(rf'<tr data-key="{re.escape(id)}">.*?</tr>', page, re.DOTALL)
    text = re.sub(r'<a[^>]* href="([^"]*)"[^>]*>', r" [\1] ", match[0]) if match else ""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


async def read_row(me: Browser, id: str, query: str = "") -> str:
    """Return the text of an invocation's row as soon as the list has one."""
    rows: list[str] = []

    async def look() -> bool:
        rows.append(row_of((await me.page(f"/invocations?{query}")).text, id))
        return bool(rows[-1])

    await wait_until(look, f"{id} in the list")
    return rows[-1]


QUERIES = ["", "agent=boss", "status=waiting", "q=boss", "person=dan", "age=hour&agent=boss"]


async def test_an_invocation_that_waits_in_a_called_agent_says_for_whom(serve: Serve) -> None:
    """The row links to the call, whatever the list is filtered by, and counts as waiting."""
    async with serve(boss(Till()), verify=False) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await waits_below(env)
        for query in QUERIES:
            row = await read_row(me, invocation.id, query)
            assert row.startswith(f"waiting [{path_of(id)}] for dana pay in payer")
        assert 'id="status">waiting</span>' in (await me.page(page_of(invocation))).text
        for each in (f"{invocation.id}/fc-1", invocation.id):
            with suppress(RPCError):  # the called agent may end with its caller
                await env.client.invocation(each).handle.terminate()


async def test_the_list_has_the_usage_of_open_and_failed_invocations(serve: Serve) -> None:
    """An open invocation shows what it used so far, and a failed one has its error beside it."""
    usage = Usage(prompt_tokens=1, output_tokens=1, total_tokens=2)

    def look() -> dict[str, Any]:
        return {}

    model = ScriptedModel(replace(calls(("look", {})), usage=usage))
    waiting = Agent(name="open", model=model, tools=[FunctionTool(look, require_confirmation=True)])
    replies = [replace(calls(("look", {})), usage=usage)] * 2
    failing = Agent(
        name="failing",
        model=FunctionModel(lambda request: replies.pop() if replies else ModelRefused("Blocked (400).")),
        tools=[FunctionTool(look)],
    )
    async with serve(waiting, failing, verify=False) as env, site(env.client) as web, web.browser() as me:
        first, _ = await begun(env.client, "open", budget=PRICED)
        second = await env.client.start("failing", "go", budget=PRICED)
        with pytest.raises(WorkflowFailureError):
            await second.result()

        async def measured() -> bool:
            page = (await me.page("/invocations?sort=cost")).text
            rows = row_of(page, first.id), row_of(page, second.id)
            is_sorted = page.find(second.id) < page.find(first.id)
            return "2 tokens cost 2" in rows[0] and "4 tokens cost 4" in rows[1] and is_sorted

        await wait_until(measured, "the usage in the list, highest cost first")
        assert "Blocked" in await read_row(me, second.id, "error=BLOCKED")
        assert row_of((await me.page("/invocations?error=BLOCKED")).text, first.id) == ""
        await first.handle.terminate()


async def test_details_are_read_again_only_when_a_history_has_grown(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed invocation is read once, however often the list is shown."""
    monkeypatch.setattr("waystation.web.invocation_details.REREAD_S", 0.0)
    usage = Usage(total_tokens=2)
    till = Till()
    agent = payer(till, {"amount": 5})
    agent.model = ScriptedModel(replace(calls(("pay", {"amount": 5})), usage=usage), says("Done.", usage=usage))
    async with serve(agent, verify=False) as env:
        invocation, _ = await begun(env.client, "payer")
        reader, reads = DetailsReader(env.client), []
        read = reader._read_spent

        async def count(entry: Any) -> Any:
            reads.append(entry.id)
            return await read(entry)

        monkeypatch.setattr(reader, "_read_spent", count)
        for _ in range(2):
            await reader.read([await read_entry(await invocation.handle.describe())], patience_s=30)
        details = await reader.read([await read_entry(await invocation.handle.describe())], patience_s=30)
        assert (details[invocation.id].tokens, details[invocation.id].message) == (2, "Please pay what I owe.")
        assert reads == [invocation.id]
        await approve_and_finish(invocation)
        for _ in range(2):
            details = await reader.read([await read_entry(await invocation.handle.describe())], patience_s=30)
        assert details[invocation.id].tokens == 4
        assert reads == [invocation.id]  # the last event has the usage


async def test_the_views_of_an_invocation_show_calls_changes_and_prompts(serve: Serve) -> None:
    """Each view has the content that its name promises, and all have the same top."""

    def note(tool_context: ToolContext) -> dict[str, Any]:
        tool_context.state["color"] = "blue"
        return {"noted": True}

    model = ScriptedModel(replace(calls(("note", {})), usage=Usage(prompt_tokens=3, total_tokens=3)), says("Noted."))
    agent = Agent(name="noter", model=model, tools=[FunctionTool(note)])
    async with serve(agent, verify=False) as env, site(env.client) as web, web.browser() as me:
        invocation = await start_and_finish(env.client.start("noter", "Remember blue.", user_id="erin"))
        place = page_of(invocation)
        models, state, top = [(await me.page(f"{place}/{name}")).text for name in ("models", "state", "overview")]
        assert models.count('class="model"') == 2
        assert "3 tokens" in models
        assert "Remember blue." in models  # the prompt, which operators see
        assert re.search(r"color.*event 3.*blue", state, re.DOTALL)
        assert "<html" not in top
        for page in (models, state, top):
            assert 'id="status">completed</span>' in page
            assert "Remember blue." in page
        for name in ("fork", "compare"):
            assert f'href="{place}/{name}"' in models
        assert f'href="{place}/fork?event=2"' in (await me.page(place)).text
        assert f'href="{place}/fork?event=2"' in (await me.page(f"{place}/timeline")).text


async def test_an_event_looks_the_same_on_its_page_and_in_the_report(serve: Serve) -> None:
    """Page and report show messages in full, the IDs of calls, and the decisions of people."""

    def read_events(text: str) -> list[str]:
        rows = re.findall(r'<li id="e\d+".*?<details', text, re.DOTALL)
        rows += re.findall(r'<span class="lines">(.*?)</summary>', text, re.DOTALL)
        return [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in rows]

    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, site(env.client) as web, web.browser() as me:
        invocation, _ = await begun(env.client, "payer")
        await approve_and_finish(invocation)
        events = read_events((await me.page(page_of(invocation))).text)
        assert events == read_events(report(await Recording.of(invocation)).html())
    for text in ("Please pay what I owe.", "payer calls pay(amount=5) [fc-1]", "the call [fc-1] was confirmed"):
        assert any(text in event for event in events), text


async def act(me: Browser, invocation: Invocation, action: str) -> str:
    """Send one of the forms of an invocation's page, and return the page that follows."""
    place = page_of(invocation)
    response = await me.send(f"{place}/{action}", {"csrf": hidden((await me.page(place)).text)["csrf"]})
    return f"{response.status_code} {html.unescape(response.text)}"


async def test_a_person_stops_an_invocation(serve: Serve) -> None:
    """The page reports the request, and a second one conflicts with the end."""
    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, site(env.client) as web, web.browser() as me:
        invocation, _ = await begun(env.client, "payer")
        page = await act(me, invocation, "stop")
        assert page.startswith("200")
        assert "The cancellation was requested." in page
        with pytest.raises(WorkflowFailureError):
            await invocation.result()
        assert "has already ended" in (await act(me, invocation, "stop"))


async def test_a_person_retries_and_gives_up_what_is_held(serve: Serve) -> None:
    """After giving up, the invocation fails; without anything held, the page says so."""
    attempts: list[int] = []

    def reply(request: Any) -> ModelOverloaded:
        attempts.append(1)
        return ModelOverloaded("Overloaded (503).")

    agents = Agent(name="asker", model=FunctionModel(reply)), payer(Till(), {"amount": 5})
    async with (
        serve(*agents, verify=False, settings=make_quick_settings()) as env,
        site(env.client) as web,
        web.browser() as me,
    ):
        invocation = await env.client.start("asker", "hi")
        await wait_for_hold(invocation)
        assert "The next attempt starts now." in await act(me, invocation, "retry")
        assert "The held calls were given up." in await act(me, invocation, "give-up")
        with pytest.raises(WorkflowFailureError):
            await invocation.result()
        other, _ = await begun(env.client, "payer")
        for action in ("retry", "give-up"):
            assert "Nothing was held" in await act(me, other, action)
        await other.reject()


async def test_a_fork_begins_at_the_event_of_the_address(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many events, the form lists those around the chosen one; an unknown event is refused."""
    monkeypatch.setattr("waystation.web.fork_pages.LISTED", 10)

    def step(number: int) -> dict[str, Any]:
        return {"number": number}

    batches = [calls(*(("step", {"number": number}) for number in range(2))) for _ in range(8)]
    agent = Agent(name="stepper", model=ScriptedModel(*batches, says("Done.")), tools=[FunctionTool(step)])
    async with serve(agent, verify=False) as env, site(env.client) as web, web.browser() as me:
        invocation = await start_and_finish(env.client.start("stepper", "go"))
        last = (await invocation.log()).state.event_count
        assert last > 15
        place = f"{page_of(invocation)}/fork"
        for query, chosen in (("", last), (f"?event={last - 1}", last - 1), ("?event=2", 2)):
            page = (await me.page(place + query)).text
            assert re.findall(r'name="event" value="(\d+)" checked', page) == [str(chosen)]
            assert page.count('type="radio"') == 10
        missing = await me.page(f"{place}?event={last + 1}")
        assert (missing.status_code, f"has no event {last + 1}." in missing.text) == (404, True)


async def test_a_refused_answer_keeps_the_filters_of_the_list(serve: Serve) -> None:
    """The links of the page that explains the refusal lead back into the same list."""
    agent = payer(Till(), {"amount": 5}, approval=ApprovalPolicy(comment=True))
    async with serve(agent, verify=False) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        fields = await me.fields(f"{path_of(id)}?agent=payer&sort=oldest")
        refused = await me.send(path_of(id), {**fields, "action": "approve"})
        assert refused.status_code == 422
        assert 'href="/approvals?agent=payer&amp;sort=oldest"' in refused.text
        await invocation.reject(comment="no")


async def test_a_requester_finds_an_invocation_for_another_user_by_its_id(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """Visibility does not know the requester, so only the complete ID finds it, and only for the requester."""
    async with (
        serve(payer(Till(), {"amount": 5}), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, subject=DANA) as dana,
        person(web.url, openid, subject="mallory@example.com") as mallory,
    ):
        invocation, _ = await begun(env.client, "payer", user_id=ERIN, requester=DANA)
        assert row_of((await dana.page(f"/invocations?q={quote(invocation.id)}")).text, invocation.id)
        assert (
            "found only by their complete ID" in (await dana.page(f"/invocations?q={quote(invocation.id[:-1])}")).text
        )
        assert not row_of((await mallory.page(f"/invocations?q={quote(invocation.id)}")).text, invocation.id)
        await invocation.handle.terminate()


async def test_open_pages_of_an_invocation_change_by_themselves(serve: Serve, chromium: Chromium) -> None:
    """The list, the timeline and the model calls show an answer without a reload, and what was unfolded stays open."""
    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, site(env.client) as web:
        invocation, _ = await begun(env.client, "payer")
        async with opened(chromium, web) as (listed, complaints):
            timeline, models = await listed.context.new_page(), await listed.context.new_page()
            await listed.goto("/invocations?agent=payer")
            await timeline.goto(f"{page_of(invocation)}/timeline")
            await models.goto(f"{page_of(invocation)}/models")
            await models.locator("details.model summary").click()
            row = listed.locator(f'tr[data-key="{invocation.id}"]')
            await row.get_by_text("waiting").wait_for()
            await approve_and_finish(invocation)
            for page in (timeline, models):
                await page.evaluate("refresh()")

            async def lists_end() -> bool:
                await listed.evaluate("refresh()")
                return await row.get_by_text("completed").is_visible()

            await wait_until(lists_end, "the end in the list, which is read from visibility")
            await timeline.locator('a[aria-label^="payer: model call 2"]').first.wait_for()
            await models.locator("details.model").nth(1).wait_for()
            assert await models.locator("details.model[open]").count() == 1
            assert complaints == []


async def test_a_page_in_the_background_keeps_no_stream(serve: Serve, chromium: Chromium) -> None:
    """The streams of many tabs would take all connections that a browser allows to one server."""
    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, site(env.client) as web:
        invocation, id = await begun(env.client, "payer")
        async with opened(chromium, web) as (page, complaints):
            for path in (page_of(invocation), path_of(id), "/approvals"):
                await page.goto(path)
                for is_hidden, count in (("false", 1), ("true", 0), ("false", 1)):
                    await page.evaluate(
                        f"Object.defineProperty(document, 'hidden', {{ value: {is_hidden}, configurable: true }});"
                        "document.dispatchEvent(new Event('visibilitychange'))"
                    )

                    async def streams(count: int = count) -> bool:
                        return web.invocations.open_streams == count

                    await wait_until(streams, f"{count} streams of {path}")
            assert complaints == []
        await invocation.reject()


async def test_a_search_changes_the_list_while_a_call_is_ticked(serve: Serve, chromium: Chromium) -> None:
    """The person asked for the change. A ticked call that is still listed stays ticked."""
    async with (
        serve(payer(Till(), {"amount": 5, "to": "ada"}, {"amount": 6, "to": "bob"}), verify=False) as env,
        site(env.client) as web,
    ):
        invocation, first = await begun(env.client, "payer", user_id="searching")
        async with opened(chromium, web) as (page, complaints):

            async def both() -> bool:
                await page.goto("/approvals?user=searching")
                return await page.locator('input[name="call"]').count() == 2

            await wait_until(both, "both calls")
            await page.check(f'input[value="{first}"]')
            await page.fill("#q", "ada")
            await page.locator(f'input[value="{first.replace("fc-1", "fc-2")}"]').wait_for(state="detached")
            assert await page.is_checked(f'input[value="{first}"]')
            assert complaints == []
        await invocation.handle.terminate()
