"""Check for and create the search attributes that the wire contract defines.

The check matters because upserting a missing attribute would block a workflow forever.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from waystation.core.contract import (
    SEARCH_AGENT,
    SEARCH_ATTRIBUTES,
    SEARCH_PENDING,
    SEARCH_STATUS,
    SEARCH_TENANT,
    SEARCH_USER,
    InvocationInput,
)
from waystation.core.session_log import search_attributes_of

log = structlog.get_logger("waystation.worker")

LIST_LIMIT_S, ACCEPTED_LIMIT_S, ACCEPTED_POLL_S = 10.0, 15.0, 0.05
_NOT_LISTED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)
REMEDY = "run `waystation setup`"
ANY_TENANT = ""
"""Stands for all tenants. Without `WaystationTenant`, invocations of tenants do not set any search attributes."""
AGENT = SearchAttributeKey.for_keyword(SEARCH_AGENT)
PENDING = SearchAttributeKey.for_keyword_list(SEARCH_PENDING)
STATUS = SearchAttributeKey.for_keyword(SEARCH_STATUS)
TENANT = SearchAttributeKey.for_keyword(SEARCH_TENANT)
USER = SearchAttributeKey.for_keyword(SEARCH_USER)
SEARCH_ATTRIBUTE_TYPES = {
    name: {
        "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
        "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
    }[kind]
    for name, kind in SEARCH_ATTRIBUTES.items()
}


def make_start_attributes(started: InvocationInput) -> TypedSearchAttributes:
    """Return the search attributes for starting an invocation."""
    attributes = search_attributes_of(started).items()
    return TypedSearchAttributes(
        [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in attributes]
    )


async def add_search_attributes(client: Client, names: Iterable[str]) -> None:
    """Create the contract's search attributes with these names.

    Raises:
        RPCError: The server refused the request, or one of the search attributes already exists.
    """
    request = AddSearchAttributesRequest(
        namespace=client.namespace, search_attributes={name: SEARCH_ATTRIBUTE_TYPES[name] for name in names}
    )
    await client.operator_service.add_search_attributes(request)


async def check_search_attributes(client: Client) -> dict[str, bool]:
    """Return, by name, whether each of the contract's search attributes that exist has the right type.

    If the server refuses to list them, as Temporal Cloud does for some API keys, queries show which of them it accepts.

    Raises:
        RPCError: The server answers neither the list nor a query, so it is unknown which search attributes exist.
    """
    request, limit = ListSearchAttributesRequest(namespace=client.namespace), timedelta(seconds=LIST_LIMIT_S)
    try:
        types = (await client.operator_service.list_search_attributes(request, timeout=limit)).custom_attributes
    except RPCError as error:
        if error.status not in _NOT_LISTED:
            raise
        names = [*SEARCH_ATTRIBUTE_TYPES]
        if not await _accepts(client, names):
            names = [name for name in names if await _accepts(client, [name])]
        return dict.fromkeys(names, True)
    return {name: types[name] == kind for name, kind in SEARCH_ATTRIBUTE_TYPES.items() if name in types}


async def _accepts(client: Client, names: Iterable[str]) -> bool:
    """Return whether the server accepts a query with these search attributes."""
    try:
        await client.count_workflows(_match_nothing(names), rpc_timeout=timedelta(seconds=LIST_LIMIT_S))
    except RPCError as error:
        if error.status is not RPCStatusCode.INVALID_ARGUMENT:
            raise
        return False
    return True


def _match_nothing(names: Iterable[str]) -> str:
    """Return a query that matches nothing, and that the server refuses if a search attribute does not exist."""
    # Only search attributes of the type Keyword accept STARTS_WITH.
    conditions = {"Keyword": "STARTS_WITH '~'", "KeywordList": "= ''"}
    return " AND ".join(f"{name} {conditions[SEARCH_ATTRIBUTES[name]]}" for name in names)


def is_unmapped(error: RPCError) -> bool:
    """Return whether the server refused a request because it does not accept one of the search attributes."""
    return error.status is RPCStatusCode.INVALID_ARGUMENT and "no mapping defined for search attribute" in error.message


async def wait_until_accepted(client: Client, names: Iterable[str]) -> bool:
    """Wait until queries and starts can use search attributes. Return False if the server still refuses them.

    A server process reads the search attributes of namespaces every 2 s. Until then, it refuses new ones, although it
    already lists them. Behind a load balancer, this waits for the process to which the client is connected.
    """
    deadline = time.monotonic() + ACCEPTED_LIMIT_S
    while time.monotonic() < deadline:
        with suppress(RPCError):
            await client.count_workflows(_match_nothing(names))
            return True
        await asyncio.sleep(ACCEPTED_POLL_S)
    return False


async def has_search_attributes(client: Client, tenant: str | None = None) -> bool:
    """Return whether all search attributes exist with the right types. Return False if the server cannot tell.

    Without a tenant, `WaystationTenant` may be missing.
    """
    try:
        return suffices(await find_missing(client), tenant)
    except RPCError:
        return False


async def find_missing(client: Client) -> list[str]:
    """Return the names of the search attributes that are missing or have a wrong type.

    Raises:
        RPCError: It is unknown which search attributes exist; see `check_search_attributes`.
    """
    found = await check_search_attributes(client)
    return sorted(name for name in SEARCH_ATTRIBUTE_TYPES if not found.get(name))


def suffices(missing: Sequence[str], tenant: str | None) -> bool:
    """Return whether invocations can use the search attributes. Without a tenant, `WaystationTenant` may be missing."""
    return not missing or (tenant is None and list(missing) == [SEARCH_TENANT])


class SearchAttributeMonitor:
    """Knows whether a namespace has the search attributes at the moment.

    They can disappear while a worker is running, for example if the server is replaced by one with an empty database.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._missing: list[str] | None = None
        """The missing search attributes according to the last successful check, or None before the first one."""
        self._failed = False
        """Whether the last check failed."""

    @property
    def is_interrupted(self) -> bool:
        """Whether the last check failed, although an earlier one succeeded."""
        return self._failed and self._missing is not None

    def is_available(self, tenant: str | None = None) -> bool:
        """Return whether all search attributes existed at the last successful check.

        Without a tenant, `WaystationTenant` may have been missing.
        """
        return self._missing is not None and suffices(self._missing, tenant)

    async def refresh(self) -> None:
        """Check again, and log changes. If the server does not respond, the previous result remains valid."""
        namespace = self._client.namespace
        try:
            missing = await find_missing(self._client)
        except RPCError as error:
            if not self._failed:
                event = "search_attributes.unknown" if self._missing is None else "server.unavailable"
                log.warning(event, namespace=namespace, reason=error.status.name, problem=error.message)
            self._failed = True
            return
        if self._failed:
            log.info("server.available", namespace=namespace)
        if missing and missing != self._missing:
            log.warning("search_attributes.missing", namespace=namespace, missing=missing, remedy=REMEDY)
        elif self._missing and not missing:
            log.info("search_attributes.found", namespace=namespace)
        self._missing, self._failed = missing, False
