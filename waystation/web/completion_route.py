"""The route at completion URLs, with which machines answer calls. The URL is the only proof, so no login is needed."""

from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar

import structlog
from pydantic import ConfigDict, Field, StrictBool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from waystation.client import AgentClient
from waystation.core.errors import AnswerUnconfirmed, InvalidInput, NotAllowed
from waystation.core.payload import JsonObject, Recorded, parse, repeated_key
from waystation.core.secrets import mask, token_parts
from waystation.web.http_responses import RequestRefused

if TYPE_CHECKING:
    from waystation.approvers.identity import Completions

log = structlog.get_logger("waystation.web")


class CompletionBody(Recorded):
    """The body of a request to a completion URL."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    response: JsonObject
    final: StrictBool = True
    """Whether the response closes the call. If not, it reports progress."""
    answer_id: str | None = Field(default=None, min_length=1, max_length=200)
    """For progress: an ID that the machine chooses. By default, the same progress counts once."""


class CompletionRoute:
    """Takes the answers of machines."""

    def __init__(self, client: AgentClient, completions: "Completions") -> None:
        self._client, self._completions = client, completions

    async def deliver(self, request: Request) -> Response:
        """Record a machine's answer, and return the receipt. A repeated delivery returns the first one.

        Raises:
            RequestRefused: The URL is not valid, or no worker has confirmed the answer.
            AnswerRefused: The answer does not count.
        """
        try:
            namespace = self._client.temporal.namespace
            grant = self._completions.read(request.path_params["token"], namespace=namespace)
        except NotAllowed as error:
            # A stranger must not learn whether a call exists, so everything that is not authentic looks the same.
            raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownCall", str(error)) from None
        data = await request.body()
        send = 'such as {"response": {"status": "paid"}}'
        body = parse(CompletionBody, data, InvalidInput, what="The request", send=send)
        if (key := repeated_key(data)) is not None:
            raise InvalidInput(f"The request contains the key {key[:100]!r} twice in one object. Send it only once.")
        try:
            # Systems often repeat their callback in what they report. Histories must not contain it.
            fields = {**dict(body), "response": mask(body.response, token_parts(request.path_params["token"]))}
            receipt = await self._client.approvals.answer(**self._completions.make_answer(grant, **fields))
        except AnswerUnconfirmed as error:
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "AnswerUnconfirmed", str(error)) from None
        log.info("call.completed", approval_id=grant.approval_id, machine=grant.machine, final=body.final)
        return JSONResponse(receipt)
