"""The calls that wait in a conversation, from the point of view of one person, and how to follow what waits."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from waystation.client import Invocation, Session
from waystation.client.invocation_handle import PartialTextReader, stream_logs
from waystation.core.actions import ACTIONS, Action
from waystation.core.approval import PendingCall
from waystation.core.log import Log, allowed_actions
from waystation.web.call_answers import CallView
from waystation.web.http_responses import RequestRefused
from waystation.web.inbox_pages import PAUSE_S
from waystation.web.logins import Login
from waystation.web.pending_list import InboxQuery
from waystation.web.web_services import WebServices


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that waits for an answer."""

    view: CallView
    actions: tuple[Action, ...]
    """The deciding actions that the person may perform now. Empty if the call waits for somebody else."""

    @property
    def awaited(self) -> tuple[str, ...]:
        """The subjects and roles that may answer now. If empty, everybody with the role `approver` may."""
        call = self.view.pending
        return call.policy.asked(call.level) if call.policy else ()


async def find_open_calls(services: WebServices, login: Login, session: Session, logs: Sequence[Log]) -> list[OpenCall]:
    """Return the open calls of invocations of a session, and of the agents that they called, which a person may see.

    The calls of called agents come from visibility, so they may be missing for a second after they have begun to wait.
    """
    return await _view_calls(
        services, login, logs, lambda: services.reads.read(("pending of", session.id), session.pending)
    )


async def find_calls_of(services: WebServices, login: Login, log: Log) -> list[OpenCall]:
    """Return the open calls of an invocation, and of the agents that it called, which a person may see."""

    async def read_called() -> Sequence[PendingCall]:
        return (await services.pending.select(login, InboxQuery())).calls

    return await _view_calls(services, login, [log], read_called)


async def _view_calls(
    services: WebServices,
    login: Login,
    logs: Sequence[Log],
    read_called: Callable[[], Awaitable[Sequence[PendingCall]]],
) -> list[OpenCall]:
    running = [log for log in logs if not log.state.outcome.ended]
    if not running:
        return []
    found = [f"{log.invocation_id}/{call.function_call_id}" for log in running for call in log.state.pending()]
    called = await read_called()
    found += [
        call.approval_id
        for call in called
        if any(call.approval_id.startswith(f"{log.invocation_id}/") for log in running)
    ]
    views = await services.approvals.answers.view_all(login, list(dict.fromkeys(found)))
    return [
        OpenCall(view, find_actions(services, login, view))
        for view in views
        if not isinstance(view, RequestRefused) and view.standing == "open"
    ]


def find_actions(services: WebServices, login: Login, view: CallView) -> tuple[Action, ...]:
    """Return the deciding actions that a person may perform on an open call."""
    answers = services.approvals.answers
    accepted = allowed_actions(view.state)
    return tuple(
        name
        for name, row in ACTIONS.items()
        if row.decides and name in accepted and not answers.why_not(login, view, name)
    )


def may_accept(call: OpenCall, person: str) -> bool:
    """Return whether a person can let a call continue now. Those who have approved it already wait for others."""
    is_able = any(ACTIONS[name].accepts and ACTIONS[name].listable for name in call.actions)
    return is_able and not call.view.unread and person not in call.view.pending.approved_by


async def watch(invocation: Invocation, *, partial: bool) -> AsyncGenerator[tuple[Log, PartialTextReader, bool]]:
    """Yield the log whenever it grows and, with `partial`, whenever a model has generated more text, with false.

    While called agents run, also yield it from time to time, with true, because their calls wait elsewhere.
    """
    async with aclosing(stream_logs(invocation, partial=partial)) as logs:
        latest: tuple[Log, PartialTextReader] | None = None
        coming = asyncio.ensure_future(anext(logs, None))
        try:
            while True:
                has_called = latest is not None and any(
                    call.call.kind == "agent" for call in latest[0].state.performing()
                )
                done, _ = await asyncio.wait((coming,), timeout=PAUSE_S if has_called else None)
                if done:
                    if (latest := coming.result()) is None:
                        return
                    coming = asyncio.ensure_future(anext(logs, None))
                if latest is not None:
                    yield *latest, not done
        finally:
            coming.cancel()
            with suppress(asyncio.CancelledError):
                await coming


def is_idle(log: Log, calls: Sequence[OpenCall]) -> bool:
    """Return whether an invocation only waits, also in the agents that it called."""
    if log.state.models_in_flight or log.state.approvals.submitted:
        return False
    below = [f"{log.invocation_id}/{call.id}/" for call in log.state.performing()]
    return all(any(call.view.id.startswith(place) for call in calls) for place in below)
