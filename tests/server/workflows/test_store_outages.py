"""A store that is away for a moment costs neither a person's answer nor the result of a call."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.workflows.outside import QUICK, held, told, until, waiting
from waystation.agents import Agent
from waystation.auth import APIKey, APIKeyIn, AuthConfig, AuthCredential, AuthCredentialTypes, Bucket
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.auth.credential_store import Place
from waystation.core import CredentialStoreError, JsonObject
from waystation.history import fetch_retries
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.authenticated_function_tool import AuthenticatedFunctionTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext

KEY = AuthConfig(auth_scheme=APIKey(in_=APIKeyIn.header, name="X-Key"), credential_key="bank")
PAY = calls(("pay", {"amount": 5}))


class Store(InMemoryCredentialService):
    """A store that does not answer, or answers with an error, until it is back."""

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__()
        self._hangs, self.is_back = hangs, threading.Event()
        self.is_back.set()

    def read(self, place: Place) -> str | None:
        """Return the value stored at a place."""
        if self._hangs:
            self.is_back.wait()
        if not self.is_back.is_set():
            raise CredentialStoreError("The credential store is away.")
        return super().read(place)


class Bank:
    """What was paid, with which key."""

    def __init__(self) -> None:
        self.paid: list[tuple[int, str | None]] = []

    def pay(self, amount: int, credential: AuthCredential) -> JsonObject:
        """Pay with the user's key."""
        self.paid.append((amount, credential.api_key))
        return {"paid": amount}

    def read_and_pay(self, amount: int, tool_context: ToolContext) -> JsonObject:
        """Read the user's key, and pay."""
        credential = tool_context.get_auth_response(KEY)
        assert credential is not None
        return self.pay(amount, credential)


def authenticated(bank: Bank, **options: Any) -> FunctionTool:
    """Return a tool whose credential Waystation reads. It runs at most once."""
    return AuthenticatedFunctionTool(bank.pay, auth_config=KEY, require_confirmation=True, **options)


def reading(bank: Bank) -> FunctionTool:
    """Return a tool that reads its credential itself, and may be repeated."""
    return FunctionTool(bank.read_and_pay, name="pay", require_confirmation=True, effect="repeatable")


def stopped_early(bank: Bank) -> FunctionTool:
    """Return a tool with less time than the store takes."""
    return authenticated(bank, timeout=timedelta(seconds=0.2))


@pytest.mark.parametrize(("create", "hangs"), [(authenticated, False), (reading, False), (stopped_early, True)])
async def test_an_approved_call_waits_for_its_credential(
    serve: Serve, create: Callable[[Bank], FunctionTool], hangs: bool
) -> None:
    """The call is held, also over several attempts, and then runs once without another answer."""
    bank, store, model = Bank(), Store(hangs=hangs), ScriptedModel(PAY, says("Paid."))
    agent = Agent(name="agent", model=model, tools=[create(bank)])
    store.keep(Bucket("waystation", "ann", "bank"), AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="k"))
    async with serve(agent, services=Services(credentials=store), settings=QUICK) as env:
        invocation = await env.client.start("agent", "go", user_id="ann")
        await waiting(invocation, "fc-1")
        store.is_back.clear()
        await invocation.approve("fc-1")
        hold = await held(invocation)
        assert (hold["reason"], hold["function_call_id"]) == ("store_failed", "fc-1")
        assert "The credential for `pay` cannot be read: " in hold["message"]

        async def is_repeated() -> bool:
            retries, _ = await fetch_retries(env.temporal, invocation.id)
            return any(retry.failed >= 2 for retry in retries)

        await until(is_repeated, "several attempts at the held call")
        store.is_back.set()
        assert (await invocation.result()).text == "Paid."
    assert (bank.paid, told(model.requests[-1])) == ([(5, "k")], [{"paid": 5}])
