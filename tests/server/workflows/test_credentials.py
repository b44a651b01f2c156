"""A tool waits for its credential, and no secret enters Temporal's data or a log."""

import io
import json
import logging
import threading
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from examples.calendar_login.provider import FakeOAuth
from tests.server.conftest import Serve
from tests.steps import (
    LIMIT_S,
    QUICK_SETTINGS,
    start_and_get_call,
    start_and_wait,
    tool_responses,
    wait_for_calls,
    wait_for_hold,
    wait_until,
)
from waystation.agents import Agent
from waystation.auth import APIKey, APIKeyIn, AuthConfig, AuthCredential, AuthCredentialTypes, Bucket
from waystation.auth.credential_service.encrypted_file_credential_service import EncryptedFileCredentialService
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.auth.credential_store import Place
from waystation.client.agent_client import Invocation
from waystation.core.approval import PendingCall
from waystation.core.errors import AuthorizationFailed, CredentialStoreError
from waystation.core.payload import JsonObject
from waystation.embedded import EmbeddedServer
from waystation.history import fetch_retries
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.authenticated_function_tool import AuthenticatedFunctionTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext

PENDING = {"pending": True}
KEY = AuthConfig(auth_scheme=APIKey(in_=APIKeyIn.header, name="X-Key"), credential_key="crm")
API_KEY = "key-40d1f6c2a9"


@pytest.fixture
def store() -> InMemoryCredentialService:
    """Return a store of credentials, shared by worker and client."""
    return InMemoryCredentialService()


def login(provider: FakeOAuth) -> AuthConfig:
    """Return the configuration of a tool that needs the user's login."""
    return AuthConfig(auth_scheme=provider.scheme(), raw_auth_credential=provider.client())


def fetched(provider: FakeOAuth, credential: AuthCredential) -> JsonObject:
    """Read the user's calendar over HTTP, with the token."""
    assert credential.oauth2 is not None
    headers = {"Authorization": f"Bearer {credential.oauth2.access_token}"}
    with urllib.request.urlopen(urllib.request.Request(f"{provider.url}/calendar", headers=headers)) as response:
        entries: JsonObject = json.load(response)
        return entries


def reader(provider: FakeOAuth, *replies: Any, **about: Any) -> tuple[Agent, ScriptedModel]:
    """Return an agent that reads calendars as in ADK's guide, and its model."""
    config = login(provider)

    def read_calendar(tool_context: ToolContext) -> JsonObject:
        """Read the user's calendar."""
        credential = tool_context.get_auth_response(config)
        if credential is None:
            tool_context.request_credential(config)
            return PENDING
        return fetched(provider, credential)

    model = ScriptedModel(*replies)
    return Agent(name="reader", model=model, tools=[FunctionTool(read_calendar)], **about), model


def keyed(*replies: Any) -> tuple[Agent, ScriptedModel]:
    """Return an agent whose tool needs an API key, and its model."""

    def look_up(tool_context: ToolContext) -> JsonObject:
        """Look something up."""
        credential = tool_context.get_auth_response(KEY)
        if credential is None:
            tool_context.request_credential(KEY)
            return PENDING
        return {"asked_with": f"X-Key: {credential.api_key}"}

    model = ScriptedModel(*replies)
    return Agent(name="clerk", model=model, tools=[FunctionTool(look_up)]), model


def auth_uri(call: PendingCall) -> str:
    """Return the address where the user logs in."""
    return str(call.payload["exchangedAuthCredential"]["oauth2"]["authUri"])


async def everything(invocation: Invocation) -> bytes:
    """Return everything that Temporal stores of an invocation: history, memo, search attributes, and what is derived
    from them.
    """
    history = await invocation.history()
    description = (await invocation.handle.describe()).raw_description
    told_outside = [event.to_json() async for event in invocation.events()]
    parts = [event.SerializeToString() for event in history.events]
    return b"".join([*parts, description.SerializeToString(), json.dumps(told_outside).encode()])


async def test_a_tool_waits_for_a_login_and_runs_again(
    serve: Serve, provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """The events have ADK's shapes; the model is called after the second run."""
    agent, model = reader(provider, calls(("read_calendar", {})), says("A dentist."))
    async with serve(agent, services=Services(credentials=store)) as env:
        invocation, call = await start_and_get_call(
            env.client.start("reader", "what is on?", id="login", user_id="ann"), "fc-1"
        )
        assert (call.kind, call.tool, call.user_id, call.interim) == ("credential", "read_calendar", "ann", PENDING)
        receipt = await invocation.authorize(store=store, auth_response_uri=provider.log_in(auth_uri(call)))
        assert receipt == {
            "accepted": True, "function_call_id": "fc-1", "tool": "read_calendar", "action": "approve"
        }  # fmt: skip
        assert (await invocation.result()).text == "A dentist."
        assert tool_responses(model.requests[-1]) == [{"events": ["dentist"]}]
        events = [event.to_json() async for event in invocation.events()]
        parts = [part for event in events for part in event["content"]["parts"]]
        names = [next(iter(part.values())).get("name") for part in parts if "text" not in part]
        assert names == [
            "read_calendar", "adk_request_credential", "read_calendar", "adk_request_credential", "read_calendar"
        ]  # fmt: skip
        requests = [part["functionCall"]["args"] for part in parts if "functionCall" in part]
        assert requests == [{}, {"functionCallId": "fc-1", "authConfig": call.payload}]


async def test_no_secret_is_stored_by_temporal_or_logged(
    serve: Serve, provider: FakeOAuth, store: InMemoryCredentialService, caplog: pytest.LogCaptureFixture
) -> None:
    """No client secret, code, verifier or token is in history, memo, search attributes, events or logs of any level."""
    caplog.set_level(logging.DEBUG)
    before, output = structlog.get_config(), io.StringIO()
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(file=output),
    )
    try:
        agent, _ = reader(provider, calls(("read_calendar", {})), calls(("read_calendar", {})), says("Done."))
        async with serve(agent, services=Services(credentials=store)) as env:
            provider.lifetime_s = 10  # so that the second call refreshes
            invocation, call = await start_and_get_call(
                env.client.start("reader", "what is on?", id="canaries", user_id="ann"), "fc-1"
            )
            while_waiting = await everything_now(invocation)
            await invocation.authorize(store=store, auth_response_uri=provider.log_in(auth_uri(call)))
            await invocation.result()
            kept = while_waiting + await everything(invocation)
    finally:
        structlog.configure(**before)
    assert provider.refreshes >= 1
    assert len(provider.secrets) >= 6
    assert b"dentist" in kept
    assert "credential.refreshed" in output.getvalue()
    for secret in provider.secrets:
        assert secret.encode() not in kept
        assert secret not in output.getvalue()
        assert secret not in caplog.text


async def everything_now(invocation: Invocation) -> bytes:
    """Return everything that Temporal stores of a waiting invocation, and the results of its queries."""
    description = (await invocation.handle.describe()).raw_description
    answers = [await invocation.handle.query(name) for name in ("pending", "state", "events")]
    parts = [event.SerializeToString() for event in (await invocation.history()).events]
    return b"".join([*parts, description.SerializeToString(), json.dumps(answers).encode()])


def all_files(folder: Path) -> list[bytes]:
    """Return the content of all files in a folder."""
    return [file.read_bytes() for file in folder.iterdir()]


async def test_no_secret_is_in_the_file_of_the_server(
    provider: FakeOAuth, store: InMemoryCredentialService, tmp_path: Path
) -> None:
    """No secret is in the database that Temporal writes during a login."""
    agent, _ = reader(provider, calls(("read_calendar", {})), says("A dentist."))
    async with (
        EmbeddedServer(db_filename=tmp_path / "temporal.db") as server,
        AgentEnvironment(agent, server=server, services=Services(credentials=store)) as env,
    ):
        invocation, call = await start_and_get_call(
            env.client.start("reader", "what is on?", id="on-disk", user_id="ann"), "fc-1"
        )
        await invocation.authorize(store=store, auth_response_uri=provider.log_in(auth_uri(call)))
        await invocation.result()
    written = b"".join(all_files(tmp_path))
    assert b"dentist" in written
    assert [secret for secret in provider.secrets if secret.encode() in written] == []


async def test_a_key_is_entered_and_kept_out_of_history(serve: Serve, store: InMemoryCredentialService) -> None:
    """The key stays out of the history, even if the tool returns it inside another text."""
    agent, model = keyed(calls(("look_up", {})), says("Done."))
    async with serve(agent, services=Services(credentials=store)) as env:
        invocation, call = await start_and_get_call(env.client.start("clerk", "look", id="by-hand"), "fc-1")
        assert call.payload == {
            "authScheme": {"type": "apiKey", "in": "header", "name": "X-Key"}, "credentialKey": "crm"
        }  # fmt: skip
        await invocation.authorize("fc-1", store=store, credential=API_KEY, by="ann")
        await invocation.result()
        assert tool_responses(model.requests[-1]) == [{"asked_with": "X-Key: <secret>"}]
        assert API_KEY.encode() not in await everything(invocation)


async def test_calls_with_the_same_needs_share_one_login(
    serve: Serve, provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """Calls of one batch and of two invocations share one login; the returning user need not name them."""
    two = calls(("read_calendar", {}), ("read_calendar", {}))
    agent, _ = reader(provider, two, calls(("read_calendar", {})), says("Done."), says("Done."))
    async with serve(agent, services=Services(credentials=store)) as env:
        first = await env.client.start("reader", "what is on?", id="shared-1", user_id="ann")
        (call, other) = await wait_for_calls(first, "fc-1", "fc-2")
        assert auth_uri(call) == auth_uri(other)
        second = await start_and_wait(env.client.start("reader", "what is on?", id="shared-2", user_id="ann"), "fc-1")
        receipts = await env.client.authorize(provider.log_in(auth_uri(call)), store=store)
        assert {receipt["accepted"] for receipt in receipts} == {True}
        assert [(await one.result()).status for one in (first, second)] == ["completed", "completed"]
        assert len(provider.token_requests) == 1


async def test_a_later_invocation_of_the_user_needs_no_login(
    serve: Serve, provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """Unlike in ADK, the credential outlives the invocation; another user is asked."""
    one = calls(("read_calendar", {}))
    agent, _ = reader(provider, one, says("A dentist."), one, says("A dentist still."), one)
    async with serve(agent, services=Services(credentials=store)) as env:
        first, call = await start_and_get_call(
            env.client.start("reader", "what is on?", id="once", user_id="ann"), "fc-1"
        )
        await first.authorize(store=store, auth_response_uri=provider.log_in(auth_uri(call)))
        await first.result()
        assert (await env.client.run("reader", "and now?", id="twice", user_id="ann")).text == "A dentist still."
        of_bob = await start_and_wait(env.client.start("reader", "what is on?", id="of-bob", user_id="bob"), "fc-1")
        await of_bob.cancel()


async def test_a_failed_login_leaves_the_call_pending(
    serve: Serve, provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """A login that failed can be repeated."""
    agent, _ = reader(provider, calls(("read_calendar", {})), says("A dentist."))
    async with serve(agent, services=Services(credentials=store)) as env:
        invocation, call = await start_and_get_call(env.client.start("reader", "what is on?", id="second-try"), "fc-1")
        with pytest.raises(AuthorizationFailed, match="access_denied"):
            await invocation.authorize(store=store, auth_response_uri=provider.log_in(auth_uri(call), consent=False))
        (still,) = await wait_for_calls(invocation, "fc-1")
        await invocation.authorize(store=store, auth_response_uri=provider.log_in(auth_uri(still)))
        assert (await invocation.result()).text == "A dentist."


async def test_worker_and_client_share_an_encrypted_file(serve: Serve, provider: FakeOAuth, tmp_path: Path) -> None:
    """Worker and client each have their own store for the same file, like separate processes."""
    path = tmp_path / "credentials"
    agent, _ = reader(provider, calls(("read_calendar", {})), says("A dentist."))
    async with serve(agent, services=Services(credentials=EncryptedFileCredentialService(path))) as env:
        invocation, call = await start_and_get_call(env.client.start("reader", "what is on?", id="by-file"), "fc-1")
        of_the_client = EncryptedFileCredentialService(path)
        await invocation.authorize(store=of_the_client, auth_response_uri=provider.log_in(auth_uri(call)))
        assert (await invocation.result()).text == "A dentist."


async def test_an_authenticated_tool_waits_by_itself(
    serve: Serve, provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """An authenticated tool calls its function only with a credential."""

    def read_calendar(credential: AuthCredential) -> JsonObject:
        """Read the user's calendar."""
        return fetched(provider, credential)

    model = ScriptedModel(calls(("read_calendar", {})), says("A dentist."))
    tool = AuthenticatedFunctionTool(read_calendar, auth_config=login(provider))
    async with serve(Agent(name="managed", model=model, tools=[tool]), services=Services(credentials=store)) as env:
        invocation, call = await start_and_get_call(env.client.start("managed", "what is on?", id="managed"), "fc-1")
        assert call.interim == {"result": "Pending User Authorization."}
        await invocation.authorize(store=store, auth_response_uri=provider.log_in(auth_uri(call)))
        assert (await invocation.result()).text == "A dentist."
        assert tool_responses(model.requests[-1]) == [{"events": ["dentist"]}]


async def test_a_called_agent_waits_for_a_login_of_the_same_user(
    serve: Serve, provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """A called agent waits in its own invocation, whose ID the returning user need not know."""
    agent, _ = reader(provider, calls(("read_calendar", {})), says("A dentist."), description="Reads calendars.")
    model = ScriptedModel(calls(("reader", {"request": "what is on?"})), says("You see a dentist."))
    boss = Agent(name="boss", model=model, tools=[AgentTool(agent)])
    async with serve(boss, services=Services(credentials=store)) as env:
        invocation = await env.client.start("boss", "what is on?", id="delegated", user_id="ann")

        async def look() -> list[PendingCall]:
            return [call for call in await env.client.approvals.pending() if call.invocation_id == "delegated/fc-1"]

        (call,) = await wait_until(look, "a call that waits in the called agent")
        assert (call.user_id, call.agent) == ("ann", "reader")
        (receipt,) = await env.client.authorize(provider.log_in(auth_uri(call)), store=store)
        assert receipt["accepted"]
        assert (await invocation.result()).text == "You see a dentist."


async def test_a_tool_without_a_service_is_answered(serve: Serve) -> None:
    """The model receives ADK's error, and the call does not hang."""
    agent, model = keyed(calls(("look_up", {})), says("No."))
    async with serve(agent, services=Services()) as env:
        await env.client.run("clerk", "look", id="no-service")
        assert tool_responses(model.requests[-1]) == [
            {"error": "Credential service is not initialized.", "error_type": "ValueError"}
        ]


def test_the_calendar_is_really_protected(provider: FakeOAuth) -> None:
    """The calendar refuses requests without a token, so the other tests prove something."""
    with pytest.raises(urllib.error.HTTPError, match="401") as caught:
        urllib.request.urlopen(f"{provider.url}/calendar")
    caught.value.close()


PAY = calls(("pay", {"amount": 5}))


class Store(InMemoryCredentialService):
    """A store that is unavailable until it is back. A request fails after `patience_s`."""

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self._patience_s, self.is_back = patience_s, threading.Event()
        self.is_back.set()

    def read(self, place: Place) -> str | None:
        """Return the value stored at a place."""
        if not self.is_back.wait(self._patience_s):
            raise CredentialStoreError("The credential store is away.")
        return super().read(place)


def pay(amount: int, credential: AuthCredential) -> JsonObject:
    """Pay."""
    return {"paid": amount, "key": credential.api_key == "k"}


def read_and_pay(amount: int, tool_context: ToolContext) -> JsonObject:
    """Pay."""
    return pay(amount, cast("AuthCredential", tool_context.get_auth_response(KEY)))


PAYING = {
    "runs once": AuthenticatedFunctionTool(pay, auth_config=KEY, require_confirmation=True),
    "reads its credential": FunctionTool(read_and_pay, name="pay", require_confirmation=True, effect="repeatable"),
    "has little time": AuthenticatedFunctionTool(
        pay, auth_config=KEY, require_confirmation=True, timeout=timedelta(seconds=0.2)
    ),
}


@pytest.mark.parametrize(
    ("kind", "patience_s"), [("runs once", 0.0), ("reads its credential", 0.0), ("has little time", LIMIT_S)]
)
async def test_an_approved_call_waits_for_its_credential(serve: Serve, kind: str, patience_s: float) -> None:
    """The call is held, also over several attempts, and then runs without another answer."""
    store, model = Store(patience_s), ScriptedModel(PAY, says("Paid."))
    agent = Agent(name="agent", model=model, tools=[PAYING[kind]])
    store.keep(Bucket("waystation", "ann", "crm"), AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="k"))
    async with serve(agent, services=Services(credentials=store), settings=QUICK_SETTINGS) as env:
        invocation = await start_and_wait(env.client.start("agent", "go", user_id="ann"), "fc-1")
        store.is_back.clear()
        await invocation.approve("fc-1")
        hold = await wait_for_hold(invocation)
        assert (hold["reason"], hold["function_call_id"]) == ("store_failed", "fc-1")
        assert "The credential for `pay` cannot be read: " in hold["message"]

        async def is_repeated() -> bool:
            retries, _ = await fetch_retries(env.temporal, invocation.id)
            return any(retry.failed >= 2 for retry in retries)

        await wait_until(is_repeated, "several attempts at the held call")
        store.is_back.set()
        assert (await invocation.result()).text == "Paid."
    assert tool_responses(model.requests[-1]) == [{"paid": 5, "key": True}]
