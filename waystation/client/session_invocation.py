"""The invocation that a message of a session goes to, which may not have begun yet."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowHandle, WorkflowHistory

from waystation.client.agent_client import Invocation
from waystation.core.answer import Action, PendingCall
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.wire import InvocationResult

if TYPE_CHECKING:
    from waystation.client.agent_client import AgentClient
    from waystation.client.session_begun import Begun
    from waystation.client.session_client import Session


class SessionInvocation(Invocation):
    """As any invocation; one that still waits for its turn is waited for first, by the server's long-poll."""

    def __init__(
        self, client: "AgentClient", handle: WorkflowHandle[Any, Any], begun: "Begun", *, new: bool = False
    ) -> None:
        super().__init__(client, handle)
        self._begun: Begun | None = begun
        self._new = new

    async def started(self) -> None:
        """Wait until it has begun.

        Raises:
            SessionClosed: The session has ended before.
        """
        if self._begun is not None:
            await self._begun.until(self.id, new=self._new)
            self._begun = None

    async def result(self) -> InvocationResult:
        """Wait for the end and return the result; see `Invocation.result`."""
        await self.started()
        return await super().result()

    async def history(self) -> WorkflowHistory:
        """Return what Temporal recorded."""
        await self.started()
        return await super().history()

    async def follow(self) -> AsyncIterator[Log]:
        """Yield the log whenever history has grown, until the invocation ends; see `Invocation.follow`."""
        await self.started()
        async for log in super().follow():
            yield log

    async def pending(self) -> list[PendingCall]:
        """Return what waits for a person. No worker has to run."""
        await self.started()
        return await super().pending()

    async def answer(self, action: Action, function_call_id: str | None = None, **options: Any) -> JsonObject:
        """Answer a call that waits; see `Invocation.answer`."""
        await self.started()
        return await super().answer(action, function_call_id, **options)

    async def cancel(self) -> None:
        """Ask it to end; see `Invocation.cancel`."""
        await self.started()
        await super().cancel()


class Sent(SessionInvocation):
    """The invocation that a message goes to, and what became of the message."""

    def __init__(
        self, session: "Session", invocation_id: str, status: str, duplicate: bool = False, *, new: bool = False
    ) -> None:
        handle: WorkflowHandle[Any, Any] = session.client.temporal.get_workflow_handle(invocation_id)
        super().__init__(session.client, handle, session.begun, new=new)
        self.session = session
        self.status = status
        """`started`, `queued` or `joined`; for a message sent before, what has become of its invocation."""
        self.duplicate = duplicate
        """Whether a message of the same `message_id` was taken before; then that one counts, and not this."""

    @property
    def invocation_id(self) -> str:
        """Id of the invocation."""
        return self.id

    async def invocation(self) -> "Sent":
        """Wait until the invocation has begun, and return it."""
        await self.started()
        return self
