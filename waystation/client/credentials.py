"""What a client needs of a credential store, without knowing any."""

from collections.abc import Sequence
from typing import Any, Protocol


class Kept(Protocol):
    """What a credential was kept for."""

    @property
    def calls(self) -> Sequence[tuple[str, str]]:
        """The calls that wait for it, each an invocation's id and a call's."""


class CredentialKeeper(Protocol):
    """A store that takes what users give; `waystation.auth.CredentialStore` is one."""

    async def authorize(
        self,
        *,
        auth_response_uri: str | None = None,
        credential: Any = None,
        call: tuple[str, str] | None = None,
    ) -> Kept:
        """Keep a credential, or what a login ended with."""
