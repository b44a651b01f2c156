"""Send what a person decided, once, and say what became of it."""

from http import HTTPStatus
from typing import Any, Protocol

import structlog
from temporalio.service import RPCError

from waystation.client import AgentClient
from waystation.core import ids
from waystation.core.answer import Action
from waystation.core.errors import (
    AlreadyAnswered,
    AnswerRefused,
    AnswerUnconfirmed,
    DigestMismatch,
    Expired,
    InvalidAnswer,
    NotAllowed,
    UnknownCall,
)
from waystation.core.payload import JsonObject
from waystation.core.policy import Verified
from waystation.web.logins import Login

log = structlog.get_logger("waystation.web")

TWIN_LIMIT_S = 20.0
"""How long the second of two clicks waits for what becomes of the first: longer than that may wait for a worker."""
MAX_COMMENT = 20_000
_STATUS: dict[type[Exception], HTTPStatus] = {
    AlreadyAnswered: HTTPStatus.CONFLICT,
    DigestMismatch: HTTPStatus.CONFLICT,
    Expired: HTTPStatus.CONFLICT,
    UnknownCall: HTTPStatus.CONFLICT,
    NotAllowed: HTTPStatus.FORBIDDEN,
    InvalidAnswer: HTTPStatus.UNPROCESSABLE_ENTITY,
}


class Vouches(Protocol):
    """Says to the workers who answers, such as with the key of this server."""

    def __call__(self, login: Login, approval_id: str, answer: JsonObject) -> str | None:
        """Return the token of one answer; None when nothing is known of the person."""


class Outcome:
    """What became of an answer."""

    def __init__(self, status: HTTPStatus, message: str = "", receipt: JsonObject | None = None) -> None:
        self.status, self.message, self.receipt = status, message, receipt

    @property
    def counts(self) -> bool:
        """Whether the answer was taken."""
        return self.receipt is not None

    @property
    def open(self) -> bool:
        """Whether nobody knows yet if it counts."""
        return self.status in (HTTPStatus.ACCEPTED, HTTPStatus.SERVICE_UNAVAILABLE) and not self.counts


class Answering:
    """Answers as people at browsers send them."""

    def __init__(self, client: AgentClient, vouches: Vouches | None = None) -> None:
        self._client, self._vouches = client, vouches

    def known_as(self, login: Login) -> Verified | None:
        """Return as whom the workers will know a person; None when they have only the person's own word."""
        if self._vouches is None:
            return None
        return login.verified or Verified(subject=login.person)

    async def send(self, login: Login, approval_id: str, action: Action, **fields: Any) -> Outcome:
        """Send one answer."""
        invocation_id, call_id = ids.approved_call(approval_id)
        answer = {key: value for key, value in fields.items() if value not in (None, "", False)}
        if "wake" in fields:
            answer["wake"] = fields["wake"]
        if name := login.verified.subject if login.verified else login.person:
            answer["by"] = name
        try:
            if self._vouches is not None:
                whole = {**answer, "function_call_id": call_id, "action": action}
                answer["token"] = self._vouches(login, approval_id, whole)
            receipt = await self._client.invocation(invocation_id).answer(action, call_id, **answer)
        except AnswerRefused as refused:
            status = next((code for kind, code in _STATUS.items() if isinstance(refused, kind)), HTTPStatus.CONFLICT)
            return Outcome(status, str(refused))
        except AnswerUnconfirmed as unconfirmed:
            return Outcome(HTTPStatus.ACCEPTED, str(unconfirmed))
        except RPCError as error:
            text = f"The Temporal server did not answer ({error.status.name}), so nobody knows whether this counts."
            return Outcome(HTTPStatus.SERVICE_UNAVAILABLE, f"{text} Look at the call before you answer it again.")
        log.info("answer.taken", invocation_id=invocation_id, function_call_id=call_id, action=action)
        return Outcome(HTTPStatus.OK, receipt=receipt)
