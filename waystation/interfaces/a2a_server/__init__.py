"""Serve agents over A2A: `waystation web --interface a2a`."""

from waystation.interfaces.a2a_server.http_routes import make_rows

__all__ = ["make_rows"]
