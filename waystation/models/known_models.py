"""The prices and retirement dates of models, from `models.toml`."""

import re
import tomllib
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

from waystation.core.budget import Price

_PROVIDER = re.compile(r"(models|publishers/google/models|gemini|openai|anthropic)/")
"""Matches prefixes that do not change the model."""
_VERSION = re.compile(r"-(\d{3}|\d{8}|\d{4}-\d{2}-\d{2}|latest)")
"""Matches the suffix of a fixed version of a model, such as `-001` or a date."""


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A row of the table."""

    name: str
    price: Price | None = None
    """The price in US dollars, or None if it is not known."""
    retired: date | None = None
    """The first day on which the provider no longer serves the model, or None if no date is announced."""
    successor: str | None = None
    """The replacement that the provider recommends."""


@dataclass(frozen=True)
class KnownModels:
    """The table."""

    rows: dict[str, KnownModel]
    checked: date
    """The day on which all rows were compared with their sources."""

    def find(self, name: str) -> KnownModel | None:
        """Return the row for a model name, which may have a provider's prefix and a version, or None."""
        name = name[match.end() :] if (match := _PROVIDER.match(name)) else name
        for row in self.rows.values():
            if name == row.name or (name.startswith(row.name) and _VERSION.fullmatch(name, len(row.name))):
                return row
        return None

    def find_problem(self, name: str, today: date) -> str | None:
        """Return why a model should be replaced or its cost is not counted, or None."""
        row = self.find(name)
        if row is None:
            return (
                f"the model {name!r} is not in the table of known models of {self.checked}. Check the name. Only "
                "budgets that have a price for it count its cost."
            )
        if row.retired:
            when = "was retired" if row.retired <= today else "is retired"
            remedy = f" Use {row.successor!r}." if row.successor else " Choose another model."
            return f"the model {name!r} {when} on {row.retired}.{remedy}"
        if row.price is None:
            return f"the price of the model {name!r} is not known. Give it a price in each budget that limits the cost."
        return None


@cache
def known_models() -> KnownModels:
    """Return the table."""
    table = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
    rows: dict[str, KnownModel] = {}
    for provider in ("gemini", "openai", "anthropic"):
        for name, row in table[provider].items():
            price = {key: row.pop(key) for key in ("prompt", "cached", "output") if key in row}
            rows[name] = KnownModel(name=name, price=Price(**price) if price else None, **row)
    return KnownModels(rows, table["checked"])
