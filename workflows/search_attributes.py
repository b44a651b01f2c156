"""By what invocations and sessions are found: Temporal's search attributes, under the names of the wire contract."""

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from waystation.core.wire import (
    SEARCH_AGENT,
    SEARCH_PENDING,
    SEARCH_SESSION,
    SEARCH_STATUS,
    SEARCH_USER,
    InvocationInput,
)

AGENT = SearchAttributeKey.for_keyword(SEARCH_AGENT)
SESSION = SearchAttributeKey.for_keyword(SEARCH_SESSION)
USER = SearchAttributeKey.for_keyword(SEARCH_USER)
STATUS = SearchAttributeKey.for_keyword(SEARCH_STATUS)
PENDING = SearchAttributeKey.for_keyword_list(SEARCH_PENDING)

RUNNING = "running"
MAX_KEYWORD = 200
"""The server refuses keywords over 2,048 bytes, and a refused upsert sticks the workflow."""


def identity(agent: str, user_id: str, session_id: str | None) -> list[SearchAttributePair[str]]:
    """Return what never changes of an invocation or a session."""
    values = [(AGENT, agent), (USER, user_id), (SESSION, session_id)]
    return [SearchAttributePair(key, value[:MAX_KEYWORD]) for key, value in values if value]


def at_start(started: InvocationInput) -> TypedSearchAttributes:
    """Return what an invocation is started with: so it is found from its first moment, and spared an upsert."""
    named = identity(started.agent, started.user_id, started.session_id)
    return TypedSearchAttributes([*named, SearchAttributePair(STATUS, RUNNING)])
