"""Delete everything that is stored for a user. None of this needs a running worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, field
from datetime import timedelta
from typing import Protocol
from urllib.parse import unquote

from temporalio.client import Client, ScheduleDescription, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from waystation.client.approvals import is_quotable
from waystation.client.search_attributes import TENANT, USER, has_search_attributes
from waystation.client.session_management import AT_A_TIME, DeletedSession, delete_runs, stop_runs
from waystation.core import (
    MAX_KEYWORD,
    SCOPE_WORKFLOW,
    SEARCH_USER,
    SESSION_WORKFLOW,
    WORKFLOW,
    InvocationInput,
    JsonObject,
    WaystationError,
    decode,
    ids,
    user_scope,
)
from waystation.dataclass import dataclass
from waystation.history import WorkflowRun, decode_events, find_session_runs, get_attributes, read_json_content
from waystation.storage import USER_KEYS_VARIABLE, find_user_keys

_TYPES = f"WorkflowType IN ('{WORKFLOW}', '{SESSION_WORKFLOW}', '{SCOPE_WORKFLOW}')"
_NOT_LISTED = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED)
OUT_OF_REACH = (
    "backups of the server's database and of the stores, and histories that the server archives",
    "exported histories, reports and audits, logs, traces, and messages that were sent to other systems",
    "app state (`app:`), and data of other users that mentions this user or contains answers by this user",
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


@dataclass(frozen=True, kw_only=True)
class UserDeletion:
    """Deletes everything that is stored for a user in one app or in all apps."""

    temporal: Client
    user_id: str
    app: str | None
    tenant: str | None
    grace: timedelta
    """Time that running tools have to finish before their invocations are terminated."""
    dry_run: bool

    async def run(self, stores: Mapping[str, UserStore | None], usage: UsageStore | None) -> DeletedUser:
        """Delete the data, and return what was deleted.

        `stores` contains the stores under the names of the fields of `DeletedUser`.

        Raises:
            RPCError: The server cannot be reached. Repeat the deletion.
            StoreFailed: A store is unavailable. Repeat the deletion.
            CredentialStoreError: The credential store is unavailable. Repeat the deletion.
        """
        deleted = DeletedUser(user_id=self.user_id, app=self.app, tenant=self.tenant, dry_run=self.dry_run)
        # A schedule could start invocations for the user while their data is deleted.
        await self._delete_schedules(deleted)
        trees: dict[str, _Tree] = {}
        await self._stop(trees, self.grace)
        # Running workflows could have saved more, so the stores come after they have ended.
        keys = {ids.shown_app(tree.app_key) for tree in trees.values() if tree.app_key}
        for name, store in stores.items():
            setattr(deleted, name, await self._delete_stored(name, store, keys, deleted.left))
        await self._delete_usage(usage, deleted)
        await self._delete_workflows(trees)
        await self._delete_keys(deleted, trees)
        for tree in trees.values():
            deleted.workflows += tree.record.workflows
            deleted.stopped += tree.record.stopped
            deleted.runs += tree.record.runs
        deleted.left += OUT_OF_REACH
        return deleted

    async def _delete_workflows(self, trees: "dict[str, _Tree]") -> None:
        """Delete stopped workflows. As long as they exist, they are listed and the deletion can be repeated."""
        while any(tree.runs for tree in trees.values()):
            await _for_each(trees.values(), self._delete_runs)
            if self.dry_run:
                break
            await self._stop(trees, timedelta())  # finds workflows that visibility had not listed before

    async def _delete_keys(self, deleted: DeletedUser, trees: "dict[str, _Tree]") -> None:
        """Delete the user's keys once no process uses them to encrypt."""
        if (keys := find_user_keys()) is None:
            deleted.left.append(f"keys, if the workers have {USER_KEYS_VARIABLE}: it is not set for this process")
            return
        apps = [app for app in await keys.list_user_apps(user_id=self.user_id) if self._includes(app)]
        if apps and not self.dry_run:
            for app in apps:
                await keys.retire(app_name=app, user_id=self.user_id)
            await asyncio.sleep(keys.cache_s)
            # Workflows that began in the meantime may be encrypted with a retired key.
            await self._stop(trees, timedelta())
            await self._delete_workflows(trees)
        for app in apps:
            deleted.keys += await keys.delete_user(app_name=app, user_id=self.user_id, dry_run=self.dry_run)

    async def _stop(self, trees: "dict[str, _Tree]", grace: timedelta) -> None:
        """Find the user's workflows, stop those that are running, and set the runs that are not deleted yet."""
        async for root, app_key in self._find_roots():
            trees.setdefault(root, _Tree(DeletedSession(root), app_key))
        for app_key in {tree.app_key for tree in trees.values() if tree.app_key}:
            state = user_scope(app_key, self.user_id)  # visibility may not list it yet
            trees.setdefault(state, _Tree(DeletedSession(state), app_key))
        for root in [root for root in trees if any(root.startswith(f"{other}/") for other in trees)]:
            del trees[root]  # a called agent, which belongs to its caller's tree

        async def stop(tree: "_Tree") -> None:
            if self.dry_run:
                found = await find_session_runs(self.temporal, tree.record.id)
                tree.record.stopped = sorted(run.workflow_id for run, is_running in found.items() if is_running)
            else:
                # No code of the user runs in state workflows, so they need no time to end.
                is_state = tree.record.id.startswith("user/")
                found = await stop_runs(self.temporal, tree.record, timedelta() if is_state else grace)
            tree.runs = found.keys() - tree.deleted

        await _for_each(trees.values(), stop)

    async def _delete_runs(self, tree: "_Tree") -> None:
        await delete_runs(self.temporal, tree.runs, tree.record, dry_run=self.dry_run)
        tree.deleted |= tree.runs

    async def _find_roots(self) -> AsyncIterator[tuple[str, str | None]]:
        """Yield the IDs of the user's sessions, state workflows and invocations, each with its app's key if known.

        Invocations of a session that was deleted before are represented by the session's ID.
        """
        query, seen = _TYPES, set[str]()
        if is_quotable(self.user_id) and await has_search_attributes(self.temporal):
            query += f" AND ({SEARCH_USER} = '{self.user_id[:MAX_KEYWORD]}' OR {SEARCH_USER} IS NULL)"
        async for execution in self.temporal.list_workflows(query):
            if execution.id not in seen:
                seen.add(execution.id)
                if found := await self._match(execution):
                    yield found

    async def _match(self, execution: WorkflowExecution) -> tuple[str, str | None] | None:
        """Return the root and the app's key of a workflow if it belongs to the user, or else None."""
        match execution.id.split("/"):
            case ["session" | "invocation" as kind, app, user, name, *_]:
                root, key, user_id = f"{kind}/{app}/{user}/{name}", unquote(app), unquote(user)
            case ["user", app, user]:
                root, key, user_id = execution.id, unquote(app), unquote(user)
            case _ if execution.workflow_type == WORKFLOW:
                return await self._match_invocation(execution)
            case _:
                return None
        return (root, key) if user_id == self.user_id and self._includes(key) else None

    async def _match_invocation(self, execution: WorkflowExecution) -> tuple[str, str | None] | None:
        user, tenant = execution.typed_search_attributes.get(USER), execution.typed_search_attributes.get(TENANT)
        if user is not None and (user, tenant) != (self.user_id[:MAX_KEYWORD], self.tenant):
            return None
        if started := await self._read_input(execution):
            is_theirs = started.user_id == self.user_id and self._includes(started.app_key)
            return (execution.id, started.app_key) if is_theirs else None
        # Without the input, the search attributes show the owner, unless the name is too long for them.
        return (execution.id, None) if user == self.user_id and self.app is None and len(user) < MAX_KEYWORD else None

    async def _read_input(self, execution: WorkflowExecution) -> InvocationInput | None:
        """Return the input of an invocation, or None if it is invalid, deleted, or cannot be read by this client."""
        handle = self.temporal.get_workflow_handle(execution.id, run_id=execution.run_id)
        try:
            async for event in handle.fetch_history_events(page_size=1):
                [first] = await decode_events([event], self.temporal.data_converter)
                return InvocationInput.model_validate(decode(read_json_content(get_attributes(first).input.payloads)))
        except (ValueError, WaystationError):
            pass
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        return None

    def _includes(self, app_key: str) -> bool:
        app, tenant = ids.parse_app_key(app_key)
        return tenant == self.tenant and self.app in (None, app)

    async def _delete_schedules(self, deleted: DeletedUser) -> None:
        try:
            async for listed in await self.temporal.list_schedules():
                handle = self.temporal.get_schedule_handle(listed.id)
                if await self._is_for_user(await handle.describe()):
                    deleted.schedules.append(listed.id)
                    if not self.dry_run:
                        await handle.delete()
        except RPCError as error:
            if error.status not in _NOT_LISTED:
                raise
            deleted.left.append(f"schedules: the server does not list them ({error.message})")

    async def _is_for_user(self, description: ScheduleDescription) -> bool:
        action = description.raw_description.schedule.action.start_workflow
        if action.workflow_type.name != WORKFLOW:
            return False
        try:
            [value] = await self.temporal.data_converter.decode(action.input.payloads)
            started = InvocationInput.model_validate(value)
        except (ValueError, RuntimeError, WaystationError):  # not a valid input, or not readable by this client
            return False
        return started.user_id == self.user_id and self._includes(started.app_key)

    async def _delete_stored(self, name: str, store: UserStore | None, keys: set[str], left: list[str]) -> int:
        """Delete what a store has in the apps with these keys and in those that it lists. Return how many items."""
        if store is None:
            left.append(f"{name}: no store was given")
            return 0
        try:
            apps = {app for app in await store.list_user_apps(user_id=self.user_id) if self._includes(app)}
            apps |= keys if self.app is None else {ids.shown_app(ids.app_key(self.app, self.tenant))}
            return sum(
                [await store.delete_user(app_name=a, user_id=self.user_id, dry_run=self.dry_run) for a in sorted(apps)]
            )
        except NotImplementedError as error:
            left.append(f"{name}: {error}")
            return 0

    async def _delete_usage(self, store: UsageStore | None, deleted: DeletedUser) -> None:
        if store is None or self.app is not None:
            reason = "no quota file was given" if store is None else "it is not counted by app"
            deleted.left.append(f"usage, if it is counted: {reason}")
        else:
            deleted.usage = await store.delete_user(self.tenant or "", self.user_id, dry_run=self.dry_run)


@dataclass(slots=True)
class _Tree:
    """A workflow of the user with its descendants."""

    record: DeletedSession
    app_key: str | None
    runs: set[WorkflowRun] = field(default_factory=set)
    deleted: set[WorkflowRun] = field(default_factory=set)


async def _for_each(trees: Iterable[_Tree], work: Callable[[_Tree], Awaitable[None]]) -> None:
    """Work on several trees at a time."""
    limit = asyncio.Semaphore(AT_A_TIME)

    async def limited(tree: _Tree) -> None:
        async with limit:
            await work(tree)

    await asyncio.gather(*map(limited, list(trees)))
