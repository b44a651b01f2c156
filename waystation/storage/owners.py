"""The owners of encrypted data: single users of an app."""

from typing import NamedTuple
from urllib.parse import unquote


def describe_deleted_key() -> str:
    """Return why data cannot be read if its key was deleted."""
    return "[deleted], because its key was deleted with the data of its user."


class KeyDeleted(ValueError):
    """The key was deleted with the data of its user."""

    def __init__(self) -> None:
        super().__init__(describe_deleted_key())


class Owner(NamedTuple):
    """A user of an app, whose data is encrypted with a key of its own if there is a store of user keys."""

    app: str
    """The app's key; see `waystation.core.ids.app_key`."""
    user_id: str

    @classmethod
    def of_workflow(cls, workflow_id: str) -> "Owner | None":
        """Return the owner of a workflow's payloads, or None if the ID does not contain a user."""
        match workflow_id.split("/"):
            case ["session", app, user_id, _, *_] | ["user", app, user_id]:
                return cls(unquote(app), unquote(user_id))
        return None
