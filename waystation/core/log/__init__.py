"""The log of an invocation: its entries, the state that results from them, and the next step."""
