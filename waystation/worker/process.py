"""Changes that the worker program makes to its own process, so that it starts sooner and uses less CPU time.

No other program does: workers in a user's process, clients and tests leave the SDK and the garbage collector as they
are.
"""

import gc
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # otherwise, importing this module would take longer than what it saves
    from google.protobuf.message import Message
    from temporalio.converter import DataConverter

    from waystation.storage.driver import Offload

_Walk: TypeAlias = Callable[..., Awaitable[Any]]


@contextmanager
def load_worker() -> Iterator[None]:
    """Load the modules that the block imports in less time than a plain import would take."""
    was_enabled = gc.isenabled()
    gc.disable()  # nearly all objects of a module stay in use, but collections take a tenth of the time to start
    try:
        if "rich" not in sys.modules:
            # structlog imports rich, if it is installed, to format tracebacks. The worker formats them without it.
            sys.modules["rich"] = None  # type: ignore[assignment]
            import structlog  # noqa: F401

            del sys.modules["rich"]
        yield
        gc.freeze()  # otherwise, a collection of all modules would follow, which takes 6% of the time to start
    finally:
        if was_enabled:
            gc.enable()


def tune_process() -> None:
    """Let collections and workflow tasks take less time. Call this once, before the worker starts."""
    gc.freeze()  # Full collections then leave out modules. They take less time, and so also run sooner.
    # By default, 700 new objects start a collection, and about 93,000 a full one; here, 10,000 and 220,000.
    gc.set_threshold(10_000, 5, 2)
    skip_needless_walks()


def skip_needless_walks() -> None:
    """Make the SDK's workers leave out work on the payloads of workflow tasks that would change nothing.

    The SDK walks three times through each workflow task that arrives, and three times through its completion: for the
    codec, the store and the references. It also creates two converters for each task, which pass the serialization
    context to the parts of the worker's converter. All this took a twelfth of a worker's CPU time.

    The walks still take place if the converter has a codec or another kind of external storage, and the converters are
    still created if a part may use the context. An SDK without these functions is left as it is.
    """
    with suppress(ImportError, AttributeError):
        from temporalio.bridge import worker
        from temporalio.worker import _workflow

        from waystation.storage import may_have_reference

        bridge: Any = worker  # mypy does not let functions of a module be replaced
        bridge.decode_activation = _walk_if(
            lambda activation, _: may_have_reference(activation.SerializeToString()), bridge.decode_activation
        )
        bridge.encode_completion = _walk_if(
            lambda completion, storage: completion.ByteSize() >= storage.payload_size_threshold,
            bridge.encode_completion,
        )
        converters: Any = _workflow._CommandAwareDataConverter
        converters.create = staticmethod(_create_if_needed(converters.create))


def _create_if_needed(create: "Callable[..., DataConverter]") -> "Callable[..., DataConverter]":
    from waystation.storage.driver import Offloading

    def create_if_needed(*args: Any, **parts: Any) -> "DataConverter":
        converter = parts.get("context_free_dc")
        if isinstance(converter, Offloading) and not converter.uses_context:
            return converter
        return create(*args, **parts)

    return create_if_needed


def _walk_if(is_needed: "Callable[[Message, Offload], bool]", walk: _Walk) -> _Walk:
    from temporalio.converter._extstore import StorageOperationMetrics

    from waystation.storage.driver import Offload

    async def walk_if_needed(message: "Message", data_converter: "DataConverter", *args: Any, **options: Any) -> Any:
        storage = data_converter.external_storage
        if data_converter.payload_codec is None and isinstance(storage, Offload) and not is_needed(message, storage):
            return StorageOperationMetrics()
        return await walk(message, data_converter, *args, **options)

    return walk_if_needed
