"""By what invocations and sessions are found: Temporal's search attributes, under the names of the wire contract."""

from collections.abc import Mapping

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from waystation.core.wire import (
    SEARCH_AGENT,
    SEARCH_PENDING,
    SEARCH_STATUS,
    InvocationInput,
    found_at_start,
    found_by,
)

AGENT = SearchAttributeKey.for_keyword(SEARCH_AGENT)
STATUS = SearchAttributeKey.for_keyword(SEARCH_STATUS)
PENDING = SearchAttributeKey.for_keyword_list(SEARCH_PENDING)


def identity(agent: str, user_id: str, session_id: str | None) -> list[SearchAttributePair[str]]:
    """Return what never changes of an invocation or a session."""
    return _pairs(found_by(agent, user_id, session_id))


def at_start(started: InvocationInput) -> TypedSearchAttributes:
    """Return what a called agent, or the invocation of a session, is started with."""
    return TypedSearchAttributes(_pairs(found_at_start(started)))


def _pairs(values: Mapping[str, str]) -> list[SearchAttributePair[str]]:
    return [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in values.items()]
