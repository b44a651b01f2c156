"""Whether the search attributes of the wire contract exist; an upsert of others would stick a workflow for ever."""

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from waystation.core.wire import SEARCH_ATTRIBUTES

log = structlog.get_logger("waystation.worker")

_TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
}


async def search_attributes_registered(client: Client) -> bool:
    """Whether Waystation's search attributes exist in the namespace; says so once when they do not."""
    try:
        known = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError as error:
        log.warning("search_attributes.unknown", namespace=client.namespace, reason=error.status.name)
        return False
    # One of another type is none: the server would refuse its values, and the workflow would stick.
    missing = [name for name, kind in SEARCH_ATTRIBUTES.items() if known.custom_attributes.get(name) != _TYPES[kind]]
    if missing:
        log.warning(
            "search_attributes.missing",
            namespace=client.namespace,
            missing=sorted(missing),
            remedy="run `waystation setup`",
        )
    return not missing
