"""Errors in the configuration name the file, the key and the remedy, and quote no secret."""

import json
import os
import stat
from pathlib import Path

import pytest
from joserfc.jwk import ECKey, OKPKey, RSAKey

from tests.paths import write_secret
from tests.unit.identity.conftest import APPROVE, CALL, NAMESPACE, Installation
from waystation.approvers.identity import Configuration, Gateway, Links, Sealer, WorkerIdentity, write_examples
from waystation.core.errors import InvalidConfiguration


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all keys and examples, and a few unusable keys."""
    folder = tmp_path_factory.mktemp("keys")
    write_examples(folder)
    write_secret(folder / "rsa.pem", RSAKey.generate_key(2048).as_pem(private=True).decode())
    write_secret(folder / "short.key", "letmein")
    write_secret(folder / "empty", "\n")
    write_secret(folder / "text", "SECRET-TEXT")
    (folder / "binary").write_bytes(b"\xff\xfe")
    return folder


ISSUER = '[[issuers]]\nissuer = "https://a.example"\naudience = "x"\n'
OPENS = '[envelope]\nprivate_key = "envelope-private.json"\n'


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("[envelope\n", "", "is not TOML"),
        ("[envelop]\n", "", "has no key 'envelop'; the valid keys are envelope, issuers"),
        ('[envelope]\nprivate_kye = "x"\n', "envelope", "has no key 'private_kye'; the valid keys are public_key"),
        ("[envelope]\nprivate_key = 7\n", "envelope.private_key", "valid tuple"),
        ('[envelope]\nprivate_key = "none.json"\n' + ISSUER, "envelope.private_key", "No such file"),
        ('[envelope]\nprivate_key = "empty"\n' + ISSUER, "envelope.private_key", "is empty"),
        ('[envelope]\nprivate_key = "text"\n' + ISSUER, "envelope.private_key", "not a valid JWK or PEM file"),
        ('[envelope]\nprivate_key = "binary"\n' + ISSUER, "envelope.private_key", "is not UTF-8 text"),
        ('[envelope]\nprivate_key = "rsa.pem"\n' + ISSUER, "envelope.private_key", "not a private EC or X25519 key"),
        (
            '[envelope]\nprivate_key = "envelope-public.json"\n' + ISSUER,
            "envelope.private_key",
            "not a private EC or X25519 key",
        ),
        (
            '[envelope]\nprivate_key = "gateway-signing.json"\n' + ISSUER,
            "envelope.private_key",
            "not a private EC or X25519 key",
        ),
        ('[envelope]\nprivate_key = "env:NOT_SET"\n' + ISSUER, "envelope.private_key", "NOT_SET is not set"),
        (OPENS, "issuers", "is missing; it names the trusted identity providers"),
        (OPENS + '[[issuers]]\nissuer = "https://a.example"\n', "issuers.0.audience", "Field required"),
        (OPENS + ISSUER + 'algorithms = ["HS256"]\n', "issuers.0.algorithms", "'HS256' is not one of"),
        (OPENS + ISSUER + 'algorithms = ["none"]\n', "issuers.0.algorithms", "'none' is not one of"),
        (OPENS + ISSUER + "algorithms = []\n", "issuers.0.algorithms", "at least 1"),
        (OPENS + ISSUER + 'jwks = "none.json"\n', "issuers.0.jwks", "No such file"),
        (OPENS + ISSUER + 'jwks = "text"\n', "issuers.0.jwks", "not a readable JSON Web Key Set"),
        (OPENS + ISSUER + 'jwks = "http://a.example/keys"\n', "issuers.0.jwks", "only over https"),
        (OPENS + ISSUER.replace("https", "http"), "issuers.0.issuer", "only over https"),
        (OPENS + ISSUER + ISSUER, "issuers", "two sections have the same `issuer`"),
    ],
)
def test_a_mistake_is_named_with_its_key(keys: Path, text: str, key: str, problem: str) -> None:
    """A worker's file with a mistake is refused, and the error names the key."""
    file = keys / "mistaken.toml"
    file.write_text(text)
    with pytest.raises(InvalidConfiguration) as caught:
        WorkerIdentity.load(file)
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{file}, {key}: " if key else f"{file}: ")
    assert problem in str(caught.value)
    assert "SECRET-TEXT" not in str(caught.value)


def test_a_missing_key_is_named_with_its_purpose(keys: Path) -> None:
    """The error names the purpose of the key and where to find an example."""
    workers = Configuration.read(keys / "workers.toml")
    with pytest.raises(InvalidConfiguration, match=r"gateway: is missing; its key signs .*identity init"):
        Gateway.of(workers)
    with pytest.raises(InvalidConfiguration, match=r"envelope\.public_key: is missing"):
        Sealer.of(workers)
    with pytest.raises(InvalidConfiguration, match="links: is missing"):
        Links.of(Configuration.read(keys / "clients.toml"), namespace="default")


def test_a_private_key_is_refused_in_place_of_a_public_one(keys: Path) -> None:
    """A private key is refused, because clients would receive it."""
    file = keys / "mistaken.toml"
    file.write_text('[envelope]\npublic_key = "envelope-private.json"\n')
    with pytest.raises(InvalidConfiguration, match="not a public EC or X25519 key"):
        Sealer.of(Configuration.read(file))


def test_a_short_key_of_links_is_refused(keys: Path) -> None:
    """The key needs at least thirty-two bytes."""
    file = keys / "mistaken.toml"
    file.write_text('[links]\nkey = "short.key"\n')
    with pytest.raises(InvalidConfiguration, match=r"links\.key: short\.key has fewer than 32 random bytes"):
        Links.of(Configuration.read(file), namespace="default")


async def test_a_secret_may_be_in_a_variable_which_is_then_removed(
    there: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret can be in a variable.

    Tools and their programs do not see it, but a second reader in this process does.
    """
    file = there.folder / "workers.toml"
    monkeypatch.setenv("OUR_ENVELOPE_KEY", (there.folder / "envelope-private.json").read_text())
    file.write_text(file.read_text().replace('"envelope-private.json"', '"env:OUR_ENVELOPE_KEY"'))
    WorkerIdentity.load(file)
    assert "OUR_ENVELOPE_KEY" not in os.environ
    there.worker = WorkerIdentity.load(file)
    assert (await there.verify(there.seal(there.provider.token())))[0].subject == "dana@example.com"


@pytest.mark.parametrize("curve", ["X25519", "P-384"])
async def test_keys_of_other_curves_and_pem_files_are_accepted(there: Installation, curve: str) -> None:
    """Keys of other curves and in PEM files are accepted, because other programs create such keys."""
    key = OKPKey.generate_key("X25519") if curve == "X25519" else ECKey.generate_key("P-384")
    write_secret(there.folder / "a.pem", key.as_pem(private=True).decode())
    (there.folder / "b.pem").write_bytes(key.as_pem(private=False))
    for name, before, pem in (("workers", "private", "a.pem"), ("clients", "public", "b.pem")):
        file = there.folder / f"{name}.toml"
        file.write_text(file.read_text().replace(f"envelope-{before}.json", pem, 1))
    there.worker = WorkerIdentity.load(there.folder / "workers.toml")
    there.sealer = Sealer.of(Configuration.read(there.folder / "clients.toml"))
    assert (await there.verify(there.seal(there.provider.token())))[0].subject == "dana@example.com"


async def test_a_gateway_may_sign_with_ed25519(there: Installation) -> None:
    """Workers verify its signatures with the public key."""
    key = OKPKey.generate_key("Ed25519", auto_kid=True)
    (there.folder / "gateway-signing.json").write_text(json.dumps(key.as_dict(private=True)))
    (there.folder / "gateway-jwks.json").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    there.gateway = Gateway.of(Configuration.read(there.folder / "gateway.toml"))
    there.worker = WorkerIdentity.load(there.folder / "workers.toml")
    signed = there.gateway.sign("eve", namespace=NAMESPACE, approval_id=CALL, answer=APPROVE)
    assert (await there.verify(there.seal(signed)))[0].subject == "eve"


def test_private_files_are_private_and_public_ones_contain_no_secret(tmp_path: Path) -> None:
    """The files have their modes when they are created."""
    files = write_examples(tmp_path / "new")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in files}
    secret = {"envelope-private.json", "gateway-signing.json", "chat-signing.json", "links.key", "completion.key"}
    assert {name for name, mode in modes.items() if mode == 0o600} == secret
    for file in files:
        if file.name not in secret and file.suffix == ".json":
            assert '"d"' not in file.read_text()
    assert "gateway-signing" not in (tmp_path / "new" / "workers.toml").read_text()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """An existing key is kept and reported."""
    files = write_examples(tmp_path)
    before = {file: file.read_bytes() for file in files}
    with pytest.raises(InvalidConfiguration, match="already exists"):
        write_examples(tmp_path)
    files[0].unlink()
    with pytest.raises(InvalidConfiguration, match="already exists"):
        write_examples(tmp_path)
    assert not files[0].exists()
    assert {file: file.read_bytes() for file in files[1:]} == {file: before[file] for file in files[1:]}


def test_the_examples_are_complete(tmp_path: Path) -> None:
    """Options that are commented out are valid, too."""
    write_examples(tmp_path)
    for name in ("workers", "gateway"):
        file = tmp_path / f"{name}.toml"
        lines = file.read_text().splitlines()
        # Uncomment settings and tables. A remark neither contains `=` nor begins with `[`.
        uncommented = [line.removeprefix("# ") if " = " in line or line.startswith("# [") else line for line in lines]
        file.write_text("\n".join(uncommented))
        read = Configuration.read(file)
        assert read.issuers if name == "workers" else read.oidc
