"""The resources that the tools share: the company's database, with the tables of `schema.sql`, and the carrier."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, LiteralString

import httpx2
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from waystation import Resource

Pool = AsyncConnectionPool[AsyncConnection[DictRow]]
Database = Annotated[Pool, Resource("database")]
Carrier = Annotated[httpx2.AsyncClient, Resource("carrier")]
PAYMENT = """
INSERT INTO payments (key, payee, amount, purpose) VALUES (%(key)s, %(payee)s, %(amount)s, %(purpose)s)
ON CONFLICT (key) DO UPDATE SET key = excluded.key RETURNING number
"""


@asynccontextmanager
async def lifespan() -> AsyncIterator[dict[str, Any]]:
    """Open the resources of a worker. The pool connects when a tool first needs the database."""
    database = os.environ.get("BACKOFFICE_DATABASE", "postgresql:///backoffice")
    async with (
        Pool(database, min_size=0, max_size=8, timeout=10, open=False, kwargs={"row_factory": dict_row}) as pool,
        httpx2.AsyncClient(base_url=os.environ.get("CARRIER_URL", "https://claims.carrier.example.com")) as carrier,
    ):
        yield {"database": pool, "carrier": carrier}


async def fetch(database: Pool, statement: LiteralString, **values: Any) -> DictRow | None:
    """Run one statement in a transaction, and return its first row."""
    async with database.connection() as connection:
        return await (await connection.execute(statement, values)).fetchone()


async def pay(database: Pool, key: str, payee: str, amount: float, purpose: str) -> int:
    """Record a payment, and return its number. The same key pays only once."""
    row = await fetch(database, PAYMENT, key=key, payee=payee, amount=amount, purpose=purpose)
    assert row is not None, "the statement returns the old or the new row"
    return int(row["number"])
