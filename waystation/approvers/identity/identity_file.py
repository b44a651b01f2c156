"""The identity configuration: a TOML file for each kind of process, the keys it refers to, and examples.

Workers, clients and the gateway have only the keys that they need. For example, someone who can read a worker's keys
cannot sign tokens.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey, import_key
from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator

from waystation.configuration import ConfigurationTable, check_private, read_configuration, read_secret
from waystation.core.errors import InvalidConfiguration
from waystation.core.payload import decode, encode

ALGORITHMS = ("RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA", "Ed25519", "RS384", "RS512", "PS384", "PS512")
"""The accepted signature algorithms. All are asymmetric, so a key that verifies tokens cannot sign them."""
MIN_RSA_BITS = 2048
MIN_HMAC_BYTES = 32
DEFAULT_AUDIENCE = "waystation"

T = TypeVar("T")
Use: TypeAlias = Literal["sig", "enc"]
"""The purpose of a key, with the values that JWK defines."""
_PURPOSES: Mapping[Use, tuple[str, str]] = {"sig": ("Ed25519", "signatures"), "enc": ("X25519", "encryption")}
"""For each use, the curve that is accepted in addition to EC keys, and the name of the use in error messages."""

IssuerKind: TypeAlias = Literal["chat"]
Name = Annotated[str, Field(min_length=1, max_length=1_000)]
OneOrMore = Annotated[tuple[Name, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class EnvelopeSection(ConfigurationTable):
    """The section `[envelope]`: the keys for encrypting tokens that are sent to the workers."""

    public_key: Name | None = None
    private_key: OneOrMore = ()
    """One or more files with private keys. During a key rotation, list the old and the new key."""


class ClaimsSection(ConfigurationTable):
    """The claims in an issuer's tokens that identify a person."""

    issuer: Name
    subject_claim: Name = "sub"
    roles_claim: Name = "roles"
    """The name of the claim, or a path to it such as `realm_access.roles`."""
    tenant_claim: Name | None = None
    """The claim with the person's tenant. If it is set, people may access only invocations of their own tenant and,
    without a tenant in their token, only invocations without a tenant.
    """
    email_trusted: bool = False
    """Whether to trust email addresses in tokens without the claim `email_verified`. Set this only for a provider that
    verifies every address but does not send the claim.
    """
    algorithms: tuple[Name, ...] = Field(default=ALGORITHMS, min_length=1)

    @field_validator("algorithms")
    @classmethod
    def _check_algorithms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(value) - set(ALGORITHMS)):
            raise ValueError(f"{unknown[0]!r} is not one of {', '.join(ALGORITHMS)}")
        return value


class IssuerSection(ClaimsSection):
    """A section `[[issuers]]`: an identity provider that workers trust."""

    audience: OneOrMore = Field(min_length=1)
    jwks: Name | None = None
    """The file or URL of the issuer's keys. By default, the URL is found by OpenID Connect Discovery."""
    bound: bool = False
    """Whether each token must be bound to one answer, as the tokens from `waystation web` are."""
    kind: IssuerKind | None = None
    """`chat` for the gateway of a chat. Policies can refuse answers that it signs."""


class GatewaySection(ConfigurationTable):
    """The section `[gateway]`: the key that `waystation web` uses to sign the identity of approvers."""

    signing_key: Name
    issuer: Name
    audience: Name = DEFAULT_AUDIENCE
    kind: IssuerKind | None = None
    """`chat` for the key of `waystation chat-approvals`. Other commands then refuse to use it."""


class LinksSection(ConfigurationTable):
    """The section `[links]`: URLs that show a call to anyone who has the URL."""

    key: Name
    decide: bool = False
    """Whether the person that a link was made for can also use it to answer the call."""
    lifetime_days: float = Field(default=3.0, gt=0, le=90)


class CompletionSection(ConfigurationTable):
    """The section `[completion]`: the URLs with which machines answer calls."""

    key: Name
    url: Name | None = None
    """The address of `waystation web` for machines. Workers need it to make the URLs."""


class RequireSection(ConfigurationTable):
    """The table `oidc.require`: requirements for logging in. An account must match an entry of each nonempty list."""

    roles: tuple[Name, ...] = ()
    groups: tuple[Name, ...] = ()
    domains: tuple[Name, ...] = ()
    """Domains of verified email addresses. For Google, domains of organizations (the claim `hd`)."""

    @model_validator(mode="after")
    def _check_content(self) -> "RequireSection":
        if not (self.roles or self.groups or self.domains):
            raise ValueError("is empty; set roles, groups or domains, or remove it")
        return self

    @field_validator("domains")
    @classmethod
    def _check_domains(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [domain for domain in value if "@" in domain or "*" in domain or "." not in domain]:
            raise ValueError(f"{wrong[0]!r} is not a domain such as 'example.com'")
        return tuple(domain.lower() for domain in value)


class GrantSection(ConfigurationTable):
    """The table `oidc.grant`: who is granted each role of the web application.

    Entries are subjects, `role:NAME` for roles and `group:NAME` for groups of the provider.
    """

    viewer: tuple[Name, ...] = ()
    approver: tuple[Name, ...] = ()
    author: tuple[Name, ...] = ()
    operator: tuple[Name, ...] = ()


class OidcSection(ClaimsSection):
    """The section `[oidc]`: the identity provider that approvers use to log in to `waystation web`."""

    client_id: Name
    client_secret_file: Name | None = None
    """The file that contains the client secret, or `env:NAME` for a variable, or None for a public client."""
    client_authentication: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    """How the client secret is sent to the token endpoint."""
    scopes: tuple[Name, ...] = ("openid", "profile", "email")
    groups_claim: Name = "groups"
    """The name of the claim with the account's groups, or a path to it."""
    require: RequireSection | None = None
    """Requirements for logging in. If None, every account at the provider may log in."""
    grant: GrantSection = GrantSection()
    resource: Name | None = None
    """The audience of access tokens for this server, usually its URL. If None, programs cannot send such tokens."""
    token_scopes: tuple[Name, ...] = ()
    """The scopes that each access token must have."""
    machines: tuple[Name, ...] = ()
    """The subjects of programs that get tokens of their own (`client_credentials`)."""

    @model_validator(mode="after")
    def _check_resource(self) -> "OidcSection":
        if self.resource == self.client_id:
            raise ValueError("has the same `resource` and `client_id`, so ID tokens would count as access tokens")
        if (self.token_scopes or self.machines) and self.resource is None:
            raise ValueError("needs `resource`, the audience of access tokens, for `token_scopes` and `machines`")
        return self


class Configuration(ConfigurationTable):
    """The content of an identity file. Its methods load the keys that the file refers to."""

    envelope: EnvelopeSection | None = None
    issuers: tuple[IssuerSection, ...] = ()
    gateway: GatewaySection | None = None
    links: LinksSection | None = None
    completion: CompletionSection | None = None
    oidc: OidcSection | None = None
    _file: Path = PrivateAttr(default=Path())

    @classmethod
    def read(cls, file: str | Path) -> "Configuration":
        """Read an identity file.

        Raises:
            InvalidConfiguration: The file is invalid. The error states the key and the remedy.
        """
        configuration = read_configuration(Path(file), cls)
        configuration._file = Path(file)
        return configuration

    @property
    def file(self) -> Path:
        """The file that was read."""
        return self._file

    def fault(self, key: str, problem: str) -> InvalidConfiguration:
        """Return the error for an invalid key."""
        return InvalidConfiguration(self._file, key, problem)

    def make_missing_section_error(self, section: str, purpose: str) -> InvalidConfiguration:
        """Return the error for a missing section."""
        return self.fault(section, f"is missing; {purpose}. `waystation identity init DIR` writes examples.")

    def need(self, value: T | None, section: str, purpose: str) -> T:
        """Return a required part of the configuration, or raise an error if it is missing.

        Raises:
            InvalidConfiguration: The part is missing.
        """
        if not value:
            raise self.make_missing_section_error(section, purpose)
        return value

    def path(self, name: str) -> Path:
        """Resolve a file name in the configuration, relative to the folder of the configuration file."""
        return self._file.parent / Path(name).expanduser()

    def secret(self, key: str, name: str, *, is_private: bool = True) -> str:
        """Return the content of a file, or of an environment variable if `name` is `env:NAME`.

        The variable is removed, so that child processes do not inherit it.

        Raises:
            InvalidConfiguration: The secret is missing or empty, or its file is too large or is not UTF-8 text.
        """
        return read_secret(self._file, key, name, is_private=is_private)

    def hmac_key(self, key: str, name: str) -> OctKey:
        """Return a shared key for signing with HMAC.

        Raises:
            InvalidConfiguration: The key is missing or too short.
        """
        text = self.secret(key, name)
        if len(text.encode()) < MIN_HMAC_BYTES:
            raise self.fault(key, f"{name} has fewer than {MIN_HMAC_BYTES} random bytes.")
        return OctKey.import_key(text)

    def asymmetric_key(self, key: str, name: str, *, use: Use, kind: Literal["private", "public"]) -> ECKey | OKPKey:
        """Return a key for signatures or for envelopes.

        Raises:
            InvalidConfiguration: The file does not contain a suitable key, or the key is for a different use.
        """
        text = self.secret(key, name, is_private=False)
        try:
            parsed = parse_key(text)
        except Exception:  # noqa: BLE001  # parsers may raise any error, and the message may quote the key
            raise self.fault(key, f"{name} is not a valid JWK or PEM file.") from None
        curve, purpose = _PURPOSES[use]
        if (
            isinstance(parsed, ECKey | OKPKey)
            and (isinstance(parsed, ECKey) or parsed.curve_name == curve)
            and parsed.is_private is (kind == "private")
            and parsed.get("use", use) == use
        ):
            if parsed.is_private:
                check_private(self.path(name), self._file, key)
            return parsed
        raise self.fault(key, f"{name} is not a {kind} EC or {curve} key for {purpose}.")


def parse_key(text: str) -> Key:
    """Parse a key in JWK or PEM format.

    Raises:
        Exception: The text is not a key. The class of the error varies.
    """
    if text.startswith("{"):
        return import_key(decode(text))
    for kind in (ECKey, OKPKey, RSAKey):
        try:
            return kind.import_key(text)
        except Exception:  # noqa: BLE001  # it may be another type of key
            continue
    raise ValueError("not a key")


GATEWAY = "https://approvals.example.com"
CHAT_GATEWAY = "https://chat-approvals.example.com"
_PRIVATE, _PUBLIC = 0o600, 0o644

WORKERS = f"""\
# Workers: --identity workers.toml, or WAYSTATION_IDENTITY=workers.toml
# No key in this file can sign an answer.

[envelope]
private_key = "envelope-private.json"   # decrypts the tokens from clients; a file, or "env:NAME"

# `waystation web`, where approvers log in. Each of its tokens is valid for one answer.
[[issuers]]
issuer = "{GATEWAY}"
audience = "waystation"
jwks = "gateway-jwks.json"
bound = true

# `waystation chat-approvals`, where approvers answer in Slack. Policies with `chat=False` refuse its answers.
# [[issuers]]
# issuer = "{CHAT_GATEWAY}"
# audience = "waystation"
# jwks = "chat-jwks.json"
# bound = true
# kind = "chat"

# An identity provider, for approvers who answer with their own tokens.
# [[issuers]]
# issuer = "https://login.example.com/realms/main"
# audience = "waystation"
# jwks = "https://login.example.com/realms/main/keys"   # or a file; omit it for discovery
# subject_claim = "sub"
# roles_claim = "roles"                                 # or a path, such as "realm_access.roles"

# Signs the links in notifications.
[links]
key = "links.key"
lifetime_days = 3

# Makes the completion URLs with which machines answer calls. Remove it if no tool has `answered_by`.
[completion]
key = "completion.key"
url = "{GATEWAY}"
"""

WEB = f"""\
# The gateway: `waystation web --identity gateway.toml`, or WAYSTATION_WEB_IDENTITY=gateway.toml
# Only this process may read gateway-signing.json: it signs answers in the name of every approver.

[gateway]
signing_key = "gateway-signing.json"
issuer = "{GATEWAY}"                    # as in workers.toml
audience = "waystation"

[envelope]
public_key = "envelope-public.json"

[links]
key = "links.key"
lifetime_days = 3
decide = false                          # whether a link also lets its addressee answer

# Accepts the answers of machines at completion URLs.
[completion]
key = "completion.key"

# Where approvers log in.
# [oidc]
# issuer = "https://login.example.com/realms/main"
# client_id = "waystation"
# client_secret_file = "oidc-secret"    # or "env:NAME"
# roles_claim = "roles"
#
# [oidc.require]                        # who may log in
# groups = ["payments"]                 # or roles, or domains = ["example.com"]
#
# [oidc.grant]                          # who may do more than answer calls whose policy names them
# viewer = ["group:payments"]           # sees all invocations and calls
# approver = ["role:finance"]           # answers calls without a policy
"""

CHAT = f"""\
# The gateway of a chat: `waystation chat-approvals --identity chat.toml`
# Only this process may read chat-signing.json: it signs answers in the name of everyone with a linked account.

[gateway]
signing_key = "chat-signing.json"
issuer = "{CHAT_GATEWAY}"               # as in workers.toml
audience = "waystation"
kind = "chat"

[envelope]
public_key = "envelope-public.json"

# Where people log in once to link their account of the chat: the section of gateway.toml.
# [oidc]
"""

CLIENTS = """\
# Programs that answer with an approver's token: AgentClient.connect(identity="clients.toml"), or
# WAYSTATION_CLIENT_IDENTITY=clients.toml waystation approve …

[envelope]
public_key = "envelope-public.json"
"""


def write_examples(folder: Path) -> list[Path]:
    """Write new keys and example configurations to a folder. Return the files. Existing files are never replaced.

    Raises:
        InvalidConfiguration: One of the files already exists, or the folder is not writable.
    """
    envelope = ECKey.generate_key("P-256", {"use": "enc"}, auto_kid=True)
    gateway, chat = (ECKey.generate_key("P-256", {"use": "sig"}, auto_kid=True) for _ in range(2))
    files: list[tuple[str, int, bytes]] = [
        ("envelope-private.json", _PRIVATE, _encode_jwk(envelope, private=True)),
        ("envelope-public.json", _PUBLIC, _encode_jwk(envelope, private=False)),
        ("gateway-signing.json", _PRIVATE, _encode_jwk(gateway, private=True)),
        ("gateway-jwks.json", _PUBLIC, encode({"keys": [gateway.as_dict(private=False)]})),
        ("chat-signing.json", _PRIVATE, _encode_jwk(chat, private=True)),
        ("chat-jwks.json", _PUBLIC, encode({"keys": [chat.as_dict(private=False)]})),
        ("links.key", _PRIVATE, secrets.token_urlsafe(48).encode()),
        ("completion.key", _PRIVATE, secrets.token_urlsafe(48).encode()),
        ("workers.toml", _PUBLIC, WORKERS.encode()),
        ("gateway.toml", _PUBLIC, WEB.encode()),
        ("chat.toml", _PUBLIC, CHAT.encode()),
        ("clients.toml", _PUBLIC, CLIENTS.encode()),
    ]
    if existing := [name for name, _, _ in files if (folder / name).exists()]:
        raise InvalidConfiguration(folder / existing[0], "", "already exists. Choose another folder, or remove it.")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, mode, data in files:
            # Create the file with its final mode, so that other users can never read a private key.
            with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data + b"\n" * (not data.endswith(b"\n")))
    except OSError as error:
        raise InvalidConfiguration(folder, "", f"cannot be written: {error.strerror}.") from None
    return [folder / name for name, _, _ in files]


def _encode_jwk(key: ECKey, *, private: bool) -> bytes:
    return encode(dict(key.as_dict(private=private)))
