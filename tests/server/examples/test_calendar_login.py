"""The calendar: a call waits for a login, and no secret of it is ever recorded."""

from collections.abc import Iterator
from importlib import import_module

import pytest

from examples.calendar_login.provider import FakeOAuth
from tests.server.conftest import Serve
from tests.server.examples.conftest import answered
from tests.steps import wait_for_calls
from waystation.apps.registry import Registry, Root
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.client.agent_client import Invocation
from waystation.models import BaseLlm
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.authenticated_function_tool import AuthenticatedFunctionTool
from waystation.tools.services import Services

AGENT = "calendar_agent"


@pytest.fixture
def root(examples: Registry) -> Root:
    """The package."""
    return examples.roots[AGENT]


@pytest.fixture
def provider(root: Root, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOAuth]:
    """Run the calendar, whose address the example receives."""
    module = import_module("calendar_login.agent")
    with FakeOAuth(client_id=module.CLIENT_ID, client_secret=module.CLIENT_SECRET) as provider:
        tool = AuthenticatedFunctionTool(module.list_events, auth_config=module.login_at(provider.url))
        monkeypatch.setattr(module, "URL", provider.url)
        monkeypatch.setattr(root.agent, "tools", [tool])
        yield provider


@pytest.fixture
def demo_model(root: Root) -> BaseLlm:
    """Return the demo model of the package."""
    assert root.demo_model is not None
    return root.demo_model


async def login_page(invocation: Invocation) -> str:
    """Return the address where the user logs in."""
    (call,) = await wait_for_calls(invocation, "fc-1")
    assert (call.kind, call.tool) == ("credential", "list_events")
    uri: str = (call.payload or {})["exchangedAuthCredential"]["oauth2"]["authUri"]
    return uri


@pytest.mark.slow
async def test_the_function_runs_after_the_login(serve: Serve, root: Root, provider: FakeOAuth) -> None:
    """The next invocation of the user needs no login, and histories contain nothing that opens the calendar."""
    model = ScriptedModel(
        calls(("list_events", {})), says("The dentist."), calls(("list_events", {})), says("Still the dentist.")
    )
    store = InMemoryCredentialService()
    async with serve(root.agent, model=model, services=Services(credentials=store)) as env:
        first = await env.client.start(AGENT, "What is on today?", user_id="ada")
        ended_at = provider.log_in(await login_page(first))
        await first.authorize(store=store, auth_response_uri=ended_at)
        assert (await first.result()).text == "The dentist."
        second = await env.client.start(AGENT, "And now?", user_id="ada")
        assert (await second.result()).text == "Still the dentist."
        events = [event async for event in first.events()]
        histories = [await first.history(), await second.history()]
        recorded = b"".join(event.SerializeToString() for history in histories for event in history.events)
    assert answered(events)[-1] == {"events": ["dentist"]}
    assert model.requests[0].tools[0].get("parametersJsonSchema", {}).get("properties", {}) == {}
    assert len(provider.secrets) >= 4  # the client's, the code, the verifier, the token
    assert [secret for secret in provider.secrets if secret.encode() in recorded] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("logs_in", "text"),
    [
        (True, "In the calendar: dentist."),
        (False, "I cannot read the calendar. This tool call is rejected. not today"),
    ],
    ids=["logged in", "refused"],
)
async def test_the_demo_model_reports_the_outcome(
    serve: Serve, root: Root, demo_model: BaseLlm, provider: FakeOAuth, logs_in: bool, text: str
) -> None:
    """The demo model also names itself."""
    store = InMemoryCredentialService()
    async with serve(root.agent, model=demo_model, services=Services(credentials=store)) as env:
        invocation = await env.client.start(AGENT, "What is on today?")
        page = await login_page(invocation)
        if logs_in:
            await invocation.authorize(store=store, auth_response_uri=provider.log_in(page))
        else:
            await invocation.reject("fc-1", comment="not today")
        assert (await invocation.result()).text == f"[demo model] {text}"
