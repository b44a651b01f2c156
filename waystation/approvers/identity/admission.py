"""Who may log in to `waystation web`, and the roles that people have there.

The section `[oidc]` of the identity file decides both: `require` limits who may log in, and `grant` maps the provider's
roles, groups and subjects to the roles of the web application.
"""

import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from waystation.approvers.identity.identity_file import Configuration, GrantSection, OidcSection
from waystation.approvers.identity.verification import parse_names
from waystation.core.approval import ROLE, Verified
from waystation.core.errors import AuthorizationFailed, InvalidConfiguration
from waystation.core.payload import JsonObject

events = structlog.get_logger("waystation.identity")

REREAD_S = 10.0
"""How often the identity file is looked at again, in seconds."""
GROUP = "group:"
GOOGLE = "https://accounts.google.com"
PUBLIC_ISSUERS = frozenset(
    {
        *("accounts.google.com", "appleid.apple.com", "github.com", "gitlab.com", "login.live.com", "login.yahoo.com"),
        *("slack.com", "token.actions.githubusercontent.com", "www.facebook.com", "www.linkedin.com"),
        # Tenants that admit all Microsoft accounts; the last one is the ID of the tenant for personal accounts.
        *(f"login.microsoftonline.com/{tenant}" for tenant in ("common", "consumers", "organizations")),
        "login.microsoftonline.com/9188040d-6c67-4c5b-b112-36a304b66dad",
    }
)
"""Issuers, without the scheme, where anyone can create an account. Issuers with further path segments count, too."""
OPEN_TENANTS = ("*.auth0.com", "*.clerk.accounts.dev", "cognito-idp.*.amazonaws.com", "securetoken.google.com")
"""Patterns of the host names of services whose tenants let anyone sign up by default."""


def is_public(issuer: str) -> bool:
    """Return whether an issuer is known to give an account to anyone. Unknown issuers count as private."""
    parts = urlsplit(issuer.lower())
    host = (parts.hostname or "").rstrip(".")
    path = f"{host}/{parts.path.strip('/')}/"
    is_open_tenant = any(fnmatchcase(host, pattern) for pattern in OPEN_TENANTS)
    return is_open_tenant or any(path.startswith(f"{known}/") for known in PUBLIC_ISSUERS)


class Admission:
    """The rules for the people of one provider.

    `require` and `grant` follow the identity file. While the file is invalid, or would open the server to anyone, the
    rules that were read last apply.
    """

    def __init__(
        self, section: OidcSection, file: Path | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Set the rules, and the file to read them from when it changes. If `file` is None, they never change."""
        self._given, self._file, self._clock = section, file, clock
        self._stamp, self._looked_at = _stamp(file), clock()

    @property
    def _section(self) -> OidcSection:
        if self._file and self._clock() - self._looked_at >= REREAD_S:
            self._looked_at = self._clock()
            if (stamp := _stamp(self._file)) != self._stamp:
                self._read_again(self._file, stamp)
        return self._given

    def _read_again(self, file: Path, stamp: object) -> None:
        try:
            section = Configuration.read(file).oidc
        except InvalidConfiguration as error:
            events.warning("identity.not_read_again", problem=str(error))
            return
        self._stamp = stamp
        if section is None or (section.require is None and not self.is_open and is_public(self._given.issuer)):
            events.warning("identity.not_read_again", problem=f"{file} would admit anyone, or has no [oidc].")
            return
        self._given = self._given.model_copy(update={"require": section.require, "grant": section.grant})
        events.info("identity.read_again", file=str(file))

    @property
    def issuer(self) -> str:
        """The provider."""
        return self._section.issuer

    @property
    def is_open(self) -> bool:
        """Whether anyone can log in: `require` is not set, and the provider is known to give an account to anyone."""
        return self._given.require is None and is_public(self._given.issuer)

    def check(self, claims: JsonObject, who: Verified) -> frozenset[str]:
        """Return the web roles of a person who logs in.

        Args:
            claims: The verified claims of the ID token.
            who: The person that the claims identify.

        Raises:
            AuthorizationFailed: The person does not meet a requirement of the configuration.
            NotAllowed: The claim for groups is invalid.
        """
        section = self._section
        require, grant = section.require, section.grant
        uses_groups = require is not None and bool(require.groups)
        uses_groups |= any(name.startswith(GROUP) for names in _by_role(grant).values() for name in names)
        groups = parse_names(claims, self._section.groups_claim) if uses_groups else ()
        if require is not None:
            self._require("roles", require.roles, who.roles)
            self._require("groups", require.groups, groups)
            self._require("domains", require.domains, self._domains(claims))
        return self.roles_of(who, groups)

    def select(self, claims: JsonObject) -> JsonObject:
        """Return the claims that `check` reads."""
        names = ("email", "email_verified", "hd", self._section.groups_claim.partition(".")[0])
        return {name: claims[name] for name in (*names, self._section.groups_claim) if name in claims}

    def roles_of(self, who: Verified, groups: Sequence[str] = ()) -> frozenset[str]:
        """Return the web roles that are granted to a person.

        Entries with the prefix for roles or groups match only the person's roles or groups. Others match the subject.
        """
        names = {f"{ROLE}{role}" for role in who.roles} | {f"{GROUP}{group}" for group in groups}
        if not who.subject.startswith((ROLE, GROUP)):
            names.add(who.subject)
        return frozenset(role for role, granted in _by_role(self._section.grant).items() if names & set(granted))

    def _require(self, kind: str, accepted: Sequence[str], present: Sequence[str]) -> None:
        if accepted and not set(accepted) & set(present):
            raise AuthorizationFailed(
                f"Your account has none of the {kind} that this server requires. Log in with another account, or ask "
                f"the operator of this server to extend `require.{kind}` in the section [oidc] of its identity file."
            )

    def _domains(self, claims: JsonObject) -> tuple[str, ...]:
        """Return a tuple with the domain that vouches for an account, or an empty tuple if there is none."""
        if self._section.issuer.rstrip("/") == GOOGLE:
            # Only `hd` proves that the organization manages the account. Anyone who once received mail at an address
            # can have a private Google account with that address.
            return _lower(claims.get("hd"))
        verified = claims.get("email_verified")
        if verified is True or (verified is None and self._section.email_trusted):
            email = claims.get("email")
            return _lower(email.rpartition("@")[2]) if isinstance(email, str) else ()
        return ()


def _stamp(file: Path | None) -> object:
    """Return what changes when a file is written or replaced."""
    try:
        status = file.stat() if file else None
    except OSError:
        return None
    return status and (status.st_mtime_ns, status.st_size, status.st_ino)


def _lower(domain: Any) -> tuple[str, ...]:
    return (domain.lower(),) if isinstance(domain, str) else ()


def _by_role(grant: GrantSection) -> dict[str, tuple[str, ...]]:
    return {role: getattr(grant, role) for role in GrantSection.model_fields}
