"""The configuration of identity: one TOML file for each kind of process, and the keys that it names.

Workers, clients and the gateway each have what they need and no more: who can read a worker's file cannot sign.
"""

from pathlib import Path
from typing import Annotated, Literal

from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey, import_key
from pydantic import BeforeValidator, Field, field_validator

from waystation.configuration import Section, read_configuration, read_secret
from waystation.core.errors import InvalidConfiguration
from waystation.core.payload import decode

ALGORITHMS = ("RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA", "Ed25519", "RS384", "RS512", "PS384", "PS512")
"""For signatures of identity providers. None of them takes a key that a verifier also has."""
MIN_RSA_BITS = 2048
MIN_HMAC_BYTES = 32
DEFAULT_AUDIENCE = "waystation"

Name = Annotated[str, Field(min_length=1, max_length=1_000)]
OneOrMore = Annotated[tuple[Name, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


class EnvelopeSection(Section):
    """`[envelope]`: with which keys tokens are encrypted on their way to the workers."""

    public_key: Name | None = None
    private_key: OneOrMore = ()
    """Several while one replaces another: each opens what was sealed for it."""


class IssuerSection(Section):
    """`[[issuers]]`: whose word workers take for who somebody is."""

    issuer: Name
    audience: OneOrMore = Field(min_length=1)
    jwks: Name | None = None
    """A file or a URL; without it the provider is asked for it (OpenID Connect discovery)."""
    subject_claim: Name = "sub"
    roles_claim: Name = "roles"
    """The claim's name, or the path to it, such as `realm_access.roles`."""
    algorithms: tuple[Name, ...] = Field(default=ALGORITHMS, min_length=1)
    bound: bool = False
    """Whether each token has to be for one answer only, as those of our gateway are."""

    @field_validator("algorithms")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(value) - set(ALGORITHMS)):
            raise ValueError(f"{unknown[0]!r} is not among {', '.join(ALGORITHMS)}")
        return value


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


class OidcSection(Section):
    """`[oidc]`: where people log in to `waystation web`."""

    issuer: Name
    client_id: Name
    client_secret_file: Name | None = None
    """Without it the provider knows a public client."""
    client_authentication: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    """How the secret is sent."""
    scopes: tuple[Name, ...] = ("openid", "profile", "email")
    subject_claim: Name = "sub"
    roles_claim: Name = "roles"
    algorithms: tuple[Name, ...] = Field(default=ALGORITHMS, min_length=1)

    _known = field_validator("algorithms")(IssuerSection._known.__func__)  # type: ignore[attr-defined]  # a classmethod


class _File(Section):
    envelope: EnvelopeSection | None = None
    issuers: tuple[IssuerSection, ...] = ()
    gateway: GatewaySection | None = None
    links: LinksSection | None = None
    oidc: OidcSection | None = None


class Configuration:
    """What a file says, and the keys that it names."""

    def __init__(self, file: Path, content: _File) -> None:
        self.file = file
        self.envelope, self.issuers, self.gateway = content.envelope, content.issuers, content.gateway
        self.links, self.oidc = content.links, content.oidc

    @classmethod
    def read(cls, file: str | Path) -> "Configuration":
        """Read a file.

        Raises:
            InvalidConfiguration: It cannot be used; the error says which key, and what to change.
        """
        path = Path(file)
        return cls(path, read_configuration(path, _File))

    def fault(self, key: str, problem: str) -> InvalidConfiguration:
        """Return the error for a key that cannot be used."""
        return InvalidConfiguration(self.file, key, problem)

    def lacks(self, section: str, purpose: str) -> InvalidConfiguration:
        """Return the error for a section that is not there."""
        return self.fault(section, f"is missing; {purpose}. `waystation identity init DIR` writes examples.")

    def path(self, name: str) -> Path:
        """Return where a file is that the configuration names: beside the configuration, unless it says otherwise."""
        return self.file.parent / Path(name).expanduser()

    def secret(self, key: str, name: str) -> str:
        """Return what a file holds, or with `env:NAME` a variable, which then is removed: child processes inherit it.

        Raises:
            InvalidConfiguration: It is not there, or empty.
        """
        return read_secret(self.file, key, name)

    def signing_key(self, key: str, name: str) -> ECKey | OKPKey:
        """Return a private key for signatures.

        Raises:
            InvalidConfiguration: It is none.
        """
        found = self._key(key, name)
        if isinstance(found, ECKey | OKPKey) and found.is_private and _is_for(found, "sig", "Ed25519"):
            return found
        raise self.fault(key, f"{name} is no private EC or Ed25519 key for signatures.")

    def agreement_key(self, key: str, name: str, *, private: bool) -> ECKey | OKPKey:
        """Return a key with which envelopes are sealed, or opened when it is private.

        Raises:
            InvalidConfiguration: It is none, or a private one where a public one belongs.
        """
        found = self._key(key, name)
        kind = "private" if private else "public"
        if isinstance(found, ECKey | OKPKey) and found.is_private is private and _is_for(found, "enc", "X25519"):
            return found
        raise self.fault(key, f"{name} is no {kind} EC or X25519 key for encryption.")

    def hmac_key(self, key: str, name: str) -> OctKey:
        """Return a shared key.

        Raises:
            InvalidConfiguration: It can be guessed.
        """
        text = self.secret(key, name)
        if len(text.encode()) < MIN_HMAC_BYTES:
            raise self.fault(key, f"{name} holds less than {MIN_HMAC_BYTES} random bytes.")
        return OctKey.import_key(text)

    def _key(self, key: str, name: str) -> Key:
        text = self.secret(key, name)
        try:
            return key_of(text)
        except Exception:  # noqa: BLE001  # readers of keys raise anything, and their messages may quote the key
            raise self.fault(key, f"{name} is neither a JWK nor a PEM file that can be read.") from None


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


def _is_for(key: ECKey | OKPKey, use: str, curve: str) -> bool:
    return key.get("use", use) == use and (isinstance(key, ECKey) or key.curve_name == curve)
