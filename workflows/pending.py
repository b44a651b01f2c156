"""What others see of an invocation while it runs: search attributes, memo, and the details in the Web UI."""

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from waystation.core import summary
from waystation.core.answer import PendingCall
from waystation.core.continued import Carried
from waystation.core.log import Log
from waystation.core.payload import JsonObject, encode
from waystation.core.session import SessionLog
from waystation.core.wire import MEMO_FORK, MEMO_PENDING, MEMO_SESSION, RUNNING, InvocationInput
from waystation.workflows.search_attributes import AGENT, PENDING, STATUS, identity

MAX_MEMO_ARGS = 2_048
MAX_MEMO_CALLS = 50


class Noticeboard:
    """Posts what changed, and only that: each post is an event or two of history."""

    def __init__(self, carried: Carried | None = None) -> None:
        given = workflow.info().typed_search_attributes
        self.registered = given.get(AGENT) is not None
        """Whether the search attributes exist; an upsert of others would stick the workflow for ever."""
        self._identified = self.registered
        self._posted: list[JsonObject] = []
        if carried:
            self.registered, self._identified = carried.search_attributes, self.registered
            self._posted = list(carried.posted)

    @property
    def posted(self) -> tuple[JsonObject, ...]:
        """What the memo says is pending."""
        return tuple(self._posted)

    def memo(self, started: InvocationInput) -> JsonObject:
        """Return the memo as it is, for the run that continues this one."""
        lineage = {MEMO_FORK: started.fork.memo()} if started.fork else {}
        return {MEMO_PENDING: self._posted or None, **lineage}

    def post(self, log: Log) -> None:
        """Make what waits visible from outside."""
        pending = log.pending()[:MAX_MEMO_CALLS]
        posted, self._posted = self._posted, [_shown(call) for call in pending]
        if self._posted != posted:
            # Once the attribute says that nothing waits, wiping the memo too would only cost an event, and a tenth of
            # the time from an approval to its result.
            if self._posted or not self.registered:
                workflow.upsert_memo({MEMO_PENDING: self._posted or None})
            workflow.set_current_details(summary.waiting(pending))
        if self.registered and log.input:
            self._post_attributes(log.input, _ids(posted))

    def _post_attributes(self, started: InvocationInput, posted: list[str]) -> None:
        waiting = _ids(self._posted)
        if self._identified and waiting == posted:
            return
        changes: list[SearchAttributeUpdate[Any]] = [STATUS.value_set("waiting" if waiting else RUNNING)]
        if not self._identified:
            named = identity(started.agent, started.user_id, started.session_id)
            changes.extend(pair.key.value_set(pair.value) for pair in named)
            self._identified = True
        if waiting != posted:
            changes.append(PENDING.value_set(waiting))
        workflow.upsert_search_attributes(changes)


def _ids(posted: list[JsonObject]) -> list[str]:
    return [call["function_call_id"] for call in posted]


def _shown(call: PendingCall) -> JsonObject:
    """Return a pending call for the memo, large parts replaced by their size."""
    shown = call.model_dump(mode="json", exclude_none=True)
    for name in ("args", "interim", "payload", "response_schema"):
        size = len(encode(shown.get(name)))
        if size > MAX_MEMO_ARGS:
            shown[name] = {"omitted_bytes": size}
    return shown


class SessionBoard:
    """What others see of a session without asking a worker."""

    def __init__(self) -> None:
        self._status: str | None = None
        self._attributes: str | None = None

    def post(self, log: SessionLog) -> None:
        """Make its status visible from outside."""
        status, given = log.status, log.given
        if status != self._status:
            self._status = status
            about = {"agent": given.agent, "app": given.app, "user_id": given.user_id, "session_id": given.session_id}
            workflow.upsert_memo({MEMO_SESSION: {**about, "status": status}})
        if log.attributes and status != self._attributes:
            changes: list[SearchAttributeUpdate[Any]] = [STATUS.value_set(status)]
            if self._attributes is None:
                named = identity(given.agent, given.user_id, given.session_id)
                changes.extend(pair.key.value_set(pair.value) for pair in named)
            self._attributes = status
            workflow.upsert_search_attributes(changes)
