"""The JSON API for agents and invocations."""

from urllib.parse import quote

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import payer
from tests.server.web.sites import site
from tests.server.web.test_call_api import name_of, post
from tests.server.workflows.test_unknown_outcomes import Bank, asked
from tests.server.workflows.test_unknown_outcomes import payer as payer_once
from tests.steps import wait_until
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says

INVOCATIONS = "/api/v1/invocations"


async def test_a_program_starts_an_invocation_and_waits_for_its_result(serve: Serve) -> None:
    """The same key starts it once. A held request returns when the invocation waits for a person, or ends."""
    till = Till()
    agent = payer(till, {"amount": 5})
    async with serve(agent, verify=False) as env, site(env.client) as web, web.program() as program:
        agents = (await program.get("/api/v1/agents")).json()["agents"]
        assert "payer" in {tree["name"] for tree in agents}
        body, key = {"agent": "payer", "message": "Pay."}, {"Idempotency-Key": "k-1"}
        started = [await post(program, INVOCATIONS, body, **key) for _ in range(2)]
        assert [(each.status_code, each.json()["existed"]) for each in started] == [(201, False), (200, True)]
        id = started[0].json()["invocation_id"]
        path = f"{INVOCATIONS}/{quote(id, safe='')}"
        waiting = (await program.get(path, params={"wait_s": 30}, timeout=40)).json()
        assert (waiting["id"], waiting["user_id"], waiting["text"]) == (id, "dana", None)
        (call,) = waiting["pending"]
        answers = f"/api/v1/calls/{quote(call, safe='')}/answers"
        assert (await post(program, answers, {"action": "approve"})).status_code == 200
        await env.client.invocation(id).result()
        ended = (await program.get(path, params={"wait_s": 30})).json()
        assert (ended["status"], ended["text"], till.paid) == ("completed", "Done.", [5])
        page = (await program.get(f"{path}/events", params={"start": 1})).json()
        assert (page["status"], page["next"], page["more"]) == ("completed", ended["events"], False)
        async with program.stream("GET", f"{path}/events/stream") as stream:
            lines = [line async for line in stream.aiter_lines()]
        assert lines.count("event: end") == 1
        assert sum(line.startswith("id: ") for line in lines) == ended["events"]

        async def listed() -> bool:
            found = (await program.get(INVOCATIONS, params={"q": id, "status": "completed"})).json()
            return [each["id"] for each in found["invocations"]] == [id]

        await wait_until(listed, "the invocation")
        audit = (await program.get(f"{path}/audit")).json()["invocations"][id]
        assert "dana" in {line.get("by") for line in audit}
        assert "</html>" in (await program.get(f"{path}/report")).text
        late = await post(program, f"{path}/stop", {})
        assert (late.status_code, name_of(late)) == (409, "InvocationEnded")
        forked = await post(program, f"{path}/forks", {"event": 1})
        assert (forked.status_code, forked.json()["existed"]) == (201, False)
        await env.client.invocation(forked.json()["invocation_id"]).handle.terminate()


async def test_a_stopped_invocation_ends_and_nothing_is_retried_that_is_not_held(serve: Serve) -> None:
    """The actions are those of the page."""
    async with (
        serve(payer(Till(), {"amount": 5}), verify=False) as env,
        site(env.client) as web,
        web.program() as program,
    ):
        started = await post(program, INVOCATIONS, {"agent": "payer", "message": "Pay."})
        path = f"{INVOCATIONS}/{quote(started.json()['invocation_id'], safe='')}"
        await program.get(path, params={"wait_s": 30}, timeout=40)
        for action, changed in (("retry", False), ("give-up", False), ("stop", True)):
            assert (await post(program, f"{path}/{action}", {})).json()["changed"] is changed
        ended = (await program.get(path, params={"wait_s": 30, "seen": "waiting"}, timeout=40)).json()
        assert ended["status"] == "canceled"
        unknown = await program.get(f"{INVOCATIONS}/nothing")
        assert (unknown.status_code, name_of(unknown)) == (404, "UnknownInvocation")


async def test_the_token_of_a_server_for_several_people_starts_nothing(serve: Serve) -> None:
    """It has only the role `viewer`."""
    agent = Agent(name="talker", model=ScriptedModel(says("Hello.")))
    async with serve(agent) as env, site(env.client, names=["web.example"]) as web, web.program() as program:
        refused = await post(program, INVOCATIONS, {"agent": "talker", "message": "hi"})
        assert (refused.status_code, name_of(refused)) == (403, "NotAllowed")


async def test_the_question_to_operators_is_answered_and_not_stopped(serve: Serve) -> None:
    """Otherwise, the person whose call it is about could end the question before an operator has seen it."""
    bank = Bank(lost=1)
    agent, _ = payer_once(bank, calls(("pay", {"amount": 5})), says("Unknown."))
    async with serve(agent, verify=False) as env, site(env.client) as web, web.program() as program:
        invocation = await env.client.start("agent", "go")
        question = await asked(env, invocation)
        stopped = await post(program, f"{INVOCATIONS}/{quote(question.invocation_id, safe='')}/stop", {})
        assert (stopped.status_code, name_of(stopped)) == (409, "AsksOperators")
        await env.client.approvals.answer(question.approval_id, "not_run", by="olga")
        await env.client.invocation(question.invocation_id).result()
