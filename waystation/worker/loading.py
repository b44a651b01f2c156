"""Load the modules of the worker program in less time than a plain import would take."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from waystation.core.payload import Recorded
from waystation.lazy_exports import pause_collection


@contextmanager
def load_worker() -> Iterator[None]:
    """Load modules that the block imports. The validators of recorded types are built when the worker polls."""
    with pause_collection():
        if "rich" not in sys.modules:
            # structlog imports rich, if it is installed, to format tracebacks. The worker formats them without it.
            sys.modules["rich"] = None  # type: ignore[assignment]
            import structlog  # noqa: F401

            del sys.modules["rich"]
        Recorded.model_config["defer_build"] = True
        yield
        gc.freeze()  # otherwise, a collection of all modules would follow, which takes 6% of the time to start
