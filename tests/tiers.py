"""How much the tiers of tests differ in effort."""

import os

FULL = "WAYSTATION_TEST_FULL"
"""Set by `make test-full`."""


def drawn_examples(full: int) -> int:
    """Return how many examples hypothesis draws: `full` for `make test-full`, otherwise a quarter."""
    return full if os.environ.get(FULL) else full // 4
