from waystation.core import Settings
from waystation.worker.plugin import WORKER_OPTIONS, WaystationPlugin, announce_agents, create_worker

__all__ = [
    "WORKER_OPTIONS",
    "Settings",
    "WaystationPlugin",
    "announce_agents",
    "create_worker",
]
