"""Differences in effort between the tiers of tests."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

FULL = "WAYSTATION_TEST_FULL"
"""Set by `make test-full`."""
SERVER_ADDRESS = "WAYSTATION_TEST_ADDRESS"
"""Set by `make test-cluster` to the addresses of clusters, one for each process of pytest."""
SERVER_HTTP_ADDRESS = "WAYSTATION_TEST_HTTP_ADDRESS"
"""Set by `make test-cluster` to the address of an HTTP API of each cluster."""


def is_full() -> bool:
    """Return whether `make test-full` runs."""
    return FULL in os.environ


def drawn_examples(full: int) -> int:
    """Return how many examples hypothesis draws: `full` for `make test-full`, otherwise an eighth."""
    return full if is_full() else max(1, full // 8)


def sampled(cases: Sequence[T], every: int = 4) -> Sequence[T]:
    """Return all cases for `make test-full`, otherwise one of `every`."""
    return cases if is_full() else cases[::every]


def find_cluster(variable: str = SERVER_ADDRESS) -> str | None:
    """Return the address of the cluster of this process, or None if tests run on the development server."""
    addresses = os.environ.get(variable, "").split()
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return addresses[number] if addresses else None
