"""The workflows as workers with Temporal's worker versioning register them.

Open workflows move to the current build. If they were pinned to the build that started them, a session, which may never
end, would stop when this build has no more workers, and so would the invocations that wait for approval.

These are separate definitions, because the server refuses the workflow tasks of other workers if they name a versioning
behavior.
"""

from collections.abc import Mapping

from temporalio import workflow
from temporalio.common import RawValue, VersioningBehavior

from waystation.core.contract import EVENT_WORKFLOW, SESSION_WORKFLOW, WORKFLOW
from waystation.core.push import PUSH_WORKFLOW
from waystation.core.scope_state import SCOPE_WORKFLOW
from waystation.workflows.event_delivery import AgentEventDelivery
from waystation.workflows.invocation import AgentInvocation
from waystation.workflows.ports import NO_ARGUMENT
from waystation.workflows.push_delivery import AgentPushDelivery
from waystation.workflows.scope import AgentScope
from waystation.workflows.session import AgentSession


@workflow.defn(
    name=WORKFLOW,
    sandboxed=False,
    failure_exception_types=[RuntimeError, TypeError, ValueError, LookupError],
    versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
)
class VersionedInvocation(AgentInvocation):
    """An invocation that moves to the current build."""

    @workflow.run
    async def run(self, params: RawValue) -> RawValue:
        """Run the invocation until it ends."""
        return await super().run(params)


@workflow.defn(
    name=SESSION_WORKFLOW,
    sandboxed=False,
    failure_exception_types=[RuntimeError, TypeError, ValueError, LookupError],
    versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
)
class VersionedSession(AgentSession):
    """A session that moves to the current build."""

    @workflow.run
    async def run(self, params: RawValue) -> RawValue:
        """Handle messages until the session has been closed and all its invocations have ended."""
        return await super().run(params)


@workflow.defn(
    name=SCOPE_WORKFLOW,
    sandboxed=False,
    failure_exception_types=[TypeError],
    versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
)
class VersionedScope(AgentScope):
    """A scope that moves to the current build."""

    @workflow.run
    async def run(self, params: RawValue = NO_ARGUMENT) -> None:
        """Collect signals until the run reaches one of its limits, then continue as new."""
        await super().run(params)


@workflow.defn(
    name=EVENT_WORKFLOW,
    sandboxed=False,
    failure_exception_types=[ValueError, TypeError],
    versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
)
class VersionedEventDelivery(AgentEventDelivery):
    """A delivery that moves to the current build."""

    @workflow.run
    async def run(self, params: RawValue) -> RawValue:
        """Deliver the event to all endpoints, and return their names."""
        return await super().run(params)


@workflow.defn(
    name=PUSH_WORKFLOW,
    sandboxed=False,
    failure_exception_types=[ValueError, TypeError],
    versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
)
class VersionedPushDelivery(AgentPushDelivery):
    """A delivery of the states of a task that moves to the current build."""

    @workflow.init
    def __init__(self, params: RawValue) -> None:
        super().__init__(params)

    @workflow.run
    async def run(self, params: RawValue) -> None:
        """Deliver states until the task has ended."""
        await super().run(params)


VERSIONED: Mapping[type, type] = {
    AgentInvocation: VersionedInvocation,
    AgentSession: VersionedSession,
    AgentScope: VersionedScope,
    AgentEventDelivery: VersionedEventDelivery,
    AgentPushDelivery: VersionedPushDelivery,
}
"""The definitions for workers with worker versioning, by those for other workers."""
