"""Checks that a web server does not let strangers in."""

from collections.abc import Sequence

from waystation.approvers import Gatekeeper
from waystation.core.errors import WaystationError

MIN_TOKEN_CHARS = 32


class NotSafeToServe(WaystationError):
    """The settings would let strangers in. The message names the setting to change.

    Change the setting that the message names.
    """


def check_token(token: str) -> None:
    """Check that the token that programs send cannot be guessed.

    Raises:
        NotSafeToServe: The token is too short.
    """
    if len(token) < MIN_TOKEN_CHARS:
        raise NotSafeToServe(
            f"The token has {len(token)} characters; it needs at least {MIN_TOKEN_CHARS}. Generate one with "
            "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`."
        )


def check_host(host: str, *, names: Sequence[str], provider: bool = False) -> None:
    """Check that it is safe to listen on `host`.

    Raises:
        NotSafeToServe: Other machines could reach the server, but no host name is set, or no provider identifies the
            people who use it.
    """
    if host in ("127.0.0.1", "::1", "localhost"):
        return
    if not names or not provider:
        raise NotSafeToServe(
            f"Listening at {host!r} lets other machines in. Listen at 127.0.0.1, or protect the server: name its host "
            "with --allow-host NAME, have a proxy add TLS, and let people log in at a provider (--identity FILE with "
            "[oidc])."
        )


def check_provider(gatekeeper: Gatekeeper, *, allow_any_account: bool) -> None:
    """Check that not everybody with an account at a public provider can log in, unless `allow_any_account` is set.

    Raises:
        NotSafeToServe: Anyone can create an account at the provider, and neither the configuration nor
            `allow_any_account` says who may log in.
    """
    if gatekeeper.oidc is not None and gatekeeper.oidc.admission.is_open and not allow_any_account:
        raise NotSafeToServe(
            f"Anyone can create an account at {gatekeeper.oidc.admission.issuer}, so anyone could log in. Set roles, "
            "groups or domains in the section [oidc.require] of the identity file, or pass --allow-any-account."
        )
