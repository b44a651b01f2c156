"""The JSON API for what tenants and users have used of their budgets."""

from http import HTTPStatus

from pydantic import Field
from starlette.requests import Request

from waystation.approvers import sees_invocation
from waystation.project_file import QUOTAS_ENV
from waystation.storage import QuotaStore
from waystation.web.http_responses import RequestRefused
from waystation.web.typed_routes import Query, ReplyBody


class PeriodQuery(Query):
    """The period to return."""

    period: str | None = Field(default=None, pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    """A day or month such as `2026-11`. Without it, the current day and month, in UTC."""


class UsageItem(ReplyBody):
    """The usage of a tenant or a user in a day or month. Running model calls count as they were reserved."""

    period: str
    tenant: str | None
    user: str | None
    """None for the usage of the whole tenant."""
    calls: int
    tokens: int
    cost: float


class UsageList(ReplyBody):
    """The usage that the caller may see: all of it as a viewer, or the caller's own."""

    usage: tuple[UsageItem, ...]


class SpendingApi:
    """The route for budgets."""

    def __init__(self, store: QuotaStore | None) -> None:
        self._store = store

    async def read_budgets(self, request: Request, query: PeriodQuery) -> UsageList:
        """Read what tenants and users have used of their budgets, as `waystation budget` lists it."""
        if self._store is None:
            text = f"This server has no quota file. Its operator sets {QUOTAS_ENV} to the file of the workers."
            raise RequestRefused(HTTPStatus.NOT_FOUND, "NoQuotas", text)
        rows = [
            UsageItem(**row._asdict() | {"tenant": row.tenant or None})
            for row in await self._store.list_spending(query.period)
        ]
        login = request.state.login
        return UsageList(usage=tuple(row for row in rows if sees_invocation(login, (row.user,), row.tenant)))
