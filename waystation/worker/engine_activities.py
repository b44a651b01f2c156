"""The activities of the engine, as one worker process serves them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from waystation.activities import (
    CarryOver,
    Channels,
    Compactor,
    LogCache,
    ModelCaller,
    Models,
    Notifier,
    Reviewer,
    ScopeKeeper,
    Sessions,
    SignsLinks,
    ToolCaller,
    Verifies,
)
from waystation.agents.registry import Registry
from waystation.client import has_search_attributes
from waystation.core import (
    ARCHIVE,
    ARCHIVE_SESSION,
    CHILD,
    COLLECT,
    FLUSH_SCOPES,
    MODEL,
    NOTIFY,
    TAKE_OVER,
    VERIFY,
    EngineActivity,
    Settings,
    ToolCallInput,
)
from waystation.storage import Blobs
from waystation.tools.services import Services
from waystation.workflows.ports import data_of, raw

Activity = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Collaborators:
    """What the activities use besides Temporal."""

    registry: Registry
    models: Models
    services: Services
    blobs: Blobs
    identity: Verifies | None = None
    """What verifies the identity of approvers; None: no token proves anything."""
    channels: Channels | None = None
    """How approvers are notified."""
    sign_link: SignsLinks | None = None
    """What signs the links in notifications."""


class EngineActivities:
    """The activities of one worker, over one client."""

    def __init__(self, client: Client, use: Collaborators, settings: Settings) -> None:
        self._client = client
        self.logs = LogCache(client, use.blobs)
        scopes = ScopeKeeper(client, self.logs)
        sessions = Sessions(client, use.blobs, scopes)
        limits = settings.activity
        self._models = ModelCaller(
            use.registry,
            self.logs,
            sessions,
            use.models,
            services=use.services,
            scopes=scopes,
            notify=use.channels.default if use.channels else (),
            compactor=Compactor(use.models, limits=limits),
            limits=limits,
        )
        self._tools = ToolCaller(use.registry, self.logs, sessions, services=use.services, limits=limits)
        reviewer = Reviewer(
            use.registry, self.logs, sessions, services=use.services, identity=use.identity, limits=limits
        )
        carry_over = CarryOver(client, use.registry, self.logs, use.blobs, overrides=settings.allow_overrides)
        self.served: Sequence[Activity] = [
            _engine_activity(MODEL, self._models.call),
            _engine_activity(ARCHIVE, carry_over.archive),
            _engine_activity(CHILD, carry_over.child_outcome),
            _engine_activity(TAKE_OVER, carry_over.take_over),
            _engine_activity(NOTIFY, Notifier(self.logs, use.channels, use.sign_link).notify),
            _engine_activity(VERIFY, reviewer.review),
            _tool_activity(self._tools.call),
            _engine_activity(FLUSH_SCOPES, scopes.apply),
            _engine_activity(COLLECT, sessions.collect),
            _engine_activity(ARCHIVE_SESSION, sessions.archive),
        ]

    async def start(self) -> None:
        """Find out what the namespace has. Called when the worker starts, before it polls."""
        self._models.search_attributes = await has_search_attributes(self._client)


def _engine_activity(row: EngineActivity[Any], handler: Callable[[Any], Awaitable[bytes]]) -> Activity:
    @activity.defn(name=row.name)
    async def run(params: RawValue) -> RawValue:
        return raw(await handler(row.input.model_validate_json(data_of(params.payload))))

    return run


def _tool_activity(handler: Callable[[ToolCallInput], Awaitable[bytes]]) -> Activity:
    @activity.defn(dynamic=True)
    async def call_tool(params: Sequence[RawValue]) -> RawValue:
        name = activity.info().activity_type
        if "." not in name:  # as tools' are; others are of workers of another version, whose input may look like one
            raise ApplicationError(f"No activity is named {name!r} here; a worker of another version may have it.")
        try:
            parsed = ToolCallInput.model_validate_json(data_of(params[0].payload) if params else b"")
        except ValueError:
            text = f"No activity is named {name!r} here, and its input is not that of a tool call."
            raise ApplicationError(text, non_retryable=True) from None
        return raw(await handler(parsed))

    return call_tool
