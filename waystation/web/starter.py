"""Start, continue and fork invocations for the people of the web application. The person comes only from the login."""

from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any

import structlog
from pydantic import Field

from waystation.approvers import Gatekeeper, check_role
from waystation.client import AgentClient, Invocation, Sent, Session
from waystation.core.budget import Budget
from waystation.core.contract import DEFAULT_APP, DEFAULT_USER, TextInterval
from waystation.core.payload import JsonObject, digest
from waystation.web.http_responses import RequestRefused
from waystation.web.logins import Login
from waystation.web.typed_routes import Body

log = structlog.get_logger("waystation.web")

AppName = Annotated[str, Field(min_length=1, max_length=200)]
AgentName = Annotated[str, Field(pattern=r"^[^\W\d]\w*$", max_length=200)]


class MessageFields(Body):
    """A message, and how it is handled."""

    message: str | JsonObject
    """Text, or a content with parts as in the Gemini API."""
    state: JsonObject = {}
    """State to change first. Only operators may change keys with `app:`."""
    budget: Budget | None = None
    metadata: JsonObject = {}
    streaming: bool = False
    """Whether the model's text is streamed while it is generated."""
    text_interval_s: TextInterval | None = None

    def options(self) -> dict[str, Any]:
        """Return the arguments for the client."""
        options = dict(self)
        if (interval_s := options.pop("text_interval_s")) and self.streaming:
            options["streaming"] = timedelta(seconds=interval_s)
        return options


class StartBody(MessageFields):
    """A message that starts an invocation."""

    agent: AgentName
    app: AppName = DEFAULT_APP


class ForkBody(Body):
    """Where an invocation is forked, and what is different in the fork."""

    event: int | None = Field(default=None, ge=1)
    """The number of the event after which the fork continues. Without it, the last step is tried again."""
    message: str | JsonObject | None = None
    agent: AgentName | None = None
    instruction: str | None = Field(default=None, max_length=100_000)
    model: str | None = Field(default=None, max_length=200)
    results: dict[str, JsonObject] = {}
    budget: Budget | None = None


class Starter:
    """Starts invocations and sends messages in the name of the person who is logged in."""

    def __init__(self, client: AgentClient, gatekeeper: Gatekeeper) -> None:
        self._client, self._gatekeeper = client, gatekeeper

    async def start(
        self,
        login: Login,
        agent: str,
        message: str | JsonObject,
        *,
        key: str | None = None,
        user_id: str | None = None,
        **options: Any,
    ) -> Invocation:
        """Start an invocation. If the person already started one with this app, agent and `key`, return that.

        `user_id` is the user that the agent serves, by default the person.
        """
        check_state(login, options.get("state") or {})
        person, tenant = identify_starter(login), tenant_of(login)
        if key:
            # People cannot choose an invocation's ID. Otherwise, they could occupy the IDs that other people need.
            options.setdefault("id", make_own_id(login, options.get("app", DEFAULT_APP), agent, key))
        owner: dict[str, Any] = {"user_id": user_id or person, "requester": person, "tenant": tenant}
        token = self._gatekeeper.make_signer(login)
        invocation = await self._client.start(agent, message, **owner, token=token, **options)
        log.info("invocation.started", invocation_id=invocation.id, by=login.subject, existed=invocation.existed)
        return invocation

    async def schedule(self, login: Login, agent: str, message: str | JsonObject, *, id: str, **options: Any) -> None:
        """Create a schedule that starts invocations in the name of this person, who is verified if a gateway can sign.

        Raises:
            ScheduleAlreadyRunningError: A schedule with this ID exists.
        """
        check_state(login, options.get("state") or {})
        person = identify_starter(login)
        options |= {"user_id": person, "requester": person, "tenant": tenant_of(login)}
        options["token"] = self._gatekeeper.make_schedule_signer(login)
        await self._client.schedule(agent, message, id=id, **options)
        log.info("schedule.created", schedule_id=id, by=login.subject)

    def session(
        self, login: Login, session_id: str, *, agent: str, app: str = DEFAULT_APP, user_id: str | None = None
    ) -> Session:
        """Return a session of the person who is logged in or, to read it or for a machine, of the user `user_id`.

        Raises:
            Refused: The ID is not valid.
        """
        names = {"agent": agent, "session_id": session_id, "app": app}
        try:
            return self._client.session(**names, user_id=user_id or identify_starter(login), tenant=tenant_of(login))
        except ValueError as error:
            raise RequestRefused(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidInput", str(error)) from None

    async def send(self, login: Login, session: Session, message: str | JsonObject, **options: Any) -> Sent:
        """Send a message to a session to which the person may send messages."""
        check_state(login, options.get("state") or {})
        who: dict[str, Any] = {"requester": identify_starter(login), "token": self._gatekeeper.make_signer(login)}
        sent = await session.send(message, **options, **who)
        log.info("message.sent", invocation_id=sent.id, session_id=session.id, by=login.subject, status=sent.status)
        return sent

    async def fork(self, login: Login, source: str, event: int | None, **changes: Any) -> Invocation:
        """Fork an invocation that the person may see."""
        person, token = identify_starter(login), self._gatekeeper.make_signer(login)
        fork = await self._client.forks.start(source, event, **changes, requester=person, token=token)
        log.info("invocation.forked", invocation_id=fork.id, by=login.subject, source=source)
        return fork


def make_own_id(login: Login, app: str, agent: str, key: str) -> str:
    """Return the ID of what a person starts with a key. No other person can make the same."""
    names = [identify_starter(login), app, agent, key]
    return f"{agent}-{digest([*names, tenant_of(login)] if tenant_of(login) else names)}"


def check_state(login: Login, state: JsonObject) -> None:
    """Check that only operators change `app:` state, which all users share.

    Raises:
        NotAllowed: The person is not an operator.
    """
    if any(key.startswith("app:") for key in state):
        check_role(login, "operator")


def identify_starter(login: Login) -> str:
    """Return the name to record as user and requester. It comes only from the login, never from a request.

    Raises:
        Refused: The person's subject is the default user ID, which identifies nobody.
    """
    if login.verified is not None and login.subject == DEFAULT_USER:
        text = f"Your subject {DEFAULT_USER!r} is the default user ID, which identifies nobody. Use another account."
        raise RequestRefused(HTTPStatus.FORBIDDEN, "NotAllowed", text)
    return login.subject or DEFAULT_USER


def tenant_of(login: Login) -> str | None:
    """Return the tenant of the person who is logged in, or None if the person has none."""
    return (login.verified.tenant or None) if login.verified else None
