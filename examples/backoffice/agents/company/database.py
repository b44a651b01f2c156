"""The company's database, with the tables of `schema.sql`."""

import os
from typing import Any, LiteralString

from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row


async def fetch(statement: LiteralString, **values: Any) -> DictRow | None:
    """Run one statement in a transaction, and return its first row."""
    url = os.environ["BACKOFFICE_DATABASE"]
    async with await AsyncConnection.connect(url, row_factory=dict_row) as connection:
        return await (await connection.execute(statement, values)).fetchone()


async def pay(key: str, payee: str, amount: float, purpose: str) -> int:
    """Record a payment, and return its number. The same key pays only once."""
    row = await fetch(
        """
        INSERT INTO payments (key, payee, amount, purpose) VALUES (%(key)s, %(payee)s, %(amount)s, %(purpose)s)
        ON CONFLICT (key) DO UPDATE SET key = excluded.key RETURNING number
        """,
        key=key,
        payee=payee,
        amount=amount,
        purpose=purpose,
    )
    assert row is not None, "the statement returns the old or the new row"
    return int(row["number"])
