"""A budget as it is written on the command line."""

import json
from pathlib import Path
from typing import cast

import typer
from pydantic import ValidationError

from waystation.cli.render import safe
from waystation.core.budget import Budget, Policy
from waystation.core.payload import JsonObject, faults

LIMITS = {
    "tokens": "max_total_tokens",
    "model_calls": "max_llm_calls",
    "tool_calls": "max_tool_calls",
    "seconds": "max_wall_s",
    "cost": "max_cost",
}
"""By the names that people write."""


def budget_of(limits: str | None, policy: str | None, prices: Path | None) -> Budget | None:
    """Return what options say; None when there are none.

    Raises:
        BadParameter: They say what is no budget.
    """
    if limits is None and policy is None and prices is None:
        return None
    given: JsonObject = {}
    for item in (limits or "").split(",") if limits is not None else ():
        name, _, amount = item.partition("=")
        if name.strip() not in LIMITS:
            raise typer.BadParameter(
                f"{safe(item)!r} is no limit; write {', '.join(f'{known}=N' for known in LIMITS)}, separated by commas",
                param_hint="--budget",
            )
        given[LIMITS[name.strip()]] = amount.strip()
    if prices is not None:
        given["prices"] = _prices(prices)
    if policy is not None:
        given["on_exhausted"] = cast(Policy, policy)
    try:
        budget = Budget.model_validate(given)
    except ValidationError as error:
        raise typer.BadParameter(faults(error), param_hint="--budget, --prices") from None
    if budget.max_llm_calls < 1:
        raise typer.BadParameter("model_calls is at least 1", param_hint="--budget")
    return budget


def _prices(path: Path) -> JsonObject:
    try:
        prices = json.loads(path.read_text())
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror or error}", param_hint="--prices") from None
    except ValueError as error:
        raise typer.BadParameter(f"{path} is no JSON: {error}", param_hint="--prices") from None
    if not isinstance(prices, dict):
        raise typer.BadParameter(f"{path} is no JSON object, by model", param_hint="--prices")
    return prices
