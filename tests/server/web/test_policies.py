"""An approval policy shapes the page of a call."""

import html
from datetime import timedelta
from enum import Enum

import pytest
from pydantic import BaseModel

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import begun, payer
from tests.server.web.sites import path_of, site
from tests.steps import wait_until
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy, Escalation
from waystation.core.log import AnswerCounted
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.long_running_tool import LongRunningFunctionTool


class Size(Enum):
    """A choice in the response schema."""

    SMALL = "small"
    LARGE = "large"


class Booking(BaseModel):
    """The response that the agent needs."""

    room: str
    seats: int
    size: Size
    projector: bool = False


def booker() -> Agent:
    """Return an agent that asks which room to book."""

    def which_room(day: str) -> None:
        """Ask a person."""

    tool = LongRunningFunctionTool(which_room, response_schema=Booking)
    model = ScriptedModel(calls(("which_room", {"day": "Friday"})), says("Booked."))
    return Agent(name="booker", model=model, tools=[tool])


async def answers_in(invocation: Invocation) -> list[str]:
    """Return the actions that count so far."""
    return [
        each.body.answer.action for each in (await invocation.log()).entries if isinstance(each.body, AnswerCounted)
    ]


async def test_a_response_has_a_form_made_from_its_schema(serve: Serve) -> None:
    """Each property has a field of its kind; an invalid value is reported at its field and stays there."""
    async with serve(booker()) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "booker")
        page = (await me.page(path_of(id))).text
        for field in (
            'name="value.room"',
            'inputmode="numeric"',
            '<option value="&#34;large&#34;"',
            'name="value.projector"',
        ):
            assert field in page
        assert 'value="approve"' not in page
        filled = {"value.room": "Blue", "value.seats": "many", "value.size": '"large"', "value.projector": "true"}
        wrong = await me.send(path_of(id), {**await me.fields(path_of(id)), **filled, "action": "respond"})
        assert wrong.status_code == 422
        assert "Enter a whole number." in wrong.text
        assert 'value="Blue"' in wrong.text
        right = {**await me.fields(path_of(id)), **filled, "value.seats": "12", "action": "respond"}
        assert "This call was answered by dana" in (await me.send(path_of(id), right)).text
        await invocation.result()
        (call,) = (await invocation.log()).state.calls.values()
        assert call.response == {"room": "Blue", "seats": 12, "size": "large", "projector": True}


async def test_a_required_comment_has_a_field(serve: Serve) -> None:
    """Without the comment nothing is sent, and the form can be sent again."""
    agent = payer(Till(), {"amount": 5}, approval=ApprovalPolicy(comment=True, digest=True))
    async with serve(agent) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        page = await me.page(path_of(id))
        assert "a comment</dd>" in page.text
        assert "Comment (required)" in page.text
        form = {**await me.fields(path_of(id)), "action": "approve"}
        assert (await me.send(path_of(id), {**form, "comment": "  "})).status_code == 422
        assert "This call was approved" in (await me.send(path_of(id), {**form, "comment": "agreed"})).text
        await invocation.result()


async def test_only_the_actions_of_the_policy_are_offered_and_accepted(serve: Serve) -> None:
    """A form with another action is refused before it is sent."""
    agent = payer(Till(), {"amount": 5}, approval=ApprovalPolicy(actions=("reject", "edit")))
    async with serve(agent) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        page = (await me.page(path_of(id))).text
        assert 'value="approve"' not in page
        assert 'value="reject"' in page
        assert "Edit, then approve" in page
        refused = await me.send(path_of(id), {**await me.fields(path_of(id)), "action": "approve"})
        assert (refused.status_code, "The call does not accept this answer." in refused.text) == (422, True)
        await me.send(path_of(id), {**await me.fields(path_of(id)), "action": "reject"})
        await invocation.result()


async def test_remembering_has_its_own_button_with_its_scope(serve: Serve) -> None:
    """The button appears if the policy allows remembering, which is then recorded with the approval."""
    till = Till()
    policy = ApprovalPolicy(remember=timedelta(hours=2), remember_args=("to",))
    agent = payer(till, {"amount": 5, "to": "acme"}, approval=policy)
    async with serve(agent) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer", session_id="s-1")
        page = (await me.page(path_of(id))).text
        assert "For 2 hours, calls of this tool with the same <code>to</code> run without approval." in page
        form = {**await me.fields(path_of(id)), "action": "approve-and-remember"}
        done = (await me.send(path_of(id), form)).text
        assert "This call was approved by dana" in done
        assert "approved by dana (unverified), and identical calls run without asking" in done
        await invocation.result()
        (standing,) = (await invocation.log()).state.approvals.standing
        assert (standing.tool, standing.args, standing.by) == ("pay", {"to": "acme"}, "dana")


async def test_a_claim_is_shown_and_prevents_other_answers(serve: Serve) -> None:
    """The inbox shows claims, too, and any approver can release one."""
    agent = payer(Till(), {"amount": 5}, approval=ApprovalPolicy())
    async with (
        serve(agent) as env,
        site(env.client) as mine,
        site(env.client, person="erin") as theirs,
        mine.browser() as me,
        theirs.browser() as they,
    ):
        invocation, id = await begun(env.client, "payer")
        page = await me.send(path_of(id), {**await me.fields(path_of(id)), "action": "claim"})
        assert "Claimed by dana." in page.text
        assert "Release the claim" in page.text

        async def listed(who: str, path: str) -> bool:
            reader = me if who == "dana" else they
            return id in html.unescape((await reader.page(path)).text)

        await wait_until(lambda: listed("dana", "/approvals?show=claimed"), "the call among those taken on")
        assert "claimed by dana" in (await they.page("/approvals")).text
        assert not await listed("erin", "/approvals?show=claimed")
        assert not await listed("dana", "/approvals?show=free")
        other = (await they.page(path_of(id))).text
        assert "has claimed call" in html.unescape(other)
        assert 'value="approve"' not in other
        page = await they.send(path_of(id), {**await they.fields(path_of(id)), "action": "release"})
        assert "The call was released." in page.text
        page = await they.send(path_of(id), {**await they.fields(path_of(id)), "action": "reject"})
        for text in ("claimed by dana (unverified)", "released by erin (unverified)", "rejected by erin"):
            assert text in page.text
        await invocation.result()
        assert await answers_in(invocation) == ["claim", "release", "reject"]


async def test_escalation_and_deadline_of_the_policy_are_shown(serve: Serve) -> None:
    """The page shows the approvers after the escalation, the escalation and the deadline."""
    escalation = Escalation(after=timedelta(milliseconds=300), to=("boss",))
    policy = ApprovalPolicy(approvers=("dana",), verified=False, escalation=(escalation,), deadline=timedelta(hours=3))
    async with (
        serve(payer(Till(), {"amount": 5}, approval=policy)) as env,
        site(env.client, person="boss") as web,
        web.browser() as me,
    ):
        invocation, id = await begun(env.client, "payer")

        async def escalated() -> str:
            page = (await me.page(path_of(id))).text
            return page if "dana, boss, after an escalation" in page else ""

        page = await wait_until(escalated, "the escalation")
        for text in ("the call was escalated", "in 3 hours"):
            assert text in page
        assert (
            "This call was approved by boss"
            in (await me.send(path_of(id), {**await me.fields(path_of(id)), "action": "approve"})).text
        )
        await invocation.result()


@pytest.mark.parametrize(
    ("action", "text", "paid"),
    [("waive", "allowed without the required approval by dana", [5]), ("cancel", "closed by dana", [])],
)
async def test_an_operator_waives_or_cancels_a_call(serve: Serve, action: str, text: str, paid: list[int]) -> None:
    """Both actions are in a section for operators and recorded as what they are."""
    till = Till()
    agent = payer(till, {"amount": 5}, approval=ApprovalPolicy())
    async with serve(agent) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        page = await me.send(path_of(id), {**await me.fields(path_of(id)), "action": action, "comment": "night shift"})
        assert text in page.text
        await invocation.result()
        assert till.paid == paid


async def test_without_verification_a_protected_call_is_shown_but_not_answered(serve: Serve) -> None:
    """The page tells the operator how to set up verification."""
    agent = payer(Till(), {"amount": 5}, approval=ApprovalPolicy(approvers=("dana",)))
    async with serve(agent, verify=False) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        page = (await me.page(path_of(id))).text
        assert "this server cannot verify yours" in page
        assert "--identity FILE" in page
        assert 'value="approve"' not in page
        sent = await me.send(path_of(id), {**await me.fields(path_of(id)), "action": "approve"})
        assert sent.status_code in (403, 409)
        assert len(await invocation.pending()) == 1
        await invocation.handle.terminate()
