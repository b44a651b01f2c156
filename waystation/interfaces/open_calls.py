"""The calls that wait in a conversation, from the point of view of one person."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from waystation.client import Session
from waystation.core.actions import ACTIONS, Action
from waystation.core.approval import PendingCall
from waystation.core.log import Log, allowed_actions
from waystation.web.call_answers import CallView
from waystation.web.http_responses import RequestRefused
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
