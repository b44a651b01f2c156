"""Everyone outside: start invocations, follow them, answer them."""
