"""A store that is away for a moment costs neither a person's answer nor the result of a call."""

import threading
from datetime import timedelta

import pytest

from tests.server.conftest import Serve
from tests.server.workflows.outside import LIMIT_S, QUICK, held, told, until, waiting
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
    """A store that is away until it is back. A request then fails after `patience_s`."""

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self._patience_s, self.is_back = patience_s, threading.Event()
        self.is_back.set()

    def read(self, place: Place) -> str | None:
        """Return the value stored at a place."""
        if not self.is_back.wait(self._patience_s):
            raise CredentialStoreError("The credential store is away.")
        return super().read(place)


def create_tool(kind: str, paid: list[int]) -> FunctionTool:
    """Return a tool that pays with the user's key. Only a tool that reads its credential itself may be repeated."""

    def pay(amount: int, credential: AuthCredential) -> JsonObject:
        """Pay."""
        assert credential.api_key == "k"
        paid.append(amount)
        return {"paid": amount}

    def read_and_pay(amount: int, tool_context: ToolContext) -> JsonObject:
        """Pay."""
        credential = tool_context.get_auth_response(KEY)
        assert credential is not None
        return pay(amount, credential)

    if kind == "reads its credential":
        return FunctionTool(read_and_pay, name="pay", require_confirmation=True, effect="repeatable")
    timeout = timedelta(seconds=0.2) if kind == "has little time" else None
    return AuthenticatedFunctionTool(pay, auth_config=KEY, require_confirmation=True, timeout=timeout)


@pytest.mark.parametrize(
    ("kind", "patience_s"), [("runs once", 0.0), ("reads its credential", 0.0), ("has little time", LIMIT_S)]
)
async def test_an_approved_call_waits_for_its_credential(serve: Serve, kind: str, patience_s: float) -> None:
    """The call is held, also over several attempts, and then runs once without another answer."""
    paid, store, model = list[int](), Store(patience_s), ScriptedModel(PAY, says("Paid."))
    agent = Agent(name="agent", model=model, tools=[create_tool(kind, paid)])
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
    assert (paid, told(model.requests[-1])) == ([5], [{"paid": 5}])
