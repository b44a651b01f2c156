"""Start, read, answer and cancel invocations for the person of a request of an MCP client."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from waystation.approvers import check_role
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.interfaces.open_calls import OpenCall, find_calls_of
from waystation.presentation import words
from waystation.web.call_api import Accepted, AnswerBody, RefusedAnswer, Unconfirmed, make_call
from waystation.web.invocation_api import find_status, wait_until
from waystation.web.invocation_pages import VisibleInvocation, view_invocation
from waystation.web.logins import Login
from waystation.web.paths import format_call_path
from waystation.web.starter import AgentName
from waystation.web.typed_routes import HOLD_S, Body
from waystation.web.web_services import WebServices

WAIT_S = HOLD_S - 5
"""How long a tool waits at most. Many clients give up after 60 s."""
LOOK_S = 3.0
"""How often a wait looks for calls of called agents, which the history of the caller does not have."""
ENDS = {"cancelled": "canceled"}
"""The statuses of ended invocations whose names in the log are not those of the JSON API."""

ChosenId = Annotated[str, Field(min_length=1, max_length=200)]
WaitSeconds = Annotated[float, Field(ge=0, le=WAIT_S)]


class MessageArguments(Body):
    """A message to an agent."""

    message: str = Field(min_length=1)
    session: ChosenId | None = None
    """An ID that you choose for a conversation. Messages with the same ID belong to the same conversation."""
    message_id: ChosenId | None = None
    """An ID that you choose for the message. A message that is sent again with the same ID counts only once."""


class StartArguments(MessageArguments):
    """A message that starts an agent."""

    agent: AgentName


class ChosenInvocation(Body):
    """An invocation to cancel."""

    invocation_id: str


class GetArguments(ChosenInvocation):
    """An invocation to read."""

    wait_s: WaitSeconds = 0
    """How many seconds to wait while the agent is working."""


class AnswerArguments(AnswerBody):
    """An answer to a call that waits. Send the `digest` that you have shown to the person who answers."""

    call_id: str
    """The `id` of the call."""


@dataclass(frozen=True, slots=True)
class InvocationView:
    """An invocation, as a person sees it."""

    found: VisibleInvocation
    calls: Sequence[OpenCall]

    @property
    def log(self) -> Log:
        """The log."""
        return self.found.log

    @property
    def status(self) -> str:
        """The status, with the words of the JSON API."""
        ended = self.log.state.outcome.ended
        return ENDS.get(ended, ended) if ended else "waiting" if self.calls else find_status(self.log)

    @property
    def reason(self) -> str | None:
        """Why the agent failed or stopped early, or None."""
        failure = self.log.state.outcome.failure
        return failure.message or failure.error_type if failure else self.log.state.result().reason

    @property
    def times(self) -> tuple[datetime, datetime]:
        """The times of the message and of the latest event."""
        events = self.log.state.events
        moments = [datetime.fromtimestamp(event.timestamp, UTC) for event in (*events[:1], *events[-1:])]
        return (moments[0], moments[-1]) if moments else (self.found.described.start_time,) * 2

    def describe(self, place: str) -> JsonObject:
        """Return the state for a client. `place` is the address of the web application, or an empty string."""
        is_over = self.log.state.outcome.ended is not None
        result = self.log.state.result() if is_over else None
        return {
            "invocation_id": self.found.invocation.id,
            "agent": self.found.input.agent,
            "status": self.status,
            "text": result.text if result else None,
            "output": result.output if result else None,
            "reason": self.reason if is_over else None,
            "artifacts": dict(self.log.state.outcome.artifact_delta),
            "calls": [describe_call(call, place) for call in self.calls],
        }


def find_time() -> float:
    """Return the time of the loop, in seconds."""
    return asyncio.get_running_loop().time()


def describe_call(call: OpenCall, place: str) -> JsonObject:
    """Return a call as the JSON API shows it, with what the person may do and the page to do it."""
    return {
        **make_call(call.view.pending).model_dump(mode="json", exclude_none=True),
        "allowed": list(call.actions),
        "waits_for": words.format_approvers(call.view.pending),
        "link": f"{place}{format_call_path(call.view.id)}" if place else None,
    }


class AgentTools:
    """The functions of the tools. Each checks what the person may do, as the JSON API does."""

    def __init__(self, services: WebServices) -> None:
        self.services = services

    async def list_agents(self, login: Login) -> dict[str, str]:
        """Return the agents that a person may start, by name, each with its description."""
        if "author" not in login.roles:
            return {}
        trees = await self.services.reads.read(("agents",), self.services.client.agents.describe)
        return {name: tree[name].description for name, tree in trees.items()}

    async def start(self, login: Login, agent: str, sent: MessageArguments) -> str:
        """Start an agent, or send it a message in a session. Return the ID of the invocation, once it has started."""
        check_role(login, "author")
        starter = self.services.starter
        if sent.session is None:
            return (await starter.start(login, agent, sent.message, key=sent.message_id)).id
        session = starter.session(login, sent.session, agent=agent)
        # Not queued: a queued message has no invocation yet, so a client could not read it.
        options: dict[str, Any] = {"message_id": sent.message_id, "agent": agent, "when_busy": "reject"}
        message = await starter.send(login, session, sent.message, **options)
        await message.started()
        return message.id

    async def read(self, login: Login, id: str) -> InvocationView:
        """Return an invocation that the person may see."""
        found = await view_invocation(self.services.client, login, id)
        return InvocationView(found, await find_calls_of(self.services, login, found.log))

    async def wait(self, login: Login, id: str, until: float) -> InvocationView:
        """Return an invocation as soon as it no longer works by itself, or at a time of the loop."""
        with self.services.invocations.open_stream(login):
            while (view := await self.read(login, id)).status == "running" and (rest_s := until - find_time()) > 0:
                await wait_until(lambda log: find_status(log) != "running", view.found.invocation, min(rest_s, LOOK_S))
        return view

    async def answer(self, login: Login, id: str, answer: AnswerBody) -> Accepted | Unconfirmed | RefusedAnswer:
        """Answer a call that the person may see, and return the outcome."""
        view = await self.services.approvals.answers.view(login, id)
        (outcome,) = await self.services.calls.answer(login, {id: (view, answer)}, answer, None)
        return outcome

    async def cancel(self, login: Login, id: str) -> InvocationView:
        """Request the cancellation of an invocation that the person may see, unless it has ended. Return it."""
        view = await self.read(login, id)
        check_role(login, "author")
        if view.log.state.outcome.ended is None:
            await self.services.invocations.actions.perform(login, view.found.invocation, view.found.described, "stop")
        return view
