"""Identify the person or the machine behind an access token of the provider in `[oidc]`, for any interface."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from waystation.approvers.identity.admission import Admission
from waystation.approvers.identity.identity_file import Configuration, OidcSection
from waystation.approvers.identity.keys import IssuerKeys
from waystation.approvers.identity.tokens import MAX_JWT_CHARS, parse_part
from waystation.approvers.identity.verification import Issuer, is_of_client
from waystation.core.approval import Verified
from waystation.core.errors import AuthorizationFailed, InvalidConfiguration, NotAllowed
from waystation.core.payload import JsonObject
from waystation.project_file import PROJECT_FILE, WEB_IDENTITY_ENV, find_setting, load_project

TYPES = (None, "jwt", "at+jwt", "application/at+jwt")
"""The accepted values of `typ` in a token's header, in lower case. Other kinds of tokens have others (RFC 9068)."""


class ScopesMissing(NotAllowed):
    """An access token lacks a scope that the server requires.

    Have the program request the scopes that the message names.
    """


class Bearer(NamedTuple):
    """The person or machine behind an access token."""

    who: Verified
    name: str | None
    """The display name at the provider, or None if the token does not contain one."""
    until: float
    """When the token expires, in seconds since 1970."""
    roles: frozenset[str]
    """The roles in the interface."""
    is_machine: bool
    """Whether the token belongs to a program instead of a person."""
    is_admitted: Callable[[], bool]
    """Returns whether the identity file, which may have changed, still admits the subject with the same roles."""


class BearerTokens:
    """Verifies access tokens of the provider in `[oidc]`.

    They must be issued for the configured `resource`. The subject, the tenant and the roles are those that a login of
    the same person has.
    """

    def __init__(
        self, section: OidcSection, keys: IssuerKeys, admission: Admission, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Create a verifier. The section must have a `resource`."""
        assert section.resource is not None
        self.resource, self.scopes, self.provider = section.resource, section.token_scopes, section.issuer
        self._machines, self._admission, self._clock = frozenset(section.machines), admission, clock
        self._issuer = Issuer(section, (section.resource,), keys)
        # A machine has no roles at the provider, so that a policy has to name its subject.
        of_machines = section.model_copy(update={"subject_claim": "sub", "roles_claim": ""})
        self._machine_issuer = Issuer(of_machines, (section.resource,), keys)

    @classmethod
    def of(
        cls, configuration: Configuration, admission: Admission, *, clock: Callable[[], float] = time.time
    ) -> "BearerTokens":
        """Create a verifier for the provider that is configured in `[oidc]`.

        Raises:
            InvalidConfiguration: The section is missing, or its issuer cannot be trusted.
        """
        section = configuration.need(configuration.oidc, "oidc", "it names the provider that issues tokens")
        return cls(section, IssuerKeys.of(configuration, "oidc", section.issuer, None), admission, clock=clock)

    @classmethod
    def load(cls, file: str | Path | None = None, *, clock: Callable[[], float] = time.time) -> "BearerTokens":
        """Create a verifier from an identity file, by default that of `waystation web`.

        WAYSTATION_WEB_IDENTITY or the project file names that file.

        Raises:
            InvalidConfiguration: There is no file, it is not valid, or its section `[oidc]` has no `resource`.
        """
        named = file or find_setting(WEB_IDENTITY_ENV, load_project())
        if named is None:
            raise InvalidConfiguration(PROJECT_FILE, "identity.web", f"is not set. Set it, or {WEB_IDENTITY_ENV}.")
        configuration = Configuration.read(named)
        section = configuration.need(configuration.oidc, "oidc", "it names the provider that issues tokens")
        configuration.need(section.resource, "oidc.resource", "it is the audience of access tokens")
        return cls.of(configuration, Admission(section, configuration.file), clock=clock)

    async def identify(self, token: str) -> Bearer:
        """Return the person or machine behind a token.

        Raises:
            NotAllowed: The token is not valid for this server. The message does not quote it.
            ScopesMissing: The token lacks a scope.
            AuthorizationFailed: The identity file does not admit the subject.
            IdentityUnavailable: The provider's keys cannot be fetched, and no usable ones are cached.
        """
        if len(token) > MAX_JWT_CHARS or token.count(".") != 2:
            raise NotAllowed("The token is not a signed access token (a compact JWS).")
        claims = await self._issuer.verify(token, now=self._clock())
        kind = (parse_part(token, 0) or {}).get("typ")
        if (kind.lower() if isinstance(kind, str) else kind) not in TYPES:
            raise NotAllowed("The token is not an access token: its header has another `typ`.")
        if "cnf" in claims:
            raise NotAllowed("The token is bound to a key of its sender, which this server cannot verify.")
        if missing := sorted(set(self.scopes) - _scopes_of(claims)):
            raise ScopesMissing(f"The token lacks the scope {missing[0]!r}.")
        until, name = float(claims["exp"]), claims.get("name")
        if is_machine := claims.get("sub") in self._machines:
            who = self._machine_issuer.identify(claims)
        elif is_of_client(claims):
            raise NotAllowed(
                "The token belongs to a program and not to a person. Add its subject to `machines` in the section "
                "[oidc] of this server's identity file."
            )
        else:
            who = self._issuer.identify(claims)

        def find_roles() -> frozenset[str]:
            return self._admission.roles_of(who) if is_machine else self._admission.check(claims, who)

        def is_admitted() -> bool:
            try:
                return find_roles() == roles
            except (AuthorizationFailed, NotAllowed):
                return False

        roles = find_roles()
        return Bearer(who, name[:200] if isinstance(name, str) else None, until, roles, is_machine, is_admitted)


def _scopes_of(claims: JsonObject) -> set[str]:
    """Return the scopes of a token, which providers write as a string or as a list, in `scope` or `scp`."""
    found = (claims.get(name) for name in ("scope", "scp"))
    lists = (value.split() if isinstance(value, str) else value for value in found)
    return {scope for value in lists if isinstance(value, list) for scope in value if isinstance(scope, str)}
