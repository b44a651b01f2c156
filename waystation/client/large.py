"""What is large, and cannot be sent or read: told as errors of ours."""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.service import RPCError, RPCStatusCode

from waystation.core.errors import InvalidInput, StoreFailed
from waystation.core.payload import encode
from waystation.storage.blobs import STORE_VARIABLE
from waystation.storage.driver import INLINE_LIMIT, UNREADABLE

_REFUSALS = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.RESOURCE_EXHAUSTED)
"""The second for what is over the 4 MB of a gRPC message."""


@contextmanager
def sending(given: object) -> Iterator[None]:
    """Send `given` within; the server's refusal of a large one says what to do.

    Raises:
        InvalidInput: It is too large for the server, and this client keeps nothing beside the history.
    """
    try:
        yield
    except RPCError as error:
        if error.status not in _REFUSALS or (size := len(encode(given))) <= INLINE_LIMIT:
            raise
        raise InvalidInput(
            f"The input is {size:,} bytes; the server takes {INLINE_LIMIT:,} of a client that keeps no large payloads "
            "beside the history. Make it with `AgentClient.connect(store=...)`, with the store of the workers."
        ) from None


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Have the SDK read `what` within.

    Raises:
        StoreFailed: It was offloaded, and the client's store does not hold it.
    """
    try:
        yield
    except KeyError as error:
        if UNREADABLE["encoding"].decode() not in str(error):
            raise
        problem = f"{what} is not there. The remedy is --store, or {STORE_VARIABLE}."
        raise StoreFailed("which large payloads are kept", problem) from None
