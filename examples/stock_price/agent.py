"""The stock price agent of ADK's documentation: one function with typed parameters and a docstring."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from waystation.agents import Agent

from .demo import demo_model as demo_model

CLOSING = {
    "ALPH": (181.2, 179.5, 182.75),
    "BETA": (41.0, 42.35, 40.1),
}
"""Invented closing prices in US dollars, newest first."""


class Currency(StrEnum):
    """A currency for prices."""

    USD = "USD"
    EUR = "EUR"


RATES = {Currency.USD: 1.0, Currency.EUR: 0.5}
"""Invented values of one US dollar."""


def get_stock_price(
    symbol: str, days_ago: Annotated[int, Field(ge=0, le=2)] = 0, currency: Currency = Currency.USD
) -> dict[str, str | float]:
    """Return the closing price of a stock.

    Args:
        symbol: Ticker symbol, such as ALPH.
        days_ago: 0 for the last trading day.
        currency: Currency of the price.
    """
    prices = CLOSING.get(symbol.upper())
    if prices is None:
        # The model receives {"error": …, "error_type": "LookupError"}, and may ask the user for another symbol.
        raise LookupError(f"No stock has the symbol {symbol!r}; known are {', '.join(CLOSING)}.")
    return {"symbol": symbol.upper(), "price": round(prices[days_ago] * RATES[currency], 2), "currency": currency.value}


root_agent = Agent(
    name="stock_price_agent",
    model="gemini-3.5-flash",
    description="Knows stock prices.",
    instruction="Answer questions about stock prices with get_stock_price. If it fails, say why, in your own words.",
    tools=[get_stock_price],
)
