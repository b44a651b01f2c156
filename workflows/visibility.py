"""Show invocations and sessions without a worker, using search attributes, the memo, and details in the Web UI."""

from collections.abc import Mapping, Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, SearchAttributeUpdate, TypedSearchAttributes

from waystation.core import ids, summary
from waystation.core.contract import (
    HELD,
    MAX_MEMO_CALLS,
    MEMO_FORK,
    MEMO_HELD,
    MEMO_PENDING,
    MEMO_SESSION,
    RUNNING,
    SEARCH_AGENT,
    SEARCH_PENDING,
    SEARCH_STATUS,
    SEARCH_TENANT,
    UNKNOWN,
    InvocationInput,
)
from waystation.core.log import InvocationState
from waystation.core.payload import JsonObject
from waystation.core.projection import Carried
from waystation.core.session_log import SessionInput, SessionLog, search_attributes_of
from waystation.workflows.engine_activity import searchable
from waystation.workflows.ports import observe

MAX_MEMO_ARGS = 2_048

AGENT = SearchAttributeKey.for_keyword(SEARCH_AGENT)
STATUS = SearchAttributeKey.for_keyword(SEARCH_STATUS)
PENDING = SearchAttributeKey.for_keyword_list(SEARCH_PENDING)
TENANT = SearchAttributeKey.for_keyword(SEARCH_TENANT)


def at_start(started: InvocationInput) -> TypedSearchAttributes:
    """Return the search attributes that a child invocation has from its start, which saves an upsert."""
    return TypedSearchAttributes(_pairs(search_attributes_of(started)))


class SearchAttributeCheck:
    """Checks whether the namespace has lost the search attributes, with the same results on replay."""

    def __init__(self) -> None:
        self._count = 0

    def is_lost(self, tenant: str | None) -> bool:
        """Return whether the worker found, when this code first ran, that the search attributes no longer exist."""
        self._count += 1
        return observe(ids.unsearchable(self._count), lambda: not searchable(tenant))


class Visibility:
    """Publishes an invocation's pending calls and status, and only when they change, to save history events."""

    def __init__(self, carried: Carried | None = None, started: InvocationInput | None = None) -> None:
        self.registered = started is not None and _was_started_with(AGENT, started)
        """Whether the search attributes are registered. Upserting unregistered attributes would block the workflow."""
        self._known = self.registered
        self._check, self._tenant = SearchAttributeCheck(), started.tenant if started else None
        self._identified = self.registered
        self._withheld = False
        """Whether changes have not been published because the search attributes had been lost."""
        self.published: tuple[JsonObject, ...] = ()
        """The pending calls as currently published in the memo."""
        self._held: list[JsonObject] = []
        if carried:
            self.registered, self.published = carried.search_attributes, carried.posted
        self._status = _status(self.published, self._held)

    @property
    def discovered(self) -> bool:
        """Whether the search attributes are registered, although the run started without them."""
        return self.registered and not self._known

    def check(self) -> bool:
        """Return whether search attributes can be used. If they were lost, do not use them until a reply reports them.

        Call this before each command that sets search attributes: setting a lost one would block the workflow.
        """
        if self.registered and self._check.is_lost(self._tenant):
            self.registered = self._identified = False
            self._withheld = True
        return self.registered

    def begin(self, started: InvocationInput) -> None:
        """Begin a new invocation.

        If it has a tenant but was started without the tenant's search attribute, publish all its search attributes once
        a model reply records that the namespace has them.
        """
        self._tenant = started.tenant
        self.registered = self._known = self._identified = _was_started_with(AGENT, started)
        if started.tenant and not _was_started_with(TENANT, started):
            self.registered = self._identified = False

    def memo(self, started: InvocationInput) -> JsonObject:
        """Return the memo for the next run: the published pending calls and, for a fork, its source."""
        lineage = {MEMO_FORK: started.fork.memo()} if started.fork else {}
        return {MEMO_PENDING: self._memo_calls(), **lineage}

    def _memo_calls(self) -> list[JsonObject] | None:
        return [call | {"run": workflow.info().first_execution_run_id} for call in self.published] or None

    def publish(self, state: InvocationState) -> bool:
        """Publish the pending calls, the held calls and the status if they have changed. Return whether they have."""
        pending = state.pending()[:MAX_MEMO_CALLS]
        held = [hold.facts() for hold in state.holds.values()][:MAX_MEMO_CALLS]
        before, self.published = self.published, tuple(call.to_memo(MAX_MEMO_ARGS) for call in pending)
        is_other = _without_questions(self.published) != _without_questions(before)
        if is_other or held != self._held or not self._identified:
            self.check()
        changed = held != self._held or is_other
        if held != self._held:
            self._held = held
            workflow.upsert_memo({MEMO_HELD: held or None})
        if is_other:
            # If search attributes are registered, an empty memo adds no information. Skipping the upsert saves a
            # history event and a tenth of the time from an approval to its result.
            if self.published or not self.registered:
                workflow.upsert_memo({MEMO_PENDING: self._memo_calls()})
            workflow.set_current_details(summary.waiting(pending))
        if self.registered and state.input:
            self._publish_attributes(state.input, _ids(before))
        return changed

    def _publish_attributes(self, started: InvocationInput, before: list[str]) -> None:
        waiting, status = _ids(self.published), _status(self.published, self._held)
        if self._identified and waiting == before and status == self._status:
            return
        self._status = status
        changes: list[SearchAttributeUpdate[Any]] = [STATUS.value_set(status)]
        if not self._identified:
            changes.extend(_identity(started))
            self._identified = True
        if waiting != before or self._withheld:
            changes.append(PENDING.value_set(waiting))
            self._withheld = False
        workflow.upsert_search_attributes(changes)


class SessionVisibility:
    """Publishes the status of a session."""

    def __init__(self) -> None:
        self._status: str | None = None
        self._attributes: str | None = None
        self._check = SearchAttributeCheck()

    def check(self, log: SessionLog) -> bool:
        """Return whether search attributes can be used. Once lost, they are not used until a report confirms them."""
        if log.attributes and self._check.is_lost(log.given.tenant):
            log.attributes, self._attributes = False, None
        return log.attributes

    def publish(self, log: SessionLog) -> None:
        """Publish the status if it has changed."""
        status, started = log.status, log.given
        if status != self._status:
            self._status = status
            names = {"agent", "app", "user_id", "session_id", "tenant"}
            session = started.model_dump(include=names, exclude_none=True) | {"status": status}
            workflow.upsert_memo({MEMO_SESSION: session})
        if status != self._attributes and self.check(log):
            changes: list[SearchAttributeUpdate[Any]] = [STATUS.value_set(status)]
            if self._attributes is None:
                changes.extend(_identity(started))
            self._attributes = status
            workflow.upsert_search_attributes(changes)


def _was_started_with(key: SearchAttributeKey[str], started: InvocationInput) -> bool:
    """Return whether a run has had a search attribute since its start.

    Once the namespace has lost the search attribute, the server returns the value under another name.
    """
    attributes, value = workflow.info().typed_search_attributes, search_attributes_of(started).get(key.name)
    return attributes.get(key) is not None or any(pair.value == value for pair in attributes.search_attributes)


def _identity(started: InvocationInput | SessionInput) -> list[SearchAttributeUpdate[str]]:
    """Return updates for the search attributes that never change after the start."""
    return [pair.key.value_set(pair.value) for pair in _pairs(search_attributes_of(started))]


def _pairs(values: Mapping[str, str]) -> list[SearchAttributePair[str]]:
    return [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in values.items()]


def _status(pending: Sequence[JsonObject], held: Sequence[JsonObject]) -> str:
    """Return the status to publish. For a held invocation, it includes the reason for the oldest hold."""
    if held:
        return f"{HELD}:{held[0]['reason']}"
    return (UNKNOWN if pending[0]["kind"] == UNKNOWN else "waiting") if pending else RUNNING


def _without_questions(published: tuple[JsonObject, ...]) -> list[JsonObject]:
    """Return published calls without the numbers of their questions, which earlier versions did not publish.

    A question never changes alone, because the wait then has another start, too.
    """
    return [{name: value for name, value in call.items() if name != "question"} for call in published]


def _ids(published: tuple[JsonObject, ...]) -> list[str]:
    return [call["function_call_id"] for call in published]
