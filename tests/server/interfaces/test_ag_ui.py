"""Agents as AG-UI serves them: threads, interrupts, answers and tools of clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import asker, payer
from tests.server.web.sites import Site, site
from waystation.agents import Agent
from waystation.core.approval import ApprovalPolicy
from waystation.extensions import load_interfaces
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

AG_UI = load_interfaces(["ag-ui"])
PAY = {"id": "m1", "role": "user", "content": "Pay."}
MORE = {"id": "m2", "role": "user", "content": "And then?"}
TOOL = {"name": "pick_color", "description": "Ask for a color."}
Events = list[dict[str, Any]]


def chooser(**options: Any) -> Agent:
    """Return an agent with a tool that its client runs."""

    def pick_color() -> None:
        """Ask for a color."""

    replies = calls(("pick_color", {})), says("You chose it.")
    return Agent(name="chooser", model=ScriptedModel(*replies), tools=[LongRunningFunctionTool(pick_color, **options)])


class Client:
    """A client that keeps nothing but the ID of its thread."""

    def __init__(self, web: Site, agent: str = "payer", thread: str = "") -> None:
        self.web, self.agent, self.thread = web, agent, thread or f"agui-{uuid4().hex}"

    async def follow(self, *messages: dict[str, Any], query: str = "", **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """Run the agent, and yield the events."""
        body = {"threadId": self.thread, "runId": uuid4().hex, "messages": messages, **fields}
        async with (
            self.web.program() as http,
            http.stream("POST", f"/agui/{self.agent}{query}", json=body, timeout=60) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    async def run(self, *messages: dict[str, Any], **options: Any) -> Events:
        """Run the agent, and return all events."""
        return [event async for event in self.follow(*messages, **options)]

    async def interrupt(self, *messages: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Run the agent, and return the only interrupt."""
        *_, last = await self.run(*messages, **options)
        [interrupt] = last["outcome"]["interrupts"]
        found: dict[str, Any] = interrupt
        return found


def resolve(interrupt: dict[str, Any], **payload: Any) -> dict[str, Any]:
    """Return the entry of a resume that answers what an interrupt shows."""
    metadata = {name: interrupt["metadata"][name] for name in ("digest", "question")}
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": payload, "metadata": metadata}


def outcome(events: Events) -> Any:
    """Return the outcome of a run, or its error."""
    return events[-1].get("outcome") or (events[-1]["type"], events[-1].get("code"))


SUCCESS = {"type": "success"}


async def test_a_message_counts_once_and_needs_answers_first(serve: Serve) -> None:
    """A repeated message is the same run; another one is refused while a call waits, or queued for older clients."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client, interfaces=AG_UI) as web:
        client = Client(web)
        first, again = await client.interrupt(PAY), await client.interrupt(PAY)
        assert first["id"] == again["id"]
        assert outcome(await client.run(PAY, MORE)) == ("RUN_ERROR", "OpenInterrupts")
        queued = await client.run(PAY, MORE, query="?strict=false")
        assert [each["id"] for each in queued[-1]["outcome"]["interrupts"]] == [first["id"]]
        resumed = await client.run(PAY, MORE, resume=[resolve(first, approved=True)])
        assert outcome(resumed) == SUCCESS
        [snapshot, *_] = [event for event in await client.run() if event["type"] == "MESSAGES_SNAPSHOT"]
        assert [each["id"] for each in snapshot["messages"] if each["role"] == "user"] == ["m1", "m2"]
        assert till.paid == [5]


async def test_a_resume_is_safe_to_repeat_and_covers_what_others_answered(serve: Serve) -> None:
    """The recorded answer counts, which the run names, whatever the repeated one says."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client, interfaces=AG_UI) as web:
        client = Client(web)
        interrupt, events = await client.interrupt(PAY), Events()
        for approved in (True, True, False):
            events = await client.run(PAY, resume=[resolve(interrupt, approved=approved)])
            assert outcome(events) == SUCCESS
        [covered] = [event["value"] for event in events if event["type"] == "CUSTOM"]
        assert (covered["interruptId"], covered["answer"]["action"]) == (interrupt["id"], "approve")
        assert till.paid == [5]


async def test_refused_answers_interrupt_again_in_words(serve: Serve) -> None:
    """That holds for another version of the arguments, for a payload of another form, and for forbidden edits."""
    till = Till()
    policy = ApprovalPolicy(actions=("approve", "reject"))
    async with serve(payer(till, {"amount": 5}, approval=policy)) as env, site(env.client, interfaces=AG_UI) as web:
        client = Client(web)
        interrupt = await client.interrupt(PAY)
        assert "editedArgs" not in interrupt["responseSchema"]["properties"]
        assert interrupt["message"] == "payer waits for an answer about pay."
        stale = {**interrupt, "metadata": {"digest": "0" * 32, "question": 1}}
        problems = []
        for entry in (
            resolve(stale, approved=True),
            resolve(interrupt, approved="true"),
            resolve(interrupt, approved=True, editedArgs={"amount": 1}),
        ):
            problems.append((await client.interrupt(PAY, resume=[entry]))["metadata"]["problem"])
        digest, form, edits = problems
        assert "different arguments" in digest
        assert "responseSchema" in form
        assert "edit" in edits
        entry = {"interruptId": "session/someone/else/1/fc-1", "status": "resolved", "payload": {"approved": True}}
        assert outcome(await client.run(PAY, resume=[entry])) == ("RUN_ERROR", "UnknownCall")
        assert till.paid == []
        abandoned = {"interruptId": interrupt["id"], "status": "cancelled"}
        assert outcome(await client.run(PAY, resume=[abandoned])) == SUCCESS
        assert till.paid == []


async def test_a_call_for_others_is_an_activity_and_the_run_stays(serve: Serve) -> None:
    """The activity names who is awaited. Their answer elsewhere continues the open run."""
    till = Till()
    policy = ApprovalPolicy(approvers=("erin",), verified=False)
    async with serve(payer(till, {"amount": 5}, approval=policy)) as env, site(env.client, interfaces=AG_UI) as web:
        seen: Events = []
        async for event in Client(web).follow(PAY):
            seen.append(event)
            if event["type"] == "ACTIVITY_SNAPSHOT" and event["content"]["status"] == "waiting":
                assert event["content"]["approvers"] == ["erin"]
                await env.client.approvals.answer(event["content"]["toolCallId"], "approve", by="erin")
        statuses = [event["content"]["status"] for event in seen if event["type"] == "ACTIVITY_SNAPSHOT"]
        assert (statuses, outcome(seen), till.paid) == (["waiting", "closed"], SUCCESS, [5])


async def test_a_client_that_shows_an_interrupt_learns_of_its_answer(serve: Serve) -> None:
    """Another tab watches what it shows, until someone answers elsewhere."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client, interfaces=AG_UI) as web:
        client = Client(web)
        interrupt = await client.interrupt(PAY)
        watching = asyncio.create_task(client.run(forwardedProps={"waystation": {"seen": [interrupt["id"]]}}))
        await client.run(resume=[resolve(interrupt, approved=False)])
        events = await watching
        assert outcome(events) == SUCCESS
        assert [event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"]
        assert till.paid == []


async def test_a_client_that_vanishes_loses_nothing(serve: Serve) -> None:
    """The message counts, and the thread has everything when the client returns."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client, interfaces=AG_UI) as web:
        client = Client(web)
        async for _ in client.follow(PAY):
            break
        interrupt = await client.interrupt()
        events = await client.run(resume=[resolve(interrupt, approved=True)])
        assert outcome(events) == SUCCESS


async def test_cancellation_is_a_run(serve: Serve) -> None:
    """It cancels the invocation, and both runs report that."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client, interfaces=AG_UI) as web:
        client = Client(web)
        interrupt = await client.interrupt(PAY)
        watching = asyncio.create_task(client.run(forwardedProps={"waystation": {"seen": [interrupt["id"]]}}))
        cancelled = await client.run(forwardedProps={"waystation": {"cancel": True}})
        assert outcome(cancelled) == outcome(await watching) == {"type": "cancelled"}


async def test_a_call_of_a_called_agent_is_an_interrupt_of_its_caller(serve: Serve) -> None:
    """It is bound to the call of the agent, which is suspended as a sub-agent."""
    till = Till()
    model = ScriptedModel(calls(("payer", {"request": "Pay 5."})), says("Paid."))
    boss = Agent(name="boss", model=model, tools=[AgentTool(payer(till, {"amount": 5}))])
    async with serve(boss) as env, site(env.client, interfaces=AG_UI) as web:
        client = Client(web, "boss")
        events = await client.run(PAY)
        [interrupt] = events[-1]["outcome"]["interrupts"]
        assert interrupt["subagentRunId"] == interrupt["toolCallId"] == interrupt["id"].rpartition("/")[0]
        [suspended] = [event for event in events if event["type"] == "SUBAGENT_FINISHED"]
        assert suspended["outcome"] == {"type": "suspended", "interruptIds": [interrupt["id"]]}
        assert outcome(await client.run(resume=[resolve(interrupt, approved=True)])) == SUCCESS
        assert till.paid == [5]


async def test_a_tool_without_a_client_asks_a_person(serve: Serve) -> None:
    """The same call is an interrupt for a client that cannot run the tool. The result of the other is not forged."""
    async with serve(chooser()) as env, site(env.client, interfaces=AG_UI) as web:
        client = Client(web, "chooser")
        pending = (await client.run(PAY, tools=[TOOL]))[-1]["outcome"]["pendingToolCallIds"]
        forged = {"id": "r", "role": "tool", "toolCallId": pending[0], "content": "red"}
        interrupt = await client.interrupt(PAY, forged)
        assert (interrupt["reason"], [interrupt["id"]]) == ("input_required", pending)
        assert outcome(await client.run(resume=[resolve(interrupt, response={"color": "red"})])) == SUCCESS


async def test_a_refused_result_of_a_tool_is_an_interrupt_with_the_problem(serve: Serve) -> None:
    """A result has to match the tool's schema, as for every other answer, and is never dropped silently."""
    schema = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    async with serve(chooser(response_schema=schema)) as env, site(env.client, interfaces=AG_UI) as web:
        client = Client(web, "chooser")
        [id] = (await client.run(PAY, tools=[TOOL]))[-1]["outcome"]["pendingToolCallIds"]
        result = {"id": "r", "role": "tool", "toolCallId": id, "content": "red"}
        assert "color" in (await client.interrupt(PAY, result, tools=[TOOL]))["metadata"]["problem"]
        result["content"] = '{"color": "red"}'
        assert outcome(await client.run(PAY, result, tools=[TOOL])) == SUCCESS


async def test_the_thread_of_another_person_is_another_one(serve: Serve) -> None:
    """A thread's ID does not lead to it, and neither do the IDs of its interrupts."""
    async with (
        serve(payer(Till(), {"amount": 5})) as env,
        site(env.client, interfaces=AG_UI) as web,
        site(env.client, interfaces=AG_UI, person="mallory") as other,
    ):
        client = Client(web)
        interrupt = await client.interrupt(PAY)
        stranger = Client(other, thread=client.thread)
        [_, _, snapshot, _] = await stranger.run()
        assert snapshot["messages"] == []
        assert outcome(await stranger.run(resume=[resolve(interrupt, approved=True)])) == ("RUN_ERROR", "UnknownCall")
        await client.interrupt()


async def test_questions_are_answered_with_their_schema(serve: Serve) -> None:
    """A response completes a call that asks a person, and a bare approval does not."""
    async with serve(asker("Why?")) as env, site(env.client, interfaces=AG_UI) as web:
        client = Client(web, "asker")
        interrupt = await client.interrupt(PAY)
        assert "response" in interrupt["responseSchema"]["properties"]
        assert outcome(await client.run(resume=[resolve(interrupt, response={"because": "so"})])) == SUCCESS


async def test_invalid_input_is_refused_in_words(serve: Serve) -> None:
    """Malformed requests are refused before a run starts; refusals of the session are errors of the run."""
    url = {"type": "url", "value": "http://example.com/a.png"}
    odd = {**PAY, "content": [{"type": "image", "source": url}]}
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client, interfaces=AG_UI) as web:
        client = Client(web)
        assert outcome(await client.run({**PAY, "id": "m" * 101})) == ("RUN_ERROR", "InvalidInput")
        assert outcome(await client.run(odd)) == ("RUN_ERROR", "InvalidInput")
        assert outcome(await Client(web, "nobody").run(PAY)) == ("RUN_ERROR", "UnknownAgent")
        interrupt = await client.interrupt(PAY)
        twice = [resolve(interrupt, approved=True), resolve(interrupt, approved=False)]
        assert outcome(await client.run(resume=twice)) == ("RUN_ERROR", "InvalidInput")
        body = {"threadId": "t", "runId": "r", "messages": []}
        async with web.program() as http:
            for wrong in ({}, {**body, "threadId": ""}, {**body, "messages": [{"role": "user"}]}):
                response = await http.post("/agui/payer", json=wrong)
                assert response.status_code == 422, response.text
            form = await http.post("/agui/payer", content="threadId=t", headers={"Content-Type": "text/plain"})
            assert form.status_code == 415
        await client.run(resume=[resolve(interrupt, approved=False)])
