"""The configuration of identity: one TOML file for each kind of process, the keys that it names, and examples.

Workers, clients and the gateway each have what they need and no more: who can read a worker's file cannot sign.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey, import_key
from pydantic import BeforeValidator, Field, PrivateAttr, field_validator

from waystation.configuration import Section, read_configuration, read_secret
from waystation.core import InvalidConfiguration, decode, encode

ALGORITHMS = ("RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA", "Ed25519", "RS384", "RS512", "PS384", "PS512")
"""For signatures of identity providers. None of them takes a key that a verifier also has."""
MIN_RSA_BITS = 2048
MIN_HMAC_BYTES = 32
DEFAULT_AUDIENCE = "waystation"

T = TypeVar("T")
Use: TypeAlias = Literal["sig", "enc"]
"""What a key is for, as JWK names it."""
_PURPOSES: Mapping[Use, tuple[str, str]] = {"sig": ("Ed25519", "signatures"), "enc": ("X25519", "encryption")}
"""Of keys for each use: the curve besides those of EC keys, and how errors call the use."""

Name = Annotated[str, Field(min_length=1, max_length=1_000)]
OneOrMore = Annotated[tuple[Name, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


class EnvelopeSection(Section):
    """`[envelope]`: with which keys tokens are encrypted on their way to the workers."""

    public_key: Name | None = None
    private_key: OneOrMore = ()
    """Several while one replaces another: each opens what was sealed for it."""


class ClaimsSection(Section):
    """Where tokens of an issuer have what identifies a person."""

    issuer: Name
    subject_claim: Name = "sub"
    roles_claim: Name = "roles"
    """The claim's name, or the path to it, such as `realm_access.roles`."""
    email_trusted: bool = False
    """For `subject_claim = "email"`: accept tokens without `email_verified`, from a provider that verifies every
    address and does not send the claim."""
    algorithms: tuple[Name, ...] = Field(default=ALGORITHMS, min_length=1)

    @field_validator("algorithms")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(value) - set(ALGORITHMS)):
            raise ValueError(f"{unknown[0]!r} is not among {', '.join(ALGORITHMS)}")
        return value


class IssuerSection(ClaimsSection):
    """`[[issuers]]`: whose word workers take for who somebody is."""

    audience: OneOrMore = Field(min_length=1)
    jwks: Name | None = None
    """A file or a URL; without it the provider is asked for it (OpenID Connect discovery)."""
    bound: bool = False
    """Whether each token has to be for one answer only, as those of our gateway are."""


class GatewaySection(Section):
    """`[gateway]`: with which key `waystation web` says who somebody is."""

    signing_key: Name
    issuer: Name
    audience: Name = DEFAULT_AUDIENCE


class LinksSection(Section):
    """`[links]`: addresses that show one call to whoever has them."""

    key: Name
    decide: bool = False
    """Whether the person for whom a link was made may also answer with it."""
    lifetime_days: float = Field(default=3.0, gt=0, le=90)


class OidcSection(ClaimsSection):
    """`[oidc]`: where people log in to `waystation web`."""

    client_id: Name
    client_secret_file: Name | None = None
    """Without it the provider knows a public client."""
    client_authentication: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    """How the secret is sent."""
    scopes: tuple[Name, ...] = ("openid", "profile", "email")


class Configuration(Section):
    """The content of a file, and the keys that it names."""

    envelope: EnvelopeSection | None = None
    issuers: tuple[IssuerSection, ...] = ()
    gateway: GatewaySection | None = None
    links: LinksSection | None = None
    oidc: OidcSection | None = None
    _file: Path = PrivateAttr(default=Path())

    @classmethod
    def read(cls, file: str | Path) -> "Configuration":
        """Read a file.

        Raises:
            InvalidConfiguration: It cannot be used; the error names the key, and what to change.
        """
        configuration = read_configuration(Path(file), cls)
        configuration._file = Path(file)
        return configuration

    def fault(self, key: str, problem: str) -> InvalidConfiguration:
        """Return the error for a key that cannot be used."""
        return InvalidConfiguration(self._file, key, problem)

    def lacks(self, section: str, purpose: str) -> InvalidConfiguration:
        """Return the error for a missing section."""
        return self.fault(section, f"is missing; {purpose}. `waystation identity init DIR` writes examples.")

    def need(self, found: T | None, section: str, purpose: str) -> T:
        """Return a part of the configuration.

        Raises:
            InvalidConfiguration: It is missing.
        """
        if not found:
            raise self.lacks(section, purpose)
        return found

    def path(self, name: str) -> Path:
        """Return where a file is that the configuration names: beside the configuration, unless it says otherwise."""
        return self._file.parent / Path(name).expanduser()

    def secret(self, key: str, name: str) -> str:
        """Return what a file holds, or with `env:NAME` a variable, which then is removed: child processes inherit it.

        Raises:
            InvalidConfiguration: It is not there, or empty.
        """
        return read_secret(self._file, key, name)

    def hmac_key(self, key: str, name: str) -> OctKey:
        """Return a shared key.

        Raises:
            InvalidConfiguration: It can be guessed.
        """
        text = self.secret(key, name)
        if len(text.encode()) < MIN_HMAC_BYTES:
            raise self.fault(key, f"{name} holds less than {MIN_HMAC_BYTES} random bytes.")
        return OctKey.import_key(text)

    def asymmetric_key(self, key: str, name: str, *, use: Use, kind: Literal["private", "public"]) -> ECKey | OKPKey:
        """Return a key for signatures or for envelopes.

        Raises:
            InvalidConfiguration: The file has no key of this kind, or one for another use.
        """
        text = self.secret(key, name)
        try:
            found = key_of(text)
        except Exception:  # noqa: BLE001  # readers of keys raise anything, and their messages may quote the key
            raise self.fault(key, f"{name} is neither a JWK nor a PEM file that can be read.") from None
        curve, purpose = _PURPOSES[use]
        if (
            isinstance(found, ECKey | OKPKey)
            and (isinstance(found, ECKey) or found.curve_name == curve)
            and found.is_private is (kind == "private")
            and found.get("use", use) == use
        ):
            return found
        raise self.fault(key, f"{name} is no {kind} EC or {curve} key for {purpose}.")


def key_of(text: str) -> Key:
    """Return the key that a JWK or a PEM file holds.

    Raises:
        Exception: It holds none; which class depends on what is wrong with it.
    """
    if text.startswith("{"):
        return import_key(decode(text))
    for kind in (ECKey, OKPKey, RSAKey):
        try:
            return kind.import_key(text)
        except Exception:  # noqa: BLE001  # of another kind
            continue
    raise ValueError("no key")


GATEWAY = "https://approvals.example.com"
_PRIVATE, _PUBLIC = 0o600, 0o644

WORKERS = f"""\
# Workers: --identity workers.toml, or WAYSTATION_IDENTITY=workers.toml
# No key here can answer a call.

[envelope]
private_key = "envelope-private.json"   # opens the tokens that clients seal; a file, or "env:NAME"

# `waystation web`, which people log in to. Each of its tokens is good for one answer.
[[issuers]]
issuer = "{GATEWAY}"
audience = "waystation"
jwks = "gateway-jwks.json"
bound = true

# An identity provider, for people who answer with tokens of their own.
# [[issuers]]
# issuer = "https://login.example.com/realms/main"
# audience = "waystation"
# jwks = "https://login.example.com/realms/main/keys"   # or a file; leave it out to have the provider asked
# subject_claim = "sub"
# roles_claim = "roles"                                 # or a path, such as "realm_access.roles"

# Signs the links in messages to people.
[links]
key = "links.key"
lifetime_days = 3
"""

WEB = f"""\
# The gateway: WAYSTATION_IDENTITY=gateway.toml waystation web
# Only this process may read gateway-signing.json: whoever can, answers in anybody's name.

[gateway]
signing_key = "gateway-signing.json"
issuer = "{GATEWAY}"                    # as in workers.toml
audience = "waystation"

[envelope]
public_key = "envelope-public.json"

[links]
key = "links.key"
lifetime_days = 3
decide = false                          # whether a link lets the person for whom it was made answer, too

# Where people log in.
# [oidc]
# issuer = "https://login.example.com/realms/main"
# client_id = "waystation"
# client_secret_file = "oidc-secret"    # or "env:NAME"
# roles_claim = "roles"
"""

CLIENTS = """\
# Programs that answer with a person's token: AgentClient.connect(identity="clients.toml"), or
# WAYSTATION_IDENTITY=clients.toml waystation approve …

[envelope]
public_key = "envelope-public.json"
"""


def write_examples(folder: Path) -> list[Path]:
    """Write keys and configurations into a folder, and return the files. Nothing that is there is overwritten.

    Raises:
        InvalidConfiguration: One of them exists, or the folder cannot be written.
    """
    envelope = ECKey.generate_key("P-256", {"use": "enc"}, auto_kid=True)
    gateway = ECKey.generate_key("P-256", {"use": "sig"}, auto_kid=True)
    files: list[tuple[str, int, bytes]] = [
        ("envelope-private.json", _PRIVATE, _jwk(envelope, private=True)),
        ("envelope-public.json", _PUBLIC, _jwk(envelope, private=False)),
        ("gateway-signing.json", _PRIVATE, _jwk(gateway, private=True)),
        ("gateway-jwks.json", _PUBLIC, encode({"keys": [gateway.as_dict(private=False)]})),
        ("links.key", _PRIVATE, secrets.token_urlsafe(48).encode()),
        ("workers.toml", _PUBLIC, WORKERS.encode()),
        ("gateway.toml", _PUBLIC, WEB.encode()),
        ("clients.toml", _PUBLIC, CLIENTS.encode()),
    ]
    if there := [name for name, _, _ in files if (folder / name).exists()]:
        raise InvalidConfiguration(folder / there[0], "", "exists already; give another folder, or remove it.")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, mode, data in files:
            # Created with its mode, so that at no time anybody else can read it.
            with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data + b"\n" * (not data.endswith(b"\n")))
    except OSError as error:
        raise InvalidConfiguration(folder, "", f"cannot be written: {error.strerror}.") from None
    return [folder / name for name, _, _ in files]


def _jwk(key: ECKey, *, private: bool) -> bytes:
    return encode(dict(key.as_dict(private=private)))
