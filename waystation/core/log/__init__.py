"""The log of an invocation: entries, the state they add up to, and what comes next."""
