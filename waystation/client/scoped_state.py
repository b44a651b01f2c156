"""Read and delete `user:` and `app:` state. No worker has to run for either."""

from contextlib import suppress

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from waystation.core.payload import JsonObject, copy_json
from waystation.core.scope import app_scope, user_scope
from waystation.core.wire import DEFAULT_APP, DEFAULT_USER
from waystation.history import ScopeReader


class ScopedState:
    """State that outlives sessions; `AgentClient.state`."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal

    async def user(self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER) -> JsonObject:
        """Return a user's state in an app, with the prefix `user:` in its keys; empty when nothing is stored.

        Raises:
            ScopeNameTooLong: The names do not fit into an id, so nothing can be stored for them.
        """
        return await self._read(user_scope(app, user_id))

    async def app(self, *, app: str = DEFAULT_APP) -> JsonObject:
        """Return an app's state, with the prefix `app:` in its keys; empty when nothing is stored.

        Raises:
            ScopeNameTooLong: The name does not fit into an id.
        """
        return await self._read(app_scope(app))

    async def delete_user(self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER) -> bool:
        """Delete a user's state in an app; return whether there was any. Later writes start from nothing."""
        return await self._delete(user_scope(app, user_id))

    async def delete_app(self, *, app: str = DEFAULT_APP) -> bool:
        """Delete an app's state; return whether there was any. Later writes start from nothing."""
        return await self._delete(app_scope(app))

    async def _read(self, scope_id: str) -> JsonObject:
        state: JsonObject = copy_json((await ScopeReader(self._temporal).read(scope_id)).state)
        return state

    async def _delete(self, scope_id: str) -> bool:
        handle = self._temporal.get_workflow_handle(scope_id)
        try:
            description = await handle.describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        # Terminated first: the deletion takes a while, and nothing may be read or written in the meantime.
        with suppress(RPCError):
            await handle.terminate("the state was deleted")
        request = DeleteWorkflowExecutionRequest(
            namespace=self._temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=scope_id, run_id=description.run_id or ""),
        )
        with suppress(RPCError):  # terminated, it reads as empty, and the namespace's retention removes it
            await self._temporal.workflow_service.delete_workflow_execution(request)
        return True
