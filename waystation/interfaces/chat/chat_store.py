"""The durable store of a chat: linked accounts, unfinished links, posted messages, and what a process has claimed.

A chat keeps nothing else. Everything about calls is read from Temporal.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from waystation.core.payload import JsonObject
from waystation.storage.sql_table import SqlTable, Transaction

Model = TypeVar("Model", bound=BaseModel)

_TABLE = "waystation_chat"
_SCHEMA = (
    f"""CREATE TABLE IF NOT EXISTS {_TABLE} (
    kind TEXT,
    id TEXT,
    value TEXT NOT NULL,
    until DOUBLE PRECISION NOT NULL,  -- when the row expires, in seconds since 1970
    PRIMARY KEY (kind, id)
)""",
)
_PURGE = f"DELETE FROM {_TABLE} WHERE until <= ?"
_PUT = f"INSERT INTO {_TABLE} VALUES (?, ?, ?, ?) ON CONFLICT (kind, id)"
_REPLACE = f"{_PUT} DO UPDATE SET value = excluded.value, until = excluded.until"
_CLAIM = f"{_REPLACE} WHERE {_TABLE}.value = excluded.value OR {_TABLE}.until <= ? RETURNING id"
_LIST = f"SELECT id, value FROM {_TABLE} WHERE kind = ? AND until > ? ORDER BY id"
_READ = f"SELECT value FROM {_TABLE} WHERE kind = ? AND id = ? AND until > ?"
_TAKE = f"DELETE FROM {_TABLE} WHERE kind = ? AND id = ? RETURNING value, until"


class Account(BaseModel):
    """An account of a chat that a person has linked, with what the provider confirmed at that time."""

    workspace: str
    """The ID of the workspace."""
    workspace_name: str
    user: str
    """The ID of the user in the workspace."""
    user_name: str
    subject: str = ""
    """The person's subject at the provider. Empty until the person has logged in."""
    name: str = ""
    roles: tuple[str, ...] = ()
    issuer: str = ""
    tenant: str | None = None
    claims: JsonObject = {}
    """The claims with which `Admission.check` can repeat its decision."""
    until: float = 0.0
    """When the link expires, in seconds since 1970."""

    @property
    def id(self) -> str:
        """The ID of the user. It is unique among all workspaces."""
        return f"{self.workspace}-{self.user}"


class Message(BaseModel):
    """The message about a call in a channel."""

    approval_id: str
    channel: str
    message: str = ""
    """The ID of the message in its channel. Empty until it is posted."""
    version: str = ""
    """The version of the call that the message shows."""
    reminders: int = 0
    """The number of reminders that were due when the message was last posted, changed or repeated."""

    @property
    def id(self) -> str:
        """The channel and the call."""
        return f"{self.channel} {self.approval_id}"


class ChatStore:
    """Rows in an SQLite file or a PostgreSQL database, each with a kind and an ID.

    All methods raise StoreFailed if the store is not available.
    """

    def __init__(self, place: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        self._table, self._clock = SqlTable.at(place, _TABLE, _SCHEMA), clock

    async def put(self, kind: str, id: str, value: BaseModel, *, until: float) -> None:
        """Add a row, or replace it."""
        row = kind, id, value.model_dump_json(), until
        await self._table.do(lambda db: db.execute(_REPLACE, *row) and None)

    async def read(self, kind: str, id: str, model: type[Model]) -> Model | None:
        """Return a row, or None if there is none."""
        rows = await self._table.do(lambda db: db.run(_READ, kind, id, self._clock()), writing=False)
        return model.model_validate_json(rows[0][0]) if rows else None

    async def find_all(self, kind: str, model: type[Model]) -> list[Model]:
        """Return all rows of a kind."""
        rows = await self._table.do(lambda db: db.run(_LIST, kind, self._clock()), writing=False)
        return [model.model_validate_json(value) for _, value in rows]

    async def take(self, kind: str, id: str, model: type[Model]) -> Model | None:
        """Remove a row and return it. Of several callers at the same time, only one gets it."""
        rows = await self._table.do(lambda db: db.run(_TAKE, kind, id))
        return model.model_validate_json(rows[0][0]) if rows and rows[0][1] > self._clock() else None

    async def claim(self, kind: str, id: str, owner: str, *, until: float) -> bool:
        """Claim an ID, or renew a claim, until a time. Return whether no other owner has it."""

        def claim(db: Transaction) -> bool:
            now = self._clock()
            db.execute(_PURGE, now)
            return bool(db.run(_CLAIM, kind, id, owner, until, now))

        return await self._table.do(claim)
