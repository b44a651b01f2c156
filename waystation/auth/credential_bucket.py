"""The key under which a user's credential is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from waystation.core.wire import DEFAULT_APP

if TYPE_CHECKING:
    from waystation.agents.readonly_context import ReadonlyContext


class Bucket(NamedTuple):
    """Whose credential it is: of one user of one application, under one key."""

    app: str
    user: str
    key: str

    @classmethod
    def of(cls, context: ReadonlyContext, key: str) -> Bucket:
        """Return the bucket of whoever a context acts for."""
        return cls(context.session.app_name or DEFAULT_APP, context.user_id, key)
