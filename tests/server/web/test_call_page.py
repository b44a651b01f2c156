"""The page of one call and its forms."""

import asyncio
from datetime import timedelta
from urllib.parse import quote

import pytest

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import asker, begun, payer
from tests.server.web.sites import hidden, path_of, site
from waystation.client.agent_client import Invocation
from waystation.core.contract import Event


async def response_events(invocation: Invocation, function_call_id: str) -> list[Event]:
    """Return the events with a response to a call."""
    events = (await invocation.log()).state.events
    parts = [(event, part) for event in events for part in (event.content or {}).get("parts") or ()]
    return [event for event, part in parts if part.get("functionResponse", {}).get("id") == function_call_id]


async def test_a_page_shows_the_call_and_its_context(serve: Serve) -> None:
    """The page shows tool, agent, arguments, size, digest, requester, conversation, policy, deadline and links."""
    agent = payer(Till(), {"amount": 5, "to": "acme"})
    async with (
        serve(agent) as env,
        site(env.client, temporal_ui="https://temporal.example/") as web,
        web.browser() as me,
    ):
        invocation, id = await begun(env.client, "payer", user_id="erin", session_id="s-1")
        page = (await me.page(path_of(id))).text
        (call,) = await invocation.pending()
        for text in (
            "payer requests approval of pay",
            "This call is waiting for an answer.",
            '<th scope="row">amount</th><td><code class="value">5</code>',
            '<th scope="row">to</th><td><span class="value">acme</span>',
            f"24 bytes, digest <code>{call.digest}</code>",
            "on behalf of erin",
            "<dd>s-1</dd>",
            "Anybody with access to this server may answer.",
            "<b>user</b>: Please pay what I owe.",
            "<b>payer</b>: I pay now.",
            "started waiting for an answer",
            f'href="https://temporal.example/namespaces/default/workflows/{quote(invocation.id, safe="")}"',
            f'href="/invocations/{quote(invocation.id, safe="")}/timeline"',
            "in 30 days",
        ):
            assert text in page, text
        assert (await me.page(f"{path_of(id)}/arguments.json")).json() == {"amount": 5, "to": "acme"}
        await invocation.reject()


async def test_approving_runs_the_call_and_the_page_names_the_approver(serve: Serve) -> None:
    """The name of the login is recorded as a claim, and the agent receives the comment."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        fields = await me.fields(path_of(id))
        page = await me.send(path_of(id), {**fields, "action": "approve", "comment": "fine <b>by</b> me"})
        assert (page.status_code, page.url.raw_path.decode()) == (200, f"{path_of(id)}?done=approve")
        assert "This call was approved by dana (unverified)" in page.text
        assert "approved by dana (unverified): “fine &lt;b&gt;by&lt;/b&gt; me”" in page.text
        assert 'value="approve"' not in page.text
        await invocation.result()
        assert till.paid == [5]


async def test_edited_arguments_are_compared_before_they_are_sent(serve: Serve) -> None:
    """Editing leads from a form per argument over a page with the differences to the button that sends them."""
    till = Till()
    agent = payer(till, {"amount": 500, "to": "acme", "note": "two\nlines"})
    async with serve(agent) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        form = (await me.page(f"{path_of(id)}/edit")).text
        assert 'name="value.amount" value="500"' in form
        assert "two\nlines</textarea>" in form
        csrf = (await me.fields(path_of(id)))["csrf"]
        filled = {"csrf": csrf, "value.amount": "50", "value.to": "acme", "value.note": "two\r\nlines"}
        comparison = await me.send(f"{path_of(id)}/edit", filled)
        assert '<del><code class="value">500</code></del>' in comparison.text
        assert '<ins><code class="value">50</code></ins>' in comparison.text
        assert comparison.text.count("unchanged</td>") == 2
        assert len(await invocation.pending()) == 1
        page = await me.send(path_of(id), {**hidden(comparison.text), **await me.fields(path_of(id)), "action": "edit"})
        assert page.status_code == 200
        assert "approved with other arguments by dana (unverified), as pay(amount=50, " in page.text
        now, original = page.text.split("<h3>Arguments as requested, which the digest covers</h3>")
        assert '<code class="value">50</code>' in now
        assert '<code class="value">500</code>' in original
        await invocation.result()
        assert till.paid == [50]


EDITS: list[tuple[dict[str, str], str]] = [
    ({"value.amount": "5"}, "Nothing was changed."),
    ({"value.amount": "much"}, "Enter a number, such as 12.5."),
    ({"value.amount": "4.90"}, '<ins><code class="value">4.9</code></ins>'),
    ({"json": "{"}, "This is not valid JSON"),
    ({"json": "[1]"}, "Enter one JSON object"),
    ({"json": '{"amount": 7, "to": "eve"}'}, "Approve with these arguments"),
    ({"json": '{"amount": 5.0}'}, "Approve with these arguments"),
]


async def test_an_invalid_edit_is_shown_again_with_the_reason(serve: Serve) -> None:
    """An invalid edit, by field or as JSON, is shown again with the reason."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        for fields, problem in EDITS:
            csrf = (await me.fields(path_of(id)))["csrf"]
            page = await me.send(f"{path_of(id)}/edit", {"csrf": csrf, **fields})
            assert problem in page.text
        await invocation.reject()


async def test_refused_arguments_can_be_corrected(serve: Serve) -> None:
    """The form shows the refused arguments again, with the reason."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        fields = {"args": '{"amount": "much", "to": "erin"}', "action": "edit"}
        page = await me.send(path_of(id), {**await me.fields(path_of(id)), **fields})
        assert page.status_code == 422
        assert "Edit the arguments of pay" in page.text
        assert "Parameter &#39;amount&#39;" in page.text
        assert "&#34;to&#34;: &#34;erin&#34;" in page.text
        await invocation.reject()


async def test_a_question_accepts_progress_and_then_an_answer(serve: Serve) -> None:
    """Progress leaves the call pending. Text becomes the `result` of the response; an object is used unchanged."""
    async with serve(asker("Which day?")) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "asker")
        news = {**await me.fields(path_of(id)), "action": "progress", "news": '{"asked": "erin"}'}
        page = await me.send(path_of(id), news)
        assert "The call was updated with progress." in page.text
        assert "This call is waiting for an answer." in page.text
        assert "Latest response" in page.text
        page = await me.send(path_of(id), {**await me.fields(path_of(id)), "action": "respond", "response": "Friday"})
        assert "This call was answered by dana" in page.text
        await invocation.result()
        responses = [
            (event.content or {})["parts"][0]["functionResponse"]["response"]
            for event in await response_events(invocation, "fc-1")
        ]
        assert responses[-2:] == [{"asked": "erin"}, {"result": "Friday"}]


async def test_a_second_click_counts_once_and_shows_the_first_result(serve: Serve) -> None:
    """Twenty simultaneous clicks give one answer, one payment and no error page."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        form = {**await me.fields(path_of(id)), "action": "approve"}
        pages = await asyncio.gather(*(me.send(path_of(id), form) for _ in range(20)))
        assert sorted(page.status_code for page in pages) == [200, *[409] * 19]
        assert sum("This form was already sent. It counts only once." in page.text for page in pages) == 19
        for page in pages:
            assert "This call was approved by dana (unverified)" in page.text
        await invocation.result()
        assert till.paid == [5]
        answers = [entry for entry in (await invocation.log()).entries if "Answer" in type(entry.body).__name__]
        assert len(answers) == 1


async def test_a_late_answer_shows_who_decided(serve: Serve) -> None:
    """A late answer gets status 409 and the page with the decision, also in a second tab."""
    till = Till()
    async with (
        serve(payer(till, {"amount": 5})) as env,
        site(env.client) as mine,
        site(env.client, person="erin") as theirs,
        mine.browser() as me,
        theirs.browser() as they,
    ):
        invocation, id = await begun(env.client, "payer")
        form, tab = await me.fields(path_of(id)), await me.fields(path_of(id))
        other = await they.fields(path_of(id))
        await they.send(path_of(id), {**other, "action": "reject", "comment": "too much"})
        for fields in (form, tab):
            page = await me.send(path_of(id), {**fields, "action": "approve"})
            assert page.status_code == 409
            assert "Your answer was not sent: the call is no longer pending." in page.text
            assert "This call was rejected by erin (unverified)" in page.text
            assert "too much" in page.text
        await invocation.result()
        assert till.paid == []


async def test_an_answer_is_bound_to_the_displayed_call(serve: Serve) -> None:
    """A form with an old digest is refused, and the call stays pending."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        fields = await me.fields(path_of(id))
        page = await me.send(path_of(id), {**fields, "digest": "0" * 32, "action": "approve"})
        assert page.status_code == 409
        assert "The answer refers to different arguments" in page.text
        assert "This call is waiting for an answer." in page.text
        await invocation.reject()


async def test_only_accepted_actions_are_sent(serve: Serve) -> None:
    """A forged form cannot send an action that the call does not accept."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        for action in ("respond", "progress", "view", "", "approve-and-remember", "x"):
            page = await me.send(path_of(id), {**await me.fields(path_of(id)), "action": action, "response": "{}"})
            assert page.status_code == 422
            assert "The call does not accept this answer." in page.text
            assert len(await invocation.pending()) == 1
        await invocation.reject()


async def test_unknown_and_closed_calls_have_explaining_pages(serve: Serve) -> None:
    """Unknown and closed calls have a page that explains them, instead of a server error."""
    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        for unknown in ("nowhere/fc-1", f"{invocation.id}/fc-9", "nothing", f"{invocation.id}/", "/", "\u202e\x00/x"):
            page = await me.page(path_of(unknown))
            assert page.status_code == 404, unknown
            assert "No call has the ID" in page.text
        fields = await me.fields(path_of(id))
        await invocation.handle.terminate()
        assert "the invocation is terminated" in (await me.page(path_of(id))).text
        page = await me.send(path_of(id), {**fields, "action": "approve"})
        assert page.status_code == 409
        assert "the invocation is terminated" in page.text


async def test_an_expired_call_accepts_nothing(serve: Serve) -> None:
    """The page says that it expired and was not approved."""
    agent = payer(Till(), {"amount": 5}, deadline=timedelta(seconds=3))
    async with serve(agent) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        fields = await me.fields(path_of(id))
        await invocation.result()
        page = await me.send(path_of(id), {**fields, "action": "approve"})
        assert page.status_code == 409
        assert "No one answered before the deadline. The call was not approved." in page.text
        edited = await me.send(f"{path_of(id)}/edit", {"csrf": fields["csrf"], "value.amount": "6"})
        assert "Your answer was not sent: the call is no longer pending." in edited.text
        assert "the deadline passed without an answer" in page.text


async def test_an_answer_without_a_worker_is_not_reported_as_failed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page reports that the answer may still be applied later."""
    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        fields = await me.fields(path_of(id))
        await env.worker.shutdown()
        soon = {**(Invocation.answer.__kwdefaults__ or {}), "confirm_within": timedelta(seconds=1)}
        monkeypatch.setattr(Invocation.answer, "__kwdefaults__", soon)
        page = await me.send(path_of(id), {**fields, "action": "approve", "comment": "enjoy"})
        assert page.status_code == 202
        assert "may still be applied" in page.text
        assert "enjoy</textarea>" in page.text
        await invocation.handle.terminate()
