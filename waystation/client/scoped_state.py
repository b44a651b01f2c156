"""Read and delete `user:` and `app:` state. No worker has to run for either."""

from contextlib import suppress

from temporalio.client import Client
from temporalio.service import RPCError

from waystation.client.session_management import delete_run
from waystation.core import DEFAULT_APP, DEFAULT_USER, JsonObject, app_scope, copy_json, user_scope
from waystation.history import ScopeReader, WorkflowRun, describe_workflow


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
        described = await describe_workflow(self._temporal, scope_id)
        if described is None:
            return False
        # Terminated first: the deletion takes a while, and nothing may be read or written in the meantime.
        with suppress(RPCError):
            await self._temporal.get_workflow_handle(scope_id).terminate("the state was deleted")
        with suppress(RPCError):  # terminated, it reads as empty, and the namespace's retention removes it
            await delete_run(self._temporal, WorkflowRun(scope_id, described.run_id))
        return True
