"""Where requests may go: to the hosts that the specification or the author names, and to no private network unasked."""

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class DestinationRefused(ValueError):
    """A request may not go where it would; the message is told to the model."""


def place_of(url: str) -> str:
    """Return host and port of a URL, or of a text such as `example.com` or `example.com:8443`; lower case."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or _PORTS.get(parts.scheme)
    return f"{host}:{port}" if port is not None else host


async def check_destination(url: str, *, allowed: Collection[str], named: Collection[str], private: bool) -> str | None:
    """Check that a request may be sent to `url`; return the address to connect to, None when any will do.

    Args:
        url: Absolute.
        allowed: Hosts, with or without ports, to which requests may go.
        named: Those of them that the author named; they may be private.
        private: Whether all may be.

    Raises:
        DestinationRefused: It may not.
    """
    place = place_of(url)
    host = place.rpartition(":")[0]
    if not allowed_at(place, allowed):
        raise DestinationRefused(f"Requests may not go to {place}; the author can allow it with `allowed_hosts`.")
    if private or allowed_at(place, named):
        return None
    addresses = await _addresses(host, int(place.rpartition(":")[2]))
    for address in addresses:
        if not _public(address):
            # As in ADK: a specification from elsewhere must not open the worker's network.
            raise DestinationRefused(
                f"Blocked host: {host} is in a private network; the author can allow it with `allowed_hosts` or "
                "`allow_private_network_access`."
            )
    # Connected to as it was checked: a second look-up might say something else.
    return addresses[0]


def allowed_at(place: str, hosts: Collection[str]) -> bool:
    """Whether a host with its port is among hosts, which allow all ports where they name none."""
    return place in hosts or place.rpartition(":")[0] in hosts


_EMBEDDING = (
    ("::/96", 0),  # IPv4-compatible
    ("::ffff:0:0/96", 0),  # IPv4-mapped
    ("::ffff:0:0:0/96", 0),  # IPv4-translated
    ("64:ff9b::/96", 0),  # NAT64
    ("2002::/16", 80),  # 6to4
)
"""IPv6 networks whose addresses lead to an IPv4 address, and how many bits follow that."""
_UNKNOWN_TARGET = ("64:ff9b:1::/48", "2001::/32", "fec0::/10")
"""IPv6 networks that lead to wherever their operator decides: local NAT64, Teredo, and site-local addresses."""


def _public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if any(found in ipaddress.ip_network(network) for network in _UNKNOWN_TARGET):
            return False
        for network, bits in _EMBEDDING:
            if found in ipaddress.ip_network(network):
                return _public(str(ipaddress.IPv4Address(int(found) >> bits & 0xFFFFFFFF)))
    return found.is_global and not found.is_multicast


async def _addresses(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise DestinationRefused(f"The host {host} is not known.") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
