"""The owners of encrypted data: single users of an app, and tenants."""

from typing import NamedTuple
from urllib.parse import unquote

from waystation.core import ids


def describe_deleted_key() -> str:
    """Return why data cannot be read if its key was deleted."""
    return "[deleted], because its key was deleted with the data of its user or tenant."


class KeyDeleted(ValueError):
    """The key was deleted with the data of its user or tenant."""

    def __init__(self) -> None:
        super().__init__(describe_deleted_key())


class Owner(NamedTuple):
    """A user of an app, or a tenant, whose data is encrypted with a key of its own if there is a store of user keys."""

    app: str
    """The app's key; see `waystation.core.ids.app_key`."""
    user_id: str
    """The user, or an empty string for the tenant of the app."""

    @classmethod
    def of_tenant(cls, tenant: str) -> "Owner":
        """Return the owner of what belongs to a tenant, but to none of its users."""
        return cls(f"{tenant}~~", "")

    @classmethod
    def of_workflow(cls, workflow_id: str) -> "Owner | None":
        """Return the owner of a workflow's payloads, or None if the ID contains neither a user nor a tenant."""
        match workflow_id.split("/"):
            case ["session" | "invocation", app, user_id, _, *_] | ["user", app, user_id]:
                return cls(unquote(app), unquote(user_id))
            case ["app", app] if tenant := ids.parse_app_key(unquote(app))[1]:
                return cls.of_tenant(tenant)
        return None

    @property
    def tenant(self) -> str | None:
        """The tenant to which the data belongs."""
        return ids.parse_app_key(self.app)[1]
