"""The route at which signed webhooks start or continue agents. The signature is the only proof; no login is needed."""

import time
from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from waystation.core.errors import MessageUnconfirmed, NotAllowed
from waystation.web.http_responses import RequestRefused
from waystation.web.limits import Limits, RequestRate, too_large
from waystation.web.starter import Starter
from waystation.web.triggers import Trigger

log = structlog.get_logger("waystation.web")

CONFIRM_WITHIN = timedelta(seconds=8)
"""Time limit for a worker to confirm a message. Senders of webhooks often wait only 10 s for the response."""


class TriggerRoute:
    """Takes deliveries of webhooks. What has been delivered before is known only from Temporal."""

    def __init__(self, starter: Starter, triggers: Mapping[str, Trigger], limits: Limits) -> None:
        self._starter, self._triggers, self._limit = starter, triggers, limits.trigger_bytes
        self._rates = {
            name: RequestRate(trigger.section.per_minute, per_s=60, clients=1) for name, trigger in triggers.items()
        }

    async def deliver(self, request: Request) -> Response:
        """Start or continue an agent, and return the ID of the invocation. A repeated delivery returns the first one's.

        Raises:
            RequestRefused: The delivery is not authentic, too large or too frequent, or no worker has confirmed it.
            InvalidInput: The payload is not valid.
        """
        if len(body := await request.body()) > self._limit:
            raise too_large(self._limit)
        trigger = self._triggers.get(request.path_params["name"])
        try:
            if trigger is None:
                raise NotAllowed("There is no such trigger.")
            signed_id = trigger.verify(request.headers, body, now=time.time())
        except NotAllowed as error:
            log.warning("trigger.refused", trigger=trigger and trigger.name, problem=str(error))
            # A stranger must not learn which triggers exist, so everything that is not authentic looks the same.
            raise RequestRefused(
                HTTPStatus.UNAUTHORIZED,
                "NotAuthentic",
                "There is no such trigger, or the delivery is not authentic or too old. The server's log says which.",
            ) from None
        self._rates[trigger.name].check(trigger.name)
        delivery = trigger.read(signed_id, body)
        try:
            id, duplicate = await self._pass_on(trigger, *delivery)
        except MessageUnconfirmed as error:
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "MessageUnconfirmed", str(error)) from None
        return JSONResponse({"invocation_id": id, "duplicate": duplicate}, HTTPStatus.ACCEPTED)

    async def _pass_on(self, trigger: Trigger, delivery: str, message: str, key: str | None) -> tuple[str, bool]:
        """Return the ID of the invocation, and whether an earlier delivery had started it."""
        section, login = trigger.section, trigger.login
        options: dict[str, Any] = {"metadata": {"trigger": trigger.name, "delivery": delivery}}
        if key is None:
            options |= {"app": section.app, "user_id": section.user_id, "id": f"hook-{trigger.name}-{delivery}"}
            started = await self._starter.start(login, section.agent, message, **options)
            return started.id, started.existed
        options |= {"message_id": delivery, "when_busy": section.when_busy, "confirm_within": CONFIRM_WITHIN}
        session = self._starter.session(login, key, agent=section.agent, app=section.app, user_id=section.user_id)
        sent = await self._starter.send(login, session, message, agent=section.agent, **options)
        return sent.id, sent.duplicate
