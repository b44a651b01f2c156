"""Check where a request goes: only to hosts that the specification or the user names, and not to private networks."""

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class DestinationRefused(ValueError):
    """The destination of a request is not allowed. The message is sent to the model."""


def place_of(url: str) -> str:
    """Return the host and port in lower case, given a URL or a string such as `example.com` or `example.com:8443`."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or _PORTS.get(parts.scheme)
    return f"{host}:{port}" if port is not None else host


async def check_destination(url: str, *, allowed: Collection[str], named: Collection[str], private: bool) -> str | None:
    """Check that a request may go to `url`, and return the IP address to connect to.

    Returns None if the request may connect to any address of the host.

    Args:
        url: The absolute URL.
        allowed: The allowed hosts, with or without ports.
        named: Allowed hosts that the user listed explicitly. They may be in private networks.
        private: Whether any allowed host may be in a private network.

    Raises:
        DestinationRefused: The destination is not allowed.
    """
    place = place_of(url)
    host = place.rpartition(":")[0]
    if not allowed_at(place, allowed):
        raise DestinationRefused(f"Requests may not go to {place}; the author can allow it with `allowed_hosts`.")
    if private or allowed_at(place, named):
        return None
    addresses = await _resolve(host, int(place.rpartition(":")[2]))
    if not all(map(_is_public, addresses)):
        # As in ADK, a third-party specification must not be able to send requests into the worker's network.
        raise DestinationRefused(
            f"Blocked host: {host} is in a private network; the author can allow it with `allowed_hosts` or "
            "`allow_private_network_access`."
        )
    # Return the address that was checked, because a second DNS lookup could return a different one.
    return addresses[0]


def allowed_at(place: str, hosts: Collection[str]) -> bool:
    """Return whether `hosts` allows a host and port. An entry without a port allows all ports."""
    return place in hosts or place.rpartition(":")[0] in hosts


_EMBEDDING = (
    ("::/96", 0),  # IPv4-compatible
    ("::ffff:0:0/96", 0),  # IPv4-mapped
    ("::ffff:0:0:0/96", 0),  # IPv4-translated
    ("64:ff9b::/96", 0),  # NAT64
    ("2002::/16", 80),  # 6to4
)
"""IPv6 networks whose addresses embed an IPv4 address, with the number of bits that follow the IPv4 address."""
_UNKNOWN_TARGET = ("64:ff9b:1::/48", "2001::/32", "fec0::/10")
"""IPv6 networks where the destination depends on the operator: local NAT64, Teredo and site-local addresses."""


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if any(ip in ipaddress.ip_network(network) for network in _UNKNOWN_TARGET):
            return False
        for network, bits in _EMBEDDING:
            if ip in ipaddress.ip_network(network):
                return _is_public(str(ipaddress.IPv4Address(int(ip) >> bits & 0xFFFFFFFF)))
    return ip.is_global and not ip.is_multicast


async def _resolve(host: str, port: int) -> list[str]:
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise DestinationRefused(f"Unknown host: {host}.") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in entries))
