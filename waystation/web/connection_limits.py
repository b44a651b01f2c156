"""Limits on connections: a deadline for request headers, and a maximum number of connections.

uvicorn has neither: its keep-alive timeout starts after the first response, and its `limit_concurrency` counts
connections on which nothing happens, so idle connections could shut everybody out.
"""

import asyncio
from collections import defaultdict
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from waystation.web.limits import Limits


class ConnectionLimits:
    """The open connections of a server.

    A new connection over a limit replaces the oldest one whose request is incomplete. If there is none, the new
    connection is closed. Thus, half-sent requests cannot shut anybody out, and requests that are being answered are
    never interrupted.
    """

    def __init__(self, limits: Limits, *, per_address: bool) -> None:
        self.headers_s = limits.headers_s
        self._limit, self._limit_per_address = limits.connections, limits.connections_per_address
        self._per_address = per_address
        self._open: dict[LimitedProtocol, None] = {}
        self._by_address: defaultdict[str, dict[LimitedProtocol, None]] = defaultdict(dict)

    def admit(self, connection: "LimitedProtocol") -> bool:
        """Record a new connection if the limits allow it, and return whether they do."""
        same = self._by_address[connection.address]
        if self._per_address and len(same) >= self._limit_per_address and not self._replace(same):
            return False
        if len(self._open) >= self._limit and not self._replace(self._open):
            return False
        self._open[connection] = self._by_address[connection.address][connection] = None
        return True

    def forget(self, connection: "LimitedProtocol") -> None:
        """Remove a connection that has ended or that was not admitted."""
        self._open.pop(connection, None)
        same = self._by_address[connection.address]
        same.pop(connection, None)
        if not same:
            del self._by_address[connection.address]

    def _replace(self, connections: "dict[LimitedProtocol, None]") -> bool:
        oldest = next((connection for connection in connections if connection.is_incomplete), None)
        if oldest is not None:
            self.forget(oldest)
            oldest.transport.abort()
        return oldest is not None


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol, with limits. `make_protocol` returns a subclass for each server."""

    limits: ClassVar[ConnectionLimits]
    address = ""
    _deadline: asyncio.TimerHandle | None = None

    @property
    def is_incomplete(self) -> bool:
        """Whether the connection is waiting for the rest of a request, or for a new one."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        """Start the deadline for the headers, or abort the connection if there are too many."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self.limits.admit(self):
            self._watch()
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle data, and update the deadline."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop()
        self.limits.forget(self)
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the deadline when the connection starts to wait for headers, and stop it when they are complete.

        More data does not extend the deadline.
        """
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.headers_s, self.transport.abort)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def make_protocol(limits: Limits, *, per_address: bool) -> type[LimitedProtocol]:
    """Return the protocol for one server. `per_address` also limits the connections of each address.

    Behind a proxy, do not set it, because all connections have the proxy's address.
    """
    attributes: dict[str, Any] = {"limits": ConnectionLimits(limits, per_address=per_address)}
    return type("ServerProtocol", (LimitedProtocol,), attributes)
