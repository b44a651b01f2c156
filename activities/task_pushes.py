"""Send the states of A2A tasks to the URLs of push configurations."""

import asyncio
import json
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Protocol

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from waystation.client import read_entry
from waystation.core import ids
from waystation.core.approval import Request
from waystation.core.errors import NotAllowed
from waystation.core.payload import JsonObject, encode
from waystation.core.push import (
    PUSH_HOSTS,
    WAITING,
    PushConfig,
    PushReport,
    PushTask,
    find_push_fault,
    make_push_request,
    parse_hosts,
)
from waystation.history import describe_workflow
from waystation.project_file import find_setting
from waystation.tls import default_ssl_context

events = structlog.get_logger("waystation.activities")

LIMIT_S = 10.0
GONE = f"Status{HTTPStatus.GONE}"
STATES = {
    "completed": "COMPLETED",
    "canceled": "CANCELED",
    "failed": "FAILED",
    "terminated": "FAILED",
    "timed_out": "FAILED",
}
"""The states of tasks that have ended, by the statuses of their invocations."""


class SecretOpener(Protocol):
    """Decrypts secrets; see `waystation.approvers.identity.WorkerIdentity`."""

    def unseal(self, sealed: str, *, namespace: str, place: str, request: Request) -> str:
        """Return a secret that was encrypted for the workers.

        Raises:
            NotAllowed: It was encrypted for others, or for another place.
        """


class PushDelivery:
    """Runs the activity `push_task`."""

    def __init__(self, client: Client, identity: object) -> None:
        self._client, self._identity = client, identity

    async def push(self, task: PushTask) -> bytes:
        """Read the state of a task, and send it to those who have not received it. Return an encoded `PushReport`.

        Raises:
            ApplicationError: Something else than the invocation of the task runs this activity.
        """
        if (activity.info().workflow_id or "") != ids.push_delivery(task.invocation_id):
            raise ApplicationError("Only the task's own workflow delivers it.", type="NotAllowed", non_retryable=True)
        described = await describe_workflow(self._client, task.invocation_id)
        if described is None:
            return PushReport().encode()
        entry = await read_entry(described)
        ended = STATES.get(entry.status)
        due: list[tuple[PushConfig, str]] = []
        for config in task.configs:
            asked = any(config.person.is_asked(call) for call in entry.pending)
            state = ended or ("WORKING" if entry.status != WAITING else "INPUT_REQUIRED" if asked else "AUTH_REQUIRED")
            if task.sent.get(config.id) != state:
                due.append((config, state))
        problems = await asyncio.gather(*(self._send(task, config, state) for config, state in due))
        for (config, _), problem in zip(due, problems, strict=True):
            if problem:
                events.warning("push.failed", invocation_id=task.invocation_id, config=config.id, problem=problem)
        outcomes = [(config.id, state, problem) for (config, state), problem in zip(due, problems, strict=True)]
        return PushReport(
            sent={id: state for id, state, problem in outcomes if not problem},
            ended=ended is not None,
            failed=tuple(id for id, _, problem in outcomes if problem and problem != GONE),
            gone=tuple(id for id, _, problem in outcomes if problem == GONE),
        ).encode()

    async def _send(self, task: PushTask, config: PushConfig, state: str) -> str:
        """Send a state, and return the problem, which contains no secret, or an empty string."""
        import httpx2

        if find_push_fault(config.url, parse_hosts(find_setting(PUSH_HOSTS) or "")):
            return "NotAllowed"
        try:
            headers = {"content-type": "application/a2a+json", **self._make_headers(task, config)}
            status = {"state": f"TASK_STATE_{state}", "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z")}
            update: JsonObject = {"taskId": task.task_id, "contextId": task.context_id, "status": status}
            body = encode({"statusUpdate": update})
            async with (
                asyncio.timeout(LIMIT_S),
                httpx2.AsyncClient(timeout=LIMIT_S, follow_redirects=False, verify=default_ssl_context()) as client,
                client.stream("POST", config.url, content=body, headers=headers) as response,
            ):
                code = response.status_code
        except Exception as error:  # noqa: BLE001  # messages may quote the URL or a header
            return type(error).__name__
        return "" if HTTPStatus.OK <= code < HTTPStatus.MULTIPLE_CHOICES else f"Status{code}"

    def _make_headers(self, task: PushTask, config: PushConfig) -> dict[str, str]:
        """Return the headers with the secrets of a configuration.

        Raises:
            NotAllowed: The secrets cannot be decrypted.
        """
        if config.sealed is None:
            return {}
        place = ids.push_delivery(task.invocation_id)
        unseal = getattr(self._identity, "unseal", None)
        if unseal is None:
            raise NotAllowed("The workers have no identity configuration.")
        opened = unseal(config.sealed, namespace=self._client.namespace, place=place, request=make_push_request(place))
        secrets = json.loads(opened)
        if secrets["url"] != config.url:
            raise NotAllowed("The secrets are for another URL.")
        headers = {"x-a2a-notification-token": secrets.get("token"), "authorization": secrets.get("authorization")}
        return {name: value for name, value in headers.items() if value}
