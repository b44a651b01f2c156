"""Serve agents over A2A: `waystation web --interface a2a`."""

from waystation.interfaces.a2a_server.http_routes import A2aRoutes
from waystation.web.route_table import RouteRow
from waystation.web.web_services import WebServices

__all__ = ["make_rows"]


def make_rows(services: WebServices) -> list[RouteRow]:
    """Return the rows for the route table."""
    return A2aRoutes(services).make_rows()
