from waystation.core import Settings
from waystation.worker.plugin import WORKER_OPTIONS, WaystationPlugin, create_worker

__all__ = [
    "WORKER_OPTIONS",
    "Settings",
    "WaystationPlugin",
    "create_worker",
]
