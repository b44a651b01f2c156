"""The addresses to which the states of A2A tasks are sent."""

import asyncio
import socket
from typing import Any

import pytest

from waystation.activities.task_pushes import find_address
from waystation.core.errors import NotAllowed


def resolve(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Let every name resolve to an address."""

    async def getaddrinfo(*_args: Any, **_options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "::ffff:127.0.0.1", "fe80::1%eth0", "224.0.0.1"]
)
async def test_a_name_that_leads_to_this_machine_or_its_link_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """The owner of an allowed name cannot have a worker reach what only the worker can reach."""
    resolve(monkeypatch, address)
    with pytest.raises(NotAllowed):
        await find_address("https://hooks.example.com/")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://hooks.example.com/", "198.51.100.7"),
        ("http://127.0.0.1:8080/", "127.0.0.1"),
        ("http://localhost/", "127.0.0.1"),
    ],
)
async def test_an_allowed_address_is_found(monkeypatch: pytest.MonkeyPatch, url: str, address: str) -> None:
    """An address or `localhost` that the operator allows itself may be this machine."""
    resolve(monkeypatch, address)
    assert await find_address(url) == address
