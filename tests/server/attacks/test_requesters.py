"""Policies bar the requester of a call from approving it, also under another name."""

import json
import unicodedata
from typing import Any

import pytest

from tests.agents import Till
from tests.server.attacks.attackers import BOB, Attacker, payer, recorded_reply, settled
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of
from tests.steps import approve_and_finish, catch_failure, start_and_get_call, start_and_wait, wait_for_calls
from tests.unit.identity.conftest import Installation
from waystation.approvers import Gatekeeper
from waystation.approvers.permissions import Person
from waystation.client import Invocation, make_times
from waystation.core.approval import ApprovalPolicy, Verified
from waystation.core.errors import NotAllowed
from waystation.core.payload import JsonObject
from waystation.testing import AgentEnvironment

OTHERS = ApprovalPolicy(not_requester=True)
ZOE = "zoë@example.com"


NAMES: list[JsonObject] = [
    {"user_id": ZOE},
    {"user_id": ZOE.upper()},
    {"user_id": unicodedata.normalize("NFD", ZOE)},
    {"user_id": f"mailto:{ZOE}"},
    {"user_id": f" {ZOE} "},
    {"user_id": "bob@example.com", "requester": ZOE.upper()},
    {"user_id": f"Zoë <{ZOE}>"},
    {"user_id": "248289761001"},
    {"user_id": "zoë"},
    {"user_id": "bob@example.com", "requester": "bob@example.com"},
    {},
]


async def test_a_requester_cannot_approve_under_any_name(serve: Serve, there: Installation, attacker: Attacker) -> None:
    """Zoë starts the invocation with a stock client under any name, and then approves as herself."""
    till = Till()
    async with serve(payer(till, OTHERS), identity=there.worker, verify=False) as env:
        for number, names in enumerate(NAMES):
            handle = await attacker.temporal.start_workflow(
                "AgentInvocation",
                {"agent": "payer", "message": "go", **names},
                id=f"zoe-{number}-{env.client.task_queue}",
                task_queue=env.client.task_queue,
            )
            invocation = env.client.invocation(handle.id)
            await wait_for_calls(invocation, "fc-1")
            with pytest.raises(NotAllowed):
                await client_of(env, there).invocation(invocation.id).approve("fc-1", token=there.provider.token(ZOE))
            assert await settled(invocation, till)


async def test_another_person_approves_the_call_of_a_verified_requester(serve: Serve, there: Installation) -> None:
    """As a control, the start has Zoë's sealed token, so Bob may approve and she may not."""
    till = Till()
    async with serve(payer(till, OTHERS), identity=there.worker, verify=False) as env:
        client = client_of(env, there)
        invocation, call = await start_and_get_call(
            client.start("payer", "go", token=there.provider.token(ZOE)), "fc-1"
        )
        assert call.verified_requesters == (ZOE,)
        with pytest.raises(NotAllowed, match="someone else must answer"):
            await invocation.approve("fc-1", token=there.provider.token(ZOE))
        await approve_and_finish(invocation, "fc-1", token=there.provider.token(BOB))
    assert till.paid == [5]


async def start_input(invocation: Invocation) -> JsonObject:
    """Return the input of an invocation, which anyone may read in its history."""
    events = (await invocation.handle.fetch_history()).events
    (payload,) = events[0].workflow_execution_started_event_attributes.input.payloads
    params: JsonObject = json.loads(payload.data)
    return params


async def bobs(env: AgentEnvironment, there: Installation) -> Invocation:
    """Return an invocation with a pending call whose verified requester is Bob."""
    return await start_and_wait(client_of(env, there).start("payer", "go", token=there.provider.token(BOB)), "fc-1")


@pytest.mark.parametrize(
    "changes",
    [{}, {"message": "pay Zoë"}, {"state": {"payee": "Zoë"}}, {"agent": "unheard_of"}],
    ids=["the same", "message", "state", "agent"],
)
async def test_a_token_of_another_start_proves_nothing(
    serve: Serve, there: Installation, attacker: Attacker, changes: JsonObject
) -> None:
    """Zoë copies Bob's token from a history into her own start, with another ID or other content."""
    till = Till()
    async with serve(payer(till, OTHERS), identity=there.worker, verify=False) as env:
        bobs_invocation = await bobs(env, there)
        stolen = await start_input(bobs_invocation) | changes
        await bobs_invocation.handle.terminate()
        id = bobs_invocation.id if changes else f"{bobs_invocation.id}-again"
        queue = env.client.task_queue
        handle = await attacker.temporal.start_workflow("AgentInvocation", stolen, id=id, task_queue=queue)
        error = await catch_failure(env.client.invocation(handle.id))
    assert error.type == ("UnknownAgent" if "agent" in changes else "NotAllowed")
    assert till.paid == []


@pytest.mark.xfail(strict=True, reason="A token names the ID of an invocation, not its run.")
async def test_a_token_does_not_prove_the_same_start_twice(
    serve: Serve, there: Installation, attacker: Attacker
) -> None:
    """Zoë ends Bob's invocation and starts the same again under its ID, while Bob's token is valid."""
    till = Till()
    async with serve(payer(till, OTHERS), identity=there.worker, verify=False) as env:
        bobs_invocation = await bobs(env, there)
        stolen = await start_input(bobs_invocation)
        await bobs_invocation.handle.terminate()
        queue = env.client.task_queue
        await attacker.temporal.start_workflow("AgentInvocation", stolen, id=bobs_invocation.id, task_queue=queue)
        restarted = client_of(env, there).invocation(bobs_invocation.id)
        await wait_for_calls(restarted, "fc-1")
        with pytest.raises(NotAllowed):
            await restarted.approve("fc-1", token=there.provider.token(ZOE))


@pytest.mark.parametrize("parent", ["", "Payroll", "AgentInvocation"])
async def test_a_proof_of_another_invocation_proves_nothing(
    serve: Serve, there: Installation, attacker: Attacker, parent: str
) -> None:
    """Zoë copies a worker's record about Bob from a history into the input of her own start or child."""
    till = Till()
    async with serve(payer(till, OTHERS), identity=there.worker, verify=False) as env:
        proof = (await recorded_reply(await bobs(env, there)))["signed_request"]
        assert proof["subjects"] == [BOB]
        params = {"agent": "payer", "message": "go", "signed_request": proof}
        if parent:
            hers = await attacker.child(env, params, parent=parent)
        else:
            queue = env.client.task_queue
            handle = await attacker.temporal.start_workflow(
                "AgentInvocation", params, id=f"z-{queue}", task_queue=queue
            )
            hers = env.client.invocation(handle.id)
        await wait_for_calls(hers, "fc-1")
        with pytest.raises(NotAllowed, match="not verified"):
            await client_of(env, there).invocation(hers.id).approve("fc-1", token=there.provider.token(ZOE))
        assert await settled(hers, till)


@pytest.mark.parametrize("mac", [True, False], ids=["of another invocation", "none"])
async def test_a_forged_reply_that_names_another_requester_gets_nothing_paid(
    serve: Serve, there: Installation, attacker: Attacker, mac: bool
) -> None:
    """Zoë's worker answers the model call with Bob as requester; no other worker has verified that."""
    till, shared = Till(), dict[str, Any](identity=there.worker, verify=False)
    async with serve(payer(till, OTHERS), **shared) as env:
        reply = await recorded_reply(await bobs(env, there))
    async with serve(payer(till, OTHERS), activities=False, **shared) as env:
        hers = await env.client.start("payer", "go")
        reply["signed_request"] |= {"invocation_id": hers.id, "run": hers.handle.first_execution_run_id}
        reply["signed_request"] |= {} if mac else {"mac": None}
        await attacker.lie(env.client.task_queue, "call_model", reply)
        async with serve(payer(till, OTHERS), task_queue=env.client.task_queue, workflows=False, **shared):
            await wait_for_calls(hers, "fc-1")
            with pytest.raises(NotAllowed, match="not verified"):
                await client_of(env, there).invocation(hers.id).approve("fc-1", token=there.provider.token(ZOE))
            assert await settled(hers, till)


@pytest.mark.parametrize(
    ("suffix", "changes"),
    [
        ("", {}),
        ("-2026-11-30T09:00:00Z", {"message": "pay Zoë"}),
        ("-2026-11-30T09:00:00Z", {"user_id": "zoe"}),
        ("-2026-11-30T09:00:00Z", {"schedule": None}),
    ],
    ids=["another ID", "message", "user", "no schedule"],
)
async def test_the_token_of_a_schedule_proves_nothing_for_other_requests(
    serve: Serve, there: Installation, attacker: Attacker, suffix: str, changes: JsonObject
) -> None:
    """Zoë copies Bob's token from a schedule into a start with another ID or other content."""
    till = Till()
    keeper = Gatekeeper.from_file(there.folder / "gateway.toml", "default", interface="web")
    signer = keeper.make_schedule_signer(Person(BOB, Verified(subject=BOB)))
    async with serve(payer(till, OTHERS), identity=there.worker, verify=False) as env:
        queue = env.client.task_queue
        id = f"weekly-{queue}"
        await env.client.schedule(
            "payer", "pay", make_times(None, 604_800.0), id=id, user_id=BOB, requester=BOB, token=signer
        )
        schedule = await env.client.schedules.read(id)
        assert schedule is not None
        stolen = schedule.input.model_dump(mode="json", exclude_defaults=True) | changes
        started = f"{id}{suffix}" if suffix else f"other-{queue}"
        handle = await attacker.temporal.start_workflow("AgentInvocation", stolen, id=started, task_queue=queue)
        error = await catch_failure(env.client.invocation(handle.id))
        await env.client.temporal.get_schedule_handle(id).delete()
    assert (error.type, till.paid) == ("NotAllowed", [])
