from waystation.core.budget import ModelLimit, PeriodBudget, Quotas
from waystation.core.contract import Settings
from waystation.worker.metric_export import BUCKETS, MetricExport
from waystation.worker.nexus_service import AgentService
from waystation.worker.plugin import WORKER_OPTIONS, WaystationPlugin, announce_agents, create_worker
from waystation.worker.span_export import SpanExport
from waystation.worker.status_server import StatusServer, parse_address

__all__ = [
    "BUCKETS",
    "WORKER_OPTIONS",
    "AgentService",
    "MetricExport",
    "ModelLimit",
    "PeriodBudget",
    "Quotas",
    "Settings",
    "SpanExport",
    "StatusServer",
    "WaystationPlugin",
    "announce_agents",
    "create_worker",
    "parse_address",
]
