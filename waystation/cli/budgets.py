"""A budget as it is written on the command line."""

import json
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import cast

import typer
from pydantic import ValidationError

from waystation.core.budget import Budget, Policy
from waystation.core.payload import JsonObject, faults
from waystation.presentation.terminal import safe

LIMITS = {
    "tokens": "max_total_tokens",
    "model_calls": "max_llm_calls",
    "tool_calls": "max_tool_calls",
    "seconds": "max_wall_s",
    "cost": "max_cost",
}
"""By the names that people write."""
EXAMPLE = '{"gemini-2.5-flash": {"prompt": 0.3, "cached": 0.075, "output": 2.5}}'


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
        given[LIMITS[name.strip()]] = _amount(item, name.strip(), amount.strip())
    if "max_cost" in given and prices is None:
        raise typer.BadParameter(
            f"{safe(limits or '')!r} needs prices to compute cost with: --prices FILE, a JSON object such as {EXAMPLE}",
            param_hint="--budget",
        )
    if prices is not None:
        given["prices"] = _prices(prices)
    if policy is not None:
        given["on_exhausted"] = cast(Policy, policy)
    try:
        return Budget.model_validate(given)
    except ValidationError as error:
        raise typer.BadParameter(f"{faults(error)}; a row is such as {EXAMPLE}", param_hint="--prices") from None


def _amount(item: str, name: str, amount: str) -> float | int:
    least = {"tool_calls": 0}.get(name, 1)
    with suppress(ValueError):
        if name not in ("seconds", "cost"):
            if (number := int(amount)) >= least:
                return number
        elif 0 < (given := float(amount)) < inf:
            return given
    wanted = "a number above 0" if name in ("seconds", "cost") else f"a whole number, {least} or more"
    raise typer.BadParameter(f"{safe(item)!r} is no limit; {name} takes {wanted}", param_hint="--budget")


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
