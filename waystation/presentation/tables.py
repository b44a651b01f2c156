"""Tables for terminals."""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Column, Table
from rich.text import Text

from waystation.presentation import terminal


def make_table(columns: Iterable[Column | str], rows: Iterable[Iterable[str | Text]], **style: Any) -> Table:
    """Return a table. Strings are shown as plain text on one line."""
    table = Table(*columns, **{"box": box.SIMPLE_HEAD, "pad_edge": False, **style})
    for row in rows:
        table.add_row(*(Text(terminal.escape(cell)) if isinstance(cell, str) else cell for cell in row))
    return table
