"""Tools that receive a credential before they run, and their records."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from examples.calendar_login.provider import FakeOAuth
from tests.unit.tools.logins import auth_uri, calling, logged_in, login, requested_config
from waystation.auth import (
    AuthConfig,
    AuthCredential,
    AuthCredentialTypes,
    BaseCredentialService,
    CustomAuthScheme,
    HttpAuth,
    HTTPBearer,
    HttpCredentials,
    OAuth2Auth,
    ServiceAccount,
    ServiceAccountCredential,
    complete_authorization,
)
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.core.errors import AuthorizationFailed, InvalidTool
from waystation.core.payload import JsonObject
from waystation.core.secrets import HIDDEN
from waystation.tools.authenticated_function_tool import AuthenticatedFunctionTool
from waystation.tools.base_authenticated_tool import BaseAuthenticatedTool
from waystation.tools.base_tool import BaseTool
from waystation.tools.outcome import create_failure_outcome, create_outcome
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext

if TYPE_CHECKING:
    from waystation.auth import AuthCredential as Unresolvable

CANARY = "canary-92ce4d"
BEARER = AuthConfig(auth_scheme=HTTPBearer())


def bearer(token: str = CANARY) -> AuthCredential:
    """Return a bearer token as a credential."""
    held = HttpAuth(scheme="bearer", credentials=HttpCredentials(token=token))
    return AuthCredential(auth_type=AuthCredentialTypes.HTTP, http=held)


def complete(token: str = CANARY) -> AuthConfig:
    """Return a configuration that needs no login."""
    return AuthConfig(auth_scheme=HTTPBearer(), raw_auth_credential=bearer(token))


def read_calendar(day: str, credential: AuthCredential) -> str:
    """Read a calendar.

    Args:
        day: Which day.
        credential: Whose calendar.
    """
    return f"{day}: {token_of(credential) is not None}"


def token_of(credential: AuthCredential | None) -> str | None:
    """Return the token of a credential."""
    if credential is None:
        return None
    if credential.oauth2 is not None:
        return credential.oauth2.access_token
    return credential.http.credentials.token if credential.http is not None else None


async def run_call(tool: BaseTool, context: ToolContext, **args: Any) -> Any:
    """Run a tool as a call does."""
    return await tool.run_async(args=args, tool_context=context)


def test_the_model_does_not_see_the_credential() -> None:
    """The schema and the docstring that the model sees omit the credential."""
    declared = AuthenticatedFunctionTool(read_calendar, auth_config=BEARER)._get_declaration()
    assert declared is not None
    assert list(declared["parametersJsonSchema"]["properties"]) == ["day"]
    assert declared["parametersJsonSchema"]["required"] == ["day"]


def test_the_annotation_of_the_credential_need_not_be_importable() -> None:
    """The annotation may be unresolvable, because many authors import it for type checkers only."""

    def tool(day: str, credential: "Unresolvable") -> str:
        """Read."""
        return day

    assert AuthenticatedFunctionTool(tool, auth_config=BEARER)._get_declaration() is not None


async def test_a_complete_credential_is_used_directly() -> None:
    """A complete credential needs neither a store nor a login."""
    tool = AuthenticatedFunctionTool(read_calendar, auth_config=complete())
    context = ToolContext(function_call_id="fc-1")
    assert await run_call(tool, context, day="monday") == "monday: True"
    assert context.recorded_actions().requested_auth_configs == {}


async def test_a_user_logs_in_and_then_the_function_runs(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """The model receives ADK's text until the user has logged in, and then the function runs."""
    tool = AuthenticatedFunctionTool(read_calendar, auth_config=login(provider))
    context = calling(store)
    assert await run_call(tool, context, day="monday") == "Pending User Authorization."
    await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(context)))
    second_context = calling(store)
    assert await run_call(tool, second_context, day="monday") == "monday: True"
    assert second_context.recorded_actions().requested_auth_configs == {}


@pytest.mark.parametrize("text", ["Wait.", {"wait": True}])
async def test_the_interim_response_can_be_chosen(store: InMemoryCredentialService, text: Any) -> None:
    """The interim response can be any text or object."""
    tool = AuthenticatedFunctionTool(read_calendar, auth_config=BEARER, response_for_auth_required=text)
    assert await run_call(tool, calling(store), day="monday") == text


async def test_a_call_that_cannot_run_requests_no_login(store: InMemoryCredentialService) -> None:
    """A call with a missing argument requests no login; the model receives the error."""
    context = calling(store)
    answer = await run_call(AuthenticatedFunctionTool(read_calendar, auth_config=BEARER), context)
    assert "mandatory input parameters are not present" in answer["error"]
    assert context.recorded_actions().requested_auth_configs == {}


async def test_a_function_need_not_take_the_credential(store: InMemoryCredentialService) -> None:
    """A function without the parameter only waits for the login, and may take the context."""

    async def both(day: str, tool_context: ToolContext, credential: AuthCredential | None = None) -> str:
        """Read."""
        return f"{tool_context.function_call_id} {token_of(credential)}"

    def neither(day: str) -> str:
        """Read."""
        return day

    assert await run_call(AuthenticatedFunctionTool(neither, auth_config=complete()), calling(store), day="x") == "x"
    assert (
        await run_call(AuthenticatedFunctionTool(both, auth_config=complete()), calling(store), day="x")
        == f"fc-1 {CANARY}"
    )


async def test_a_tool_without_a_configuration_runs_without_a_credential() -> None:
    """The parameter may have a default, as in ADK."""

    def tool(credential: AuthCredential | None = None) -> str:
        """Return the received credential."""
        return str(credential)

    assert await run_call(AuthenticatedFunctionTool(tool), ToolContext(function_call_id="fc-1")) == "None"


async def test_a_custom_tool_receives_the_credential(store: InMemoryCredentialService) -> None:
    """A custom tool requests the login and receives the credential in the same way."""

    class Reader(BaseAuthenticatedTool):
        async def _run_async_impl(
            self, *, args: JsonObject, tool_context: ToolContext, credential: AuthCredential | None
        ) -> Any:
            return [args, token_of(credential)]

    asking, ready = (Reader(name="read", description="Reads.", auth_config=config) for config in (BEARER, complete()))
    context = calling(store)
    assert await run_call(asking, context, a=1) == "Pending User Authorization."
    assert list(requested_config(context)) == ["authScheme", "credentialKey"]
    assert await run_call(ready, calling(store), a=1) == [{"a": 1}, CANARY]


async def test_a_custom_tool_without_its_method_raises() -> None:
    """The error names the method that the tool lacks."""
    tool = BaseAuthenticatedTool(name="read", description="Reads.")
    with pytest.raises(NotImplementedError, match="_run_async_impl"):
        await run_call(tool, ToolContext())


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (AuthConfig(auth_scheme=FakeOAuth.scheme_at("https://a")), "raw_auth_credential is required"),
        (
            AuthConfig(
                auth_scheme=FakeOAuth.scheme_at("https://a"),
                raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.OAUTH2),
            ),
            "oauth2 required for credential type oauth2",
        ),
        (AuthConfig(auth_scheme=CustomAuthScheme(type_="kerberos")), "'kerberos' is not an OpenAPI scheme"),
        ("google", "`auth_config` is a str; use an AuthConfig"),
    ],
)
def test_an_unusable_configuration_is_refused_when_the_tool_is_created(config: Any, problem: str) -> None:
    """The problem is also reported by `waystation worker check`."""
    with pytest.raises(InvalidTool, match=problem):
        AuthenticatedFunctionTool(read_calendar, auth_config=config)


async def test_parallel_calls_fetch_a_clients_token_once(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """Parallel calls fetch the token once, and use it until it expires."""
    config = AuthConfig(auth_scheme=provider.own_scheme(), raw_auth_credential=provider.client(audience="api"))
    tool = AuthenticatedFunctionTool(read_calendar, auth_config=config)
    calls = [run_call(tool, calling(store, f"fc-{number}"), day="x") for number in range(5)]
    assert await asyncio.gather(*calls) == ["x: True"] * 5
    (form,) = provider.token_requests
    assert form == {"grant_type": "client_credentials", "scope": "jobs.run", "audience": "api"}


async def test_a_client_fetches_its_own_token_without_a_store(provider: FakeOAuth) -> None:
    """A client's own token needs no store, because nobody logs in."""
    config = AuthConfig(auth_scheme=provider.own_scheme(), raw_auth_credential=provider.client())
    tool = AuthenticatedFunctionTool(read_calendar, auth_config=config)
    assert await run_call(tool, ToolContext(function_call_id="fc-1"), day="x") == "x: True"


async def test_a_token_in_the_configuration_is_used_until_it_expires(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """The token is used until it expires, and then a login is requested."""
    for seconds, answer in ((600, "x: True"), (-600, "Pending User Authorization.")):
        config = login(provider, access_token=CANARY, expires_at=int(time.time()) + seconds)
        tool = AuthenticatedFunctionTool(read_calendar, auth_config=config)
        assert await run_call(tool, calling(store), day="x") == answer


def account(token_uri: str) -> ServiceAccount:
    """Return a service account whose tokens come from `token_uri`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    held = ServiceAccountCredential(
        type_="service_account",
        project_id="p",
        private_key_id=CANARY,
        private_key=pem.decode(),
        client_email="robot@p.example",
        client_id="1",
        auth_uri="https://a",
        token_uri=token_uri,
        auth_provider_x509_cert_url="https://a",
        client_x509_cert_url="https://a",
        universe_domain="googleapis.com",
    )
    return ServiceAccount(service_account_credential=held, scopes=["https://a/scope"])


async def test_a_service_account_gets_a_bearer_token(provider: FakeOAuth) -> None:
    """The token is fetched once for many calls."""
    raw = AuthCredential(
        auth_type=AuthCredentialTypes.SERVICE_ACCOUNT, service_account=account(f"{provider.url}/token")
    )
    config = AuthConfig(auth_scheme=HTTPBearer(), raw_auth_credential=raw)
    tool = AuthenticatedFunctionTool(read_calendar, auth_config=config)
    calls = [run_call(tool, ToolContext(function_call_id=f"fc-{number}"), day="x") for number in range(3)]
    assert await asyncio.gather(*calls) == ["x: True"] * 3
    assert len(provider.token_requests) == 1


async def test_the_error_of_a_refused_service_account_omits_its_key(provider: FakeOAuth) -> None:
    """The error contains only the address of the account, and not its key."""
    provider.down = True
    service_account = account(f"{provider.url}/nowhere")
    raw = AuthCredential(auth_type=AuthCredentialTypes.SERVICE_ACCOUNT, service_account=service_account)
    config = AuthConfig(auth_scheme=HTTPBearer(), raw_auth_credential=raw)
    tool = AuthenticatedFunctionTool(read_calendar, auth_config=config)
    with pytest.raises(AuthorizationFailed, match=r"not issue a token for robot@p\.example") as caught:
        await run_call(tool, ToolContext(function_call_id="fc-1"), day="x")
    assert "PRIVATE" not in str(caught.value)
    assert CANARY not in str(caught.value)


async def test_an_asynchronous_service_for_adk_can_be_used(provider: FakeOAuth) -> None:
    """An asynchronous service can load and save credentials; logins need a store, and the error says so."""

    class Service(BaseCredentialService):
        def __init__(self) -> None:
            self.kept: dict[str, AuthCredential | None] = {}

        async def load_credential(self, auth_config: AuthConfig, callback_context: Any) -> AuthCredential | None:
            return self.kept.get(f"{callback_context.user_id} {auth_config.credential_key}")

        async def save_credential(self, auth_config: AuthConfig, callback_context: Any) -> None:
            self.kept[f"{callback_context.user_id} {auth_config.key}"] = auth_config.exchanged_auth_credential

    context = ToolContext(function_call_id="fc-1", user_id="ann", services=Services(credentials=Service()))
    config = BEARER.model_copy(update={"exchanged_auth_credential": bearer()})
    await context.save_credential(config)
    assert await context.load_credential(BEARER) == bearer()
    assert await run_call(AuthenticatedFunctionTool(read_calendar, auth_config=BEARER), context, day="x") == "x: True"
    with pytest.raises(ValueError, match="needs a CredentialStore, but the worker has a Service"):
        context.request_credential(BEARER)


@pytest.mark.parametrize(
    ("make", "response"),
    [
        (lambda token: {"header": f"Bearer {token}"}, {"header": f"Bearer {HIDDEN}"}),
        (lambda token: f"https://x/?key={token}&a=1", {"result": f"https://x/?key={HIDDEN}&a=1"}),
        (lambda token: [{token + "": [str(token)]}], {"result": [{HIDDEN: [HIDDEN]}]}),
    ],
)
async def test_credentials_are_removed_from_results(
    store: InMemoryCredentialService, make: Callable[[str], Any], response: JsonObject
) -> None:
    """The model and the history receive a placeholder, wherever the credential was in the result."""
    context = await context_with_token(store)
    token = token_of(context.get_auth_response(BEARER))
    assert token is not None
    assert create_outcome(make(token), context=context).response == response


async def context_with_token(store: InMemoryCredentialService) -> ToolContext:
    """Return the context of a call whose user has provided a bearer token."""
    calling(store).request_credential(BEARER)
    await store.authorize(credential=CANARY, call=("inv", "fc-1"))
    return calling(store)


async def test_credentials_are_removed_from_errors(store: InMemoryCredentialService) -> None:
    """Credentials are removed from errors, because HTTP libraries quote addresses and headers."""
    context = await context_with_token(store)
    token = token_of(context.get_auth_response(BEARER))
    outcome = create_failure_outcome(RuntimeError(f"401 for https://x/?key={token}"), context=context)
    assert outcome.response == {"error": f"401 for https://x/?key={HIDDEN}", "error_type": "RuntimeError"}


async def test_a_returned_credential_shows_only_its_type(store: InMemoryCredentialService) -> None:
    """The response contains no secret."""
    context = await context_with_token(store)
    outcome = create_outcome(context.get_auth_response(BEARER), context=context)
    assert outcome.response is not None
    assert outcome.response["result"]["auth_type"] == "http"
    assert CANARY not in json.dumps(outcome.response)


async def test_a_secret_in_state_is_refused(store: InMemoryCredentialService) -> None:
    """A part of a credential is refused at the write, and another secret when the call is recorded."""
    context = await context_with_token(store)
    token = token_of(context.get_auth_response(BEARER))
    context.state["cache"] = {"header": f"Bearer {token}"}
    outcome = create_outcome("done", context=context)
    assert outcome.actions is None
    assert outcome.response is not None
    assert outcome.response["error"].startswith(
        "The tool ran, but none of its state changes and actions were saved: the value is partly a credential"
    )
    other = await context_with_token(InMemoryCredentialService())
    part = other.get_auth_response(BEARER)
    with pytest.raises(Exception, match="part of a credential"):
        other.state["token"] = token_of(part)


async def test_a_request_is_recorded_as_json_without_secrets(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """The outcome of the first run enters the history."""
    context = calling(store)
    context.request_credential(login(provider))
    data = create_outcome({"pending": True}, context=context).encode().decode()
    assert "authUri" in data
    provider.log_in(auth_uri(context))
    assert not any(secret in data for secret in provider.secrets)
    kept = json.loads(store.read(("login", "waystation", "ann", login(provider).key)) or "")
    assert kept["config"]["exchangedAuthCredential"]["oauth2"]["codeVerifier"] not in data


async def test_tokens_saved_by_a_program_are_used(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """Tokens of a program's own login are used."""
    await logged_in(provider, store, login(provider))
    tokens = calling(store).get_auth_response(login(provider))
    other = InMemoryCredentialService()
    await calling(other).save_credential(login(provider).model_copy(update={"exchanged_auth_credential": tokens}))
    credential = await calling(other).load_credential(login(provider))
    assert isinstance(credential and credential.oauth2, OAuth2Auth)
    assert token_of(credential) == token_of(tokens)
