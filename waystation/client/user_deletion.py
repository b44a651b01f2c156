"""Delete everything that is stored for a user. None of this needs a running worker."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Protocol

from temporalio.client import Client, WorkflowExecution
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from waystation.client.approvals import is_quotable
from waystation.client.schedules import read_input
from waystation.client.search_attributes import TENANT, USER, has_search_attributes
from waystation.client.session_management import AT_A_TIME, MAX_ROUNDS, delete_run, delete_runs, stop_runs
from waystation.core import ids
from waystation.core.contract import MAX_KEYWORD, SEARCH_USER, TASK_TIMEOUT
from waystation.core.errors import ScopeNameTooLong
from waystation.core.payload import JsonObject
from waystation.core.scope_state import SCOPE_WORKFLOW, user_scope
from waystation.history import (
    OWNED_TYPES,
    WorkflowRun,
    fetch_or_none,
    find_open_workflows,
    list_open,
    list_runs,
    read_owner,
    run_of,
)
from waystation.storage import USER_KEYS_VARIABLE, Owner, find_user_keys_of

_NOT_LISTED = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED)
OUT_OF_REACH = (
    "backups of the server's database and of the stores, and histories that the server archives",
    "exported histories, reports and audits, logs, traces, and messages that were sent to other systems",
    "app state (`app:`), and data of other users that mentions this user or contains answers by this user",
    "workflows of your own, such as those that start invocations for this user, and those that tools start",
    "large payloads of the deleted histories, until `waystation store prune` removes them",
)
"""Data that is never deleted."""


class UserStore(Protocol):
    """A store of artifacts, memories or credentials that can delete what belongs to a user."""

    async def list_user_apps(self, *, user_id: str) -> list[str]:
        """Return the apps in which the store has something of a user."""

    async def delete_user(self, *, app_name: str, user_id: str, dry_run: bool = False) -> int:
        """Delete what belongs to a user in an app, or only count it. Return the number of items."""


class UsageStore(Protocol):
    """A store that counts what users used; see `waystation.storage.quota_store.QuotaStore`."""

    async def delete_user(self, tenant: str, user: str, *, dry_run: bool = False) -> int:
        """Delete what is counted for a user, or only count the periods. Return their number."""


@dataclass(kw_only=True, slots=True)
class DeletedUser:
    """The result of deleting a user's data.

    The server deletes workflows in the background, after about 30 seconds. Until then, deleting the user again lists
    the same workflows.
    """

    user_id: str
    app: str | None
    """The app, or None for all apps."""
    tenant: str | None
    dry_run: bool
    """Whether nothing was changed. The other fields then name what would be deleted."""
    workflows: list[str] = field(default_factory=list)
    """Workflow IDs of the user's invocations, sessions and state, and of the agents that they called."""
    owners: dict[str, JsonObject] = field(default_factory=dict)
    """The owner of each workflow as recorded in its input: the user, the app (empty if unknown) and the tenant."""
    runs: int = 0
    """Number of runs of these workflows."""
    stopped: list[str] = field(default_factory=list)
    """IDs of the workflows that were still running and had to be stopped."""
    schedules: list[str] = field(default_factory=list)
    """IDs of the schedules that start invocations for the user."""
    artifacts: int = 0
    memories: int = 0
    credentials: int = 0
    """Number of credentials and unfinished logins."""
    usage: int = 0
    """Number of days and months for which the user's usage was counted."""
    keys: int = 0
    """Number of deleted encryption keys of the user. Backups that are encrypted with them have become unreadable."""
    left: list[str] = field(default_factory=list)
    """Data that was not deleted."""

    def __bool__(self) -> bool:
        return bool(
            self.workflows
            or self.schedules
            or self.artifacts
            or self.memories
            or self.credentials
            or self.usage
            or self.keys
        )

    def to_json(self) -> JsonObject:
        """Return the result as JSON."""
        return asdict(self)


@dataclass(kw_only=True)
class UserDeletion:
    """Deletes everything that is stored for a user in one app or in all apps. Each object is used once."""

    temporal: Client
    task_queue: str
    user_id: str
    app: str | None
    tenant: str | None
    grace: timedelta
    """Time that running tools have to finish before their invocations are terminated."""
    dry_run: bool
    _inputs: dict[WorkflowRun, Owner | None] = field(default_factory=dict)
    """The owners that the inputs of runs name. None for inputs that cannot be read."""
    _owners: dict[str, Owner] = field(default_factory=dict)
    """The owners of the user's workflows, which differ only in their apps."""
    _unreadable: set[str] = field(default_factory=set)
    """IDs of the workflows whose owner is unknown."""
    _found: set[WorkflowRun] = field(default_factory=set)
    """The runs that were deleted, or would be."""

    async def run(self, stores: Mapping[str, UserStore | None], usage: UsageStore | None) -> DeletedUser:
        """Delete the data, and return what was deleted.

        `stores` contains the stores under the names of the fields of `DeletedUser`.

        Raises:
            RPCError: The server cannot be reached. Repeat the deletion.
            StoreFailed: A store is unavailable. Repeat the deletion.
            CredentialStoreError: The credential store is unavailable. Repeat the deletion.
        """
        deleted = DeletedUser(user_id=self.user_id, app=self.app, tenant=self.tenant, dry_run=self.dry_run)
        mark = None if self.dry_run else await self._refuse_starts()
        # A schedule could start invocations for the user while their data is deleted.
        await self._delete_schedules(deleted)
        await self._delete_data(deleted, stores, usage, self.grace)
        await self._delete_keys(deleted, stores, usage)
        deleted.workflows = sorted({run.workflow_id for run in self._found})
        deleted.runs, deleted.stopped = len(self._found), sorted(deleted.stopped)
        deleted.owners = {id: _to_json(self._owners[id]) for id in deleted.workflows}
        if self._unreadable:
            some = ", ".join(sorted(self._unreadable)[:5])
            deleted.left.append(f"{len(self._unreadable)} workflows whose input this process cannot read: {some}")
        deleted.left = [*dict.fromkeys(deleted.left), *OUT_OF_REACH]
        if mark is not None:
            await self._serve_again(mark)
        return deleted

    async def _refuse_starts(self) -> WorkflowRun:
        """Refuse whatever would start for the user from now on, and wait until what started before is listed.

        A running workflow is the mark: it outlives this process, and holds no data. `check_start` looks for it.
        """
        id = ids.forgetting(self.tenant, self.app, self.user_id)
        handle = await self.temporal.start_workflow(
            SCOPE_WORKFLOW,
            id=id,
            task_queue=self.task_queue,
            task_timeout=TASK_TIMEOUT,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        mark = WorkflowRun(id, handle.result_run_id or "")
        await list_runs(self.temporal, id, mark.run_id)
        return mark

    async def _serve_again(self, mark: WorkflowRun) -> None:
        handle = self.temporal.get_workflow_handle(mark.workflow_id, run_id=mark.run_id)
        await fetch_or_none(handle.terminate("the user's data was deleted"))  # another deletion may have ended it
        await fetch_or_none(delete_run(self.temporal, mark))

    async def _delete_data(
        self, deleted: DeletedUser, stores: Mapping[str, UserStore | None], usage: UsageStore | None, grace: timedelta
    ) -> None:
        """Stop the user's workflows, and delete what is in the stores, then the workflows, until nothing is left.

        As long as workflows exist, they are listed and the deletion can be repeated.
        """
        for number in range(MAX_ROUNDS):
            if self.dry_run:
                found = await self._find()
                runs, stopped = set(found), {run.workflow_id for run, is_open in found.items() if is_open}
            else:
                runs, stopped = await stop_runs(self.temporal, self._find, timedelta() if number else grace)
            if number and not runs:
                return
            deleted.stopped = list({*deleted.stopped, *stopped})
            # Running workflows could have saved more, so the stores come after they have ended.
            for name, store in stores.items():
                count = await self._delete_stored(name, store, deleted.left)
                setattr(deleted, name, getattr(deleted, name) + count)
            await self._delete_usage(usage, deleted)
            self._found |= runs
            if self.dry_run:
                return
            await delete_runs(self.temporal, runs)
        deleted.left.append("workflows that programs other than Waystation's client keep starting for the user")

    async def _delete_keys(
        self, deleted: DeletedUser, stores: Mapping[str, UserStore | None], usage: UsageStore | None
    ) -> None:
        """Delete the user's keys once no process uses them to encrypt."""
        if (keys := find_user_keys_of(self.temporal)) is None:
            deleted.left.append(f"keys, if the workers have {USER_KEYS_VARIABLE}: it is not set for this process")
            return
        apps = [app for app in await keys.list_user_apps(user_id=self.user_id) if self._includes(app)]
        if apps and not self.dry_run:
            for app in apps:
                await keys.retire(app_name=app, user_id=self.user_id)
            await asyncio.sleep(keys.cache_s)
            # Workflows that began in the meantime may be encrypted with a retired key.
            await self._delete_data(deleted, stores, usage, timedelta())
        for app in apps:
            deleted.keys += await keys.delete_user(app_name=app, user_id=self.user_id, dry_run=self.dry_run)

    async def _find(self) -> dict[WorkflowRun, bool]:
        """Return the user's runs that were not deleted yet, and whether each is open."""
        query = f"WorkflowType IN {OWNED_TYPES}"
        if is_quotable(self.user_id) and await has_search_attributes(self.temporal):
            query += f" AND ({SEARCH_USER} = '{self.user_id[:MAX_KEYWORD]}' OR {SEARCH_USER} IS NULL)"
        runs = await self._select([execution async for execution in self.temporal.list_workflows(query)])
        states = set[str]()  # visibility may not list them yet
        for owner in self._owners.values():
            with suppress(ScopeNameTooLong):
                states.add(user_scope(owner.app, self.user_id))
        open_ids = {run.workflow_id for run, is_open in runs.items() if is_open}
        runs |= await self._select(await find_open_workflows(self.temporal, states | open_ids))
        return {run: is_open for run, is_open in runs.items() if run not in self._found}

    async def _select(self, executions: Sequence[WorkflowExecution]) -> dict[WorkflowRun, bool]:
        """Return those of the runs that belong to the user, and whether each is open."""
        limit = asyncio.Semaphore(AT_A_TIME)

        async def read(execution: WorkflowExecution) -> None:
            async with limit:
                self._inputs[run_of(execution)] = await read_owner(self.temporal, execution)

        await asyncio.gather(*(read(each) for each in executions if run_of(each) not in self._inputs))
        selected = []
        for each in sorted(executions, key=lambda each: each.start_time):  # callers first
            owner = self._inputs[run_of(each)] or self._guess_owner(each)
            is_of_tenant = owner == Owner.of_tenant(self.tenant or "")
            if owner and owner.user_id == self.user_id and self._includes(owner.app) and not is_of_tenant:
                self._owners[each.id] = owner
                selected.append(each)
        return list_open(selected)

    def _guess_owner(self, execution: WorkflowExecution) -> Owner | None:
        """Return the owner of a run whose input cannot be read: that of its caller, or of its search attributes."""
        if execution.parent_id in self._owners:
            return self._owners[execution.parent_id]
        user, tenant = (execution.typed_search_attributes.get(key) for key in (USER, TENANT))
        is_theirs = user == self.user_id[:MAX_KEYWORD]
        if user is None or (is_theirs and (self.app is not None or len(user) == MAX_KEYWORD)):
            if execution.workflow_type != SCOPE_WORKFLOW:
                self._unreadable.add(execution.id)
            return None
        return Owner(f"{tenant}~~" if tenant else "", self.user_id if is_theirs else user)

    def _includes(self, app_key: str) -> bool:
        app, tenant = ids.parse_app_key(app_key)
        return tenant == self.tenant and self.app in (None, app)

    async def _delete_schedules(self, deleted: DeletedUser) -> None:
        try:
            async for listed in await self.temporal.list_schedules():
                handle = self.temporal.get_schedule_handle(listed.id)
                started = await read_input(self.temporal, await handle.describe())
                if started and started.user_id == self.user_id and self._includes(started.app_key):
                    deleted.schedules.append(listed.id)
                    if not self.dry_run:
                        await handle.delete()
        except RPCError as error:
            if error.status not in _NOT_LISTED:
                raise
            deleted.left.append(f"schedules: the server does not list them ({error.message})")

    async def _delete_stored(self, name: str, store: UserStore | None, left: list[str]) -> int:
        """Delete what a store has in the user's apps and in those that it lists. Return how many items."""
        if store is None:
            left.append(f"{name}: no store was given")
            return 0
        try:
            apps = {app for app in await store.list_user_apps(user_id=self.user_id) if self._includes(app)}
            if self.app is not None:
                apps.add(ids.app_key(self.app, self.tenant))
            apps |= {owner.app for owner in self._owners.values() if ids.parse_app_key(owner.app)[0]}
            return sum(
                [
                    await store.delete_user(app_name=ids.shown_app(app), user_id=self.user_id, dry_run=self.dry_run)
                    for app in sorted(apps)
                ]
            )
        except NotImplementedError as error:
            left.append(f"{name}: {error}")
            return 0

    async def _delete_usage(self, store: UsageStore | None, deleted: DeletedUser) -> None:
        if store is None or self.app is not None:
            reason = "no quota file was given" if store is None else "it is not counted by app"
            deleted.left.append(f"usage, if it is counted: {reason}")
        else:
            deleted.usage += await store.delete_user(self.tenant or "", self.user_id, dry_run=self.dry_run)


def _to_json(owner: Owner) -> JsonObject:
    app, tenant = ids.parse_app_key(owner.app)
    return {"user_id": owner.user_id, "app": app, "tenant": tenant}
