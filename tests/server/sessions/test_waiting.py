"""A conversation continues while an invocation waits for a person."""

import pytest
from temporalio.api.enums.v1 import EventType

from tests.server.conftest import Serve
from tests.server.sessions.conftest import Converse, new_session, settled_events, verify
from tests.server.sessions.test_conversation import texts, words
from tests.server.sessions.test_cuts import at_rest, current_input, readings_in
from tests.server.sessions.turnstile import Late, Turnstile
from tests.steps import reject_and_finish, wait_for_calls, wait_until
from waystation.agents import Agent
from waystation.agents.callback_context import CallbackContext
from waystation.client import Sent, Session
from waystation.core.contract import CHILD_ENDED_SIGNAL, PARKED_SIGNAL
from waystation.core.projection import FLUSH_SCOPES
from waystation.history import is_local_activity
from waystation.models import LlmRequest
from waystation.testing import FunctionModel, calls, responses, says
from waystation.testing.models import Reply, latest_turn
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


def pay(amount: int, tool_context: ToolContext) -> dict[str, int]:
    """Pay."""
    tool_context.state["paid"] = amount
    return {"paid": amount}


def clerk(request: LlmRequest) -> Reply:
    """Reply with a payment to the message `pay`, and repeat any other message."""
    text, answered = latest_turn(request)
    if request.contents[-1]["parts"][-1].get("functionResponse"):
        return says(f"paid: {answered[-1][1]}")
    return calls(("pay", {"amount": 5})) if text == "pay" else says(f"heard {text}")


def paying() -> Agent:
    return Agent(name="clerk", model=FunctionModel(clerk), tools=[FunctionTool(pay, require_confirmation=True)])


async def parked(session: Session, sent: Sent) -> None:
    """Wait until the session knows that an invocation waits."""

    async def look() -> bool:
        listed = await session.invocations()
        return any(one["id"] == sent.invocation_id and one["status"] == "waiting" for one in listed)

    await wait_for_calls(await sent.invocation(), "fc-1")
    await wait_until(look, "an invocation known to wait")


async def test_a_message_is_answered_while_an_earlier_one_waits(converse: Converse) -> None:
    """The new invocation runs at once, and the waiting one after its answer."""
    async with converse(paying()) as session:
        first = await session.send("pay")
        await parked(session, first)
        second = await session.send("hello")
        assert (await second.result()).text == "heard hello"
        await (await first.invocation()).approve()
        assert (await first.result()).text == "paid: {'paid': 5}"

        async def heard() -> bool:
            return await session.state() == {"paid": 5}

        await wait_until(heard, "what the first invocation wrote")
        assert words(await settled_events(session)) == [
            "user: pay",
            "user: hello",
            "clerk: heard hello",
            "clerk: paid: {'paid': 5}",
        ]


@pytest.mark.slow
async def test_messages_need_no_timer(converse: Converse) -> None:
    """Servers fire timers up to a second late, so a worker that caches workflows orders messages without them."""
    async with converse(paying(), max_cached_workflows=10) as session:
        first = await session.send("pay")
        await parked(session, first)
        await (await session.send("hello", when_busy="reject")).result()
        events = (await session.handle.fetch_history()).events
        assert [e.event_id for e in events if e.event_type == EventType.EVENT_TYPE_TIMER_STARTED] == []
        # The message waited once before it was accepted, and once before its invocation started.
        assert len([event for event in events if is_local_activity(event)]) == 2


@pytest.mark.slow
async def test_later_messages_see_a_pending_call(converse: Converse) -> None:
    """A model that does not see its call makes it again."""
    prompts: list[list[str]] = []

    def watched(request: LlmRequest) -> Reply:
        prompts.append(texts(request.contents))
        return clerk(request)

    agent = Agent(name="clerk", model=FunctionModel(watched), tools=[FunctionTool(pay, require_confirmation=True)])
    async with converse(agent) as session:
        first = await session.send("pay")
        await parked(session, first)
        await (await session.send("hello")).result()
        await (await first.invocation()).approve()
        await first.result()
    assert [text[:40] for text in prompts[1]] == [
        "pay",
        "{'functionCall': {'name': 'pay', 'args':",
        "{'functionResponse': {'name': 'pay', 're",
        "hello",
    ]
    assert "'status': 'pending'" in prompts[1][2]
    assert len(prompts[2]) == 3


@pytest.mark.slow
async def test_an_ended_invocation_is_recorded_before_the_next_message(serve: Serve) -> None:
    """The end is recorded first although one workflow task has the message before it."""
    prompts: list[list[str]] = []
    turnstile = Turnstile()

    def watched(request: LlmRequest) -> Reply:
        prompts.append(texts(request.contents))
        if len(prompts) == 2:
            turnstile.close()
        return clerk(request)

    agent = Agent(name="clerk", model=FunctionModel(watched), tools=[FunctionTool(pay, require_confirmation=True)])
    async with serve(agent, verify=False, **turnstile.options) as env:
        session = new_session(env, "clerk")
        first = await session.send("pay")
        await parked(session, first)
        await first.approve()

        async def is_notified() -> bool:
            events = (await session.handle.fetch_history()).events
            if any(e.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED for e in events):
                return True
            await turnstile.let_in(first.handle, session.handle)
            return False

        await wait_until(is_notified, "a session told of the end of the invocation")
        await session.handle.signal("send", {"message": "thanks"})
        turnstile.open()
        assert (await session.invocation(2).result()).text == "heard thanks"
        assert prompts[-1][-2:] == ["paid: {'paid': 5}", "thanks"]
        assert words(await settled_events(session)) == [
            "user: pay",
            "clerk: paid: {'paid': 5}",
            "user: thanks",
            "clerk: heard thanks",
        ]
        await verify(session)


@pytest.mark.slow
async def test_work_before_a_second_wait_is_read_before_a_message_is_answered(converse: Converse) -> None:
    """The model does not see the answered call as pending, although the session does not know the next call yet."""

    def twice(request: LlmRequest) -> Reply:
        text, answered = latest_turn(request)
        if text == "pay" and len(answered) < 2:
            return calls(("pay", {"amount": len(answered)}))
        return says(f"{[told for _, told in responses(request)]}")

    agent = Agent(name="clerk", model=FunctionModel(twice), tools=[FunctionTool(pay, require_confirmation=True)])
    async with converse(agent, invocations=False, interceptors=[Late(PARKED_SIGNAL, 2, nth=2)]) as session:
        first = await session.send("pay")
        await parked(session, first)
        await first.approve()
        await wait_for_calls(await first.invocation(), "fc-2")
        assert (await session.say("hello")).text.startswith("[{'paid': 0}, {'status': 'pending'")
        await reject_and_finish(first)


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0, 0.1, 0.44, 2])
async def test_a_message_waits_for_a_late_end_of_an_invocation(converse: Converse, delay_s: float) -> None:
    """The next invocation starts with the state of the ending one, and after its last event."""
    async with converse(paying(), invocations=False, interceptors=[Late(CHILD_ENDED_SIGNAL, delay_s)]) as session:
        first = await session.send("pay")
        await parked(session, first)
        await first.approve()

        async def announced() -> bool:
            events = (await session.handle.fetch_history()).events
            return any(e.workflow_execution_signaled_event_attributes.signal_name == CHILD_ENDED_SIGNAL for e in events)

        await wait_until(announced, "a signal of the end")
        second = await session.send("thanks", state={"thanked": True})
        await second.result()
        started = (await second.log()).state.input
        assert started
        assert started.state == {"paid": 5, "thanked": True}
        assert words(await settled_events(session))[1:3] == ["clerk: paid: {'paid': 5}", "user: thanks"]


@pytest.mark.slow
async def test_a_message_follows_an_unreported_end_of_an_invocation(converse: Converse) -> None:
    """A message is answered after an operator terminated an invocation that an earlier run of the session started."""
    async with converse(paying(), cut_after=2, invocations=False) as session:
        first = await session.send("pay")
        await parked(session, first)
        await session.say("hello")

        async def has_read() -> bool:
            is_read = await readings_in(session) == 1 and await at_rest(session)
            return is_read and (await current_input(session)).carried is not None

        await wait_until(has_read, "a further run of the session that has read what waits")
        await first.handle.terminate()
        await session.say("thanks")
        assert (await session.invocations())[0]["status"] == "failed"


async def test_an_invocation_signals_its_wait_after_its_writes_to_user_state(serve: Serve) -> None:
    """The next message reads that state as soon as the session knows of the wait."""

    def note(callback_context: CallbackContext) -> None:
        callback_context.state["user:noted"] = True

    agent = paying().model_copy(update={"before_agent_callback": note})
    async with serve(agent, verify=False) as env:
        session = env.client.session(agent="clerk", session_id="s", app=env.client.task_queue)
        first = await session.send("pay")
        await parked(session, first)
        events = (await first.handle.fetch_history()).events
        name = FLUSH_SCOPES.name
        [flush] = [e.event_id for e in events if e.activity_task_scheduled_event_attributes.activity_type.name == name]
        [done] = [e for e in events if e.activity_task_completed_event_attributes.scheduled_event_id == flush]
        kind = EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED
        assert [e.event_id > done.event_id for e in events if e.event_type == kind] == [True]


@pytest.mark.slow
async def test_writes_between_two_waits_are_reported_each_time(converse: Converse) -> None:
    """State that was written before the first wait and removed before the second is gone."""

    def ask(step: int, tool_context: ToolContext) -> dict[str, str]:
        """Ask a person."""
        tool_context.state[f"step {step}"] = True
        if step > 1:
            del tool_context.state[f"step {step - 1}"]
        return {"status": "asked"}

    def act(request: LlmRequest) -> Reply:
        answers = [told for _, told in responses(request)]
        answered = sum("said" in told for told in answers)
        if len(answers) > answered:
            return says("I asked.")
        return calls(("ask", {"step": answered + 1})) if answered < 3 else says("done")

    agent = Agent(name="asker", model=FunctionModel(act), tools=[LongRunningFunctionTool(ask)])
    async with converse(agent) as session:
        invocation = await (await session.send("go")).invocation()
        for step in (1, 2, 3):
            await wait_for_calls(invocation, f"fc-{step}")

            async def heard(step: int = step) -> bool:
                return await session.state() == {f"step {step}": True}

            await wait_until(heard, f"what was written before wait {step}")
            await invocation.respond({"said": "yes"}, f"fc-{step}")
        assert (await invocation.result()).text == "done"
        assert await session.state() == {"step 3": True}
