"""Look at `user:` and `app:` state from outside, and delete it. No worker has to run for either."""

from contextlib import suppress

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from waystation.core.payload import JsonObject, copy_json
from waystation.core.scope import app_scope, user_scope
from waystation.core.wire import DEFAULT_APP, DEFAULT_USER
from waystation.history import ScopeReader


class ScopeClient:
    """What a client does with state that outlives a conversation."""

    temporal: Client

    async def user_state(self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER) -> JsonObject:
        """Return a user's state in an app, with the prefix `user:` in its keys; empty when nothing is stored.

        Raises:
            ScopeNameTooLong: The names do not fit into an id, so nothing can be stored for them.
        """
        return await self._state_of(user_scope(app, user_id))

    async def app_state(self, *, app: str = DEFAULT_APP) -> JsonObject:
        """Return an app's state, with the prefix `app:` in its keys; empty when nothing is stored.

        Raises:
            ScopeNameTooLong: The name does not fit into an id.
        """
        return await self._state_of(app_scope(app))

    async def delete_user_state(self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER) -> bool:
        """Delete a user's state in an app; return whether there was any. What is written later begins anew."""
        return await self._delete(user_scope(app, user_id))

    async def delete_app_state(self, *, app: str = DEFAULT_APP) -> bool:
        """Delete an app's state; return whether there was any. What is written later begins anew."""
        return await self._delete(app_scope(app))

    async def _state_of(self, scope_id: str) -> JsonObject:
        found: JsonObject = copy_json((await ScopeReader(self.temporal).read(scope_id)).state)
        return found

    async def _delete(self, scope_id: str) -> bool:
        handle = self.temporal.get_workflow_handle(scope_id)
        try:
            description = await handle.describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        # Ended first: a deletion takes its time, and meanwhile nothing may be read or written any more.
        with suppress(RPCError):
            await handle.terminate("the state was deleted")
        await self._remove(scope_id, description.run_id or "")
        return True

    async def _remove(self, scope_id: str, run_id: str) -> None:
        from temporalio.api.common.v1 import WorkflowExecution
        from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

        request = DeleteWorkflowExecutionRequest(
            namespace=self.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=scope_id, run_id=run_id),
        )
        with suppress(RPCError):  # ended, it is as good as gone, and goes for good with the namespace's retention
            await self.temporal.workflow_service.delete_workflow_execution(request)
