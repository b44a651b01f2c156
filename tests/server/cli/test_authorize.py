"""`waystation authorize`: log in or enter a key for a call that waits for a credential."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.calendar_login.provider import FakeOAuth
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from tests.steps import reject_and_finish, start_and_get_call, start_and_wait, wait_for_calls, wait_until
from waystation.agents import Agent
from waystation.auth import APIKey, APIKeyIn, AuthConfig, AuthScheme, HTTPBase
from waystation.auth.credential_service.encrypted_file_credential_service import EncryptedFileCredentialService
from waystation.cli import pending_calls
from waystation.core.payload import JsonObject
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext
from waystation.worker.main import parse_options

KEY = APIKey(in_=APIKeyIn.header, name="X-Key")
API_KEY = "key-9d0b81aa5e"


@pytest.fixture
def credential_file(tmp_path: Path) -> Path:
    """Return the file of the workers' credential store."""
    return tmp_path / "credentials"


def clerk(config: AuthConfig, *replies: JsonObject) -> Agent:
    """Return an agent whose tool needs a credential."""

    def look_up(what: str, tool_context: ToolContext) -> str:
        """Look something up."""
        if tool_context.get_auth_response(config) is None:
            tool_context.request_credential(config)
        return what

    once = calls(("look_up", {"what": "it"}))
    return Agent(name="clerk", model=ScriptedModel(once, says("Done.")), tools=[FunctionTool(look_up)])


def services(kept: Path) -> Services:
    """Return the services of a worker with that store."""
    return Services(credentials=EncryptedFileCredentialService(kept))


async def authorize(env: AgentEnvironment, kept: Path, line: str, *arguments: str) -> tuple[int, str, str]:
    """Run the command as a separate program, with a line on standard input."""
    options = ("--address", env.server.address, "--credentials", str(kept))
    command = [sys.executable, "-m", "waystation.cli", "authorize", *arguments, *options]
    ran = await asyncio.to_thread(
        subprocess.run, command, input=f"{line}\n", capture_output=True, text=True, timeout=60
    )
    return ran.returncode, ran.stdout, ran.stderr


async def test_a_user_logs_in_and_the_call_continues(serve: Serve, provider: FakeOAuth, credential_file: Path) -> None:
    """The command shows the link, and reads the address of the last page without showing it."""
    config = AuthConfig(auth_scheme=provider.scheme(), raw_auth_credential=provider.client())
    async with serve(clerk(config), services=services(credential_file)) as env:
        invocation, call = await start_and_get_call(env.client.start("clerk", "look"), "fc-1")
        uri = call.payload["exchangedAuthCredential"]["oauth2"]["authUri"]
        ended_at = provider.log_in(uri)
        code, out, err = await authorize(env, credential_file, ended_at, invocation.id)
        assert (code, out) == (0, f'authorized look_up(what="it") [fc-1] of {invocation.id}\n')
        assert uri in err
        assert ended_at not in out + err
        assert (await invocation.result()).text == "Done."


async def test_a_pending_login_shows_its_link_and_command(
    serve: Serve, waystation: Command, provider: FakeOAuth
) -> None:
    """The link and the command are on lines of their own, each after a label."""
    config = AuthConfig(auth_scheme=provider.scheme(), raw_auth_credential=provider.client())
    async with serve(clerk(config)) as env:
        invocation = await start_and_wait(env.client.start("clerk", "look"), "fc-1")
        ran = await waystation(env, "pending", invocation.id)
        labels = {line.split()[0]: line.split()[1:] for line in ran.out.splitlines() if line.startswith("  ")}
        assert labels["authorize"][0].endswith("waystation")
        assert labels["log"][1].startswith(f"{provider.url}/authorize?")


async def test_approving_a_credential_call_shows_how_to_store_the_credential(
    serve: Serve, waystation: Command, credential_file: Path
) -> None:
    """After an approval, the tool runs and asks again unless the store has the credential."""
    async with serve(clerk(AuthConfig(auth_scheme=KEY)), services=services(credential_file)) as env:
        invocation = await start_and_wait(env.client.start("clerk", "look"), "fc-1")
        ran = await waystation(env, "approve", invocation.id)
        assert "If the workers' store still has no credential, the tool asks again" in ran.out
        assert f"authorize {invocation.id} fc-1" in ran.out
        await wait_for_calls(invocation, "fc-1")
        await invocation.cancel()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "text"),
    [(KEY, API_KEY), (HTTPBase(scheme="basic"), f"ann:{API_KEY}"), (HTTPBase(scheme="bearer"), API_KEY)],
)
async def test_a_key_is_saved_only_in_the_store(
    serve: Serve, credential_file: Path, scheme: AuthScheme, text: str
) -> None:
    """With `--json`, standard output contains only the receipt."""
    async with serve(clerk(AuthConfig(auth_scheme=scheme)), services=services(credential_file)) as env:
        invocation = await start_and_wait(env.client.start("clerk", "look"), "fc-1")
        code, out, err = await authorize(env, credential_file, text, invocation.id, "fc-1", "--json", "--by", "ann")
        assert code == 0
        receipt = {"accepted": True, "function_call_id": "fc-1", "tool": "look_up", "action": "approve"}
        assert json.loads(out) == receipt
        await invocation.result()
        history = b"".join(event.SerializeToString() for event in (await invocation.history()).events)
        for place in (out.encode(), err.encode(), history, await asyncio.to_thread(credential_file.read_bytes)):
            assert API_KEY.encode() not in place


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "arguments", "exit", "problem"),
    [
        ("", (), 2, "No credential was entered"),
        (API_KEY, (), 2, "user:password"),
        ("ann:x", ("fc-9",), 6, "Call 'fc-9' is not waiting for a credential"),
    ],
)
async def test_invalid_credentials_are_reported_in_one_line(
    serve: Serve, credential_file: Path, text: str, arguments: tuple[str, ...], exit: int, problem: str
) -> None:
    """The call still waits, and the message does not contain the input."""
    async with serve(
        clerk(AuthConfig(auth_scheme=HTTPBase(scheme="basic"))), services=services(credential_file)
    ) as env:
        invocation = await start_and_wait(env.client.start("clerk", "look"), "fc-1")
        code, out, err = await authorize(env, credential_file, text, invocation.id, *arguments)
        assert (code, out) == (exit, "")
        assert problem in err
        assert API_KEY not in err
        await wait_for_calls(invocation, "fc-1")
        await reject_and_finish(invocation, "fc-1")


@pytest.mark.slow
async def test_a_store_other_than_the_workers_is_reported(serve: Serve, credential_file: Path, tmp_path: Path) -> None:
    """The command reports a different store, because the tool would not find the credential."""
    async with serve(clerk(AuthConfig(auth_scheme=KEY)), services=services(credential_file)) as env:
        invocation = await start_and_wait(env.client.start("clerk", "look"), "fc-1")
        code, _, err = await authorize(env, tmp_path / "other", API_KEY, invocation.id)
        assert code == 1
        assert "Use the same store as the workers." in err
        await reject_and_finish(invocation, "fc-1")


async def test_calls_that_wait_for_a_credential_are_listed_with_their_command(
    serve: Serve, waystation: Command, provider: FakeOAuth, credential_file: Path
) -> None:
    """Both lists and the events show where to log in and the command that continues."""
    config = AuthConfig(auth_scheme=provider.scheme(), raw_auth_credential=provider.client())
    async with serve(clerk(config), services=services(credential_file)) as env:
        invocation, call = await start_and_get_call(env.client.start("clerk", "look"), "fc-1")
        listing = (await waystation(env, "pending", invocation.id)).out
        assert f"log in {call.payload['exchangedAuthCredential']['oauth2']['authUri']}" in " ".join(listing.split())
        assert f"authorize {invocation.id} fc-1" in listing
        assert f"reject {invocation.id} fc-1" in listing
        assert "approve" not in listing

        async def listed() -> str:
            out = (await waystation(env, "pending", "--agent", "clerk")).out
            return out if f"{invocation.id}/fc-1" in out else ""

        assert " authorize clerk-" in await wait_until(listed, "the call in the list")
        assert "needs a credential for the call [fc-1]" in (await waystation(env, "events", invocation.id)).out
        await reject_and_finish(invocation, "fc-1")
        assert "no credential was provided" in (await waystation(env, "events", invocation.id)).out


def test_command_line_and_worker_use_the_same_file() -> None:
    """By default, `waystation authorize` and `waystation worker` use the same credential file."""
    assert parse_options(["--agents", "x"], "waystation worker").credentials == str(pending_calls.CREDENTIALS)
