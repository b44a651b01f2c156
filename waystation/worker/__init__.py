"""Workers: agents as a Temporal plugin, and the program that serves them."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from waystation.core.settings import Settings
    from waystation.worker.plugin import WORKER_OPTIONS, WaystationPlugin, create_worker

__all__ = ["WORKER_OPTIONS", "Settings", "WaystationPlugin", "create_worker"]

_EXPORTS = {
    "waystation.core.settings": "Settings",
    "waystation.worker.plugin": "WORKER_OPTIONS WaystationPlugin create_worker",
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
