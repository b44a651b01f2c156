"""Invalid options of `waystation web` are usage errors, reported before the server listens."""

from pathlib import Path

import pytest

from tests.programs import command
from waystation.approvers.identity import write_examples
from waystation.embedded import EmbeddedServer

PUBLIC = '[oidc]\nissuer = "https://accounts.google.com"\nclient_id = "inbox"\n'


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--url", "inbox.example"], "--url 'inbox.example' is not a valid URL. It must start with https://"),
        (["--url", "https://"], "--url 'https://' is not a valid URL here. Use a host without a path"),
        (["--url", "https://example.com/inbox?x=1"], "Use a host without a path"),
        (["--url", "https://example.com?x=1"], "Use a host without a path"),
        (["--url", "https://dana:pw@example.com"], "Use a host without a path"),
        (["--url", "https://example.com:99999"], "Use a host without a path"),
        (["--url", "https://b\u00fcro.example"], "Use a host without a path"),
        (["--identity", "{folder}/clients.toml"], "`waystation web` finds no settings in this file; pass gateway.toml"),
        (["--temporal-ui", "javascript:alert(1)"], "--temporal-ui 'javascript:alert(1)' is not a valid URL"),
        (["--identity", "{folder}/nowhere.toml"], "nowhere.toml: cannot be read"),
        (["--identity", "{folder}/workers.toml"], "`waystation web` finds no settings in this file; pass gateway.toml"),
        (["--identity", "{folder}/gateway.toml", "--host", "0.0.0.0"], "lets other machines in"),
        (["--identity", "{folder}/public.toml"], "Anyone can create an account at https://accounts.google.com"),
        (["--identity", "{folder}/public.toml"], "[oidc.require] of the identity file, or pass --allow-any-account"),
        (["--host", "0.0.0.0", "--url", "https://inbox.example"], "let people log in at a provider"),
    ],
)
async def test_an_invalid_option_is_reported(
    server: EmbeddedServer, tmp_path: Path, options: list[str], problem: str
) -> None:
    """The error is one line with the remedy."""
    write_examples(tmp_path / "identity")
    public = (tmp_path / "identity" / "gateway.toml").read_text() + PUBLIC
    (tmp_path / "identity" / "public.toml").write_text(public)
    arguments = [option.format(folder=tmp_path / "identity") for option in options]
    ran = await command("--address", server.address, "web", "--port", "0", *arguments)
    assert (ran.code, problem in ran.err, ran.out) == (2, True, "")
