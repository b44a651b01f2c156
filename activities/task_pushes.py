"""Send the states of A2A tasks to the URLs of push configurations."""

import asyncio
import ipaddress
import json
import socket
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from urllib.parse import urlsplit

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from waystation.activities.activity_attempt import activity_failure
from waystation.client import read_entry
from waystation.core.errors import NotAllowed
from waystation.core.payload import encode
from waystation.core.push import (
    PUSH_HOSTS,
    PushReport,
    PushTask,
    find_push_fault,
    make_push_request,
    parse_hosts,
)
from waystation.history import describe_workflow
from waystation.project_file import find_setting
from waystation.tls import default_ssl_context

LIMIT_S = 10.0
LONGEST_PAUSE = timedelta(minutes=5)
"""The longest pause before a state that was not accepted is sent again."""
GIVE_UP_AFTER = timedelta(days=3)
"""How long a task's end is sent again."""


class PushDelivery:
    """Runs the activity `push_task`. Each look at a task is an attempt, so waiting adds no events to the history."""

    def __init__(self, client: Client, identity: object) -> None:
        self._client, self._identity = client, identity

    async def push(self, task: PushTask) -> bytes:
        """Send the state of a task, if it has changed, and return an encoded `PushReport`.

        Raises:
            ApplicationError: The state has not changed or was not accepted, so the server retries the activity; or
                it never will be.
        """
        info = activity.info()
        if info.workflow_id != task.place:
            raise ApplicationError("Only the task's own workflow delivers it.", type="NotAllowed", non_retryable=True)
        described = await describe_workflow(self._client, task.invocation_id)
        entry = await read_entry(described) if described else None
        state = task.find_state(entry.status, entry.pending) if entry else "SUBMITTED"
        if state == task.sent:
            benign = ApplicationErrorCategory.BENIGN
            raise ApplicationError("The task has not changed.", type="Unchanged", category=benign)
        if problem := await self._send(task, state):
            is_late = entry and entry.ended_at and datetime.now(UTC) - entry.ended_at > GIVE_UP_AFTER
            retry = problem != f"Status{HTTPStatus.GONE}" and not is_late
            delay = min(timedelta(seconds=2 ** min(info.attempt, 10)), LONGEST_PAUSE)
            raise activity_failure("push.failed", "NotDelivered", problem, retry=retry, delay=delay) from None
        return PushReport(sent=state).encode()

    async def _send(self, task: PushTask, state: str) -> str:
        """Send a state, and return the problem, which contains no secret, or an empty string."""
        import httpx2

        status = {"state": f"TASK_STATE_{state}", "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z")}
        body = encode({"statusUpdate": {"taskId": task.task_id, "contextId": task.context_id, "status": status}})
        try:
            if find_push_fault(task.config.url, parse_hosts(find_setting(PUSH_HOSTS))):
                raise NotAllowed("The operator does not allow the URL.")
            headers = {"content-type": "application/a2a+json", **self._make_headers(task)}
            url = httpx2.URL(task.config.url)
            async with (
                asyncio.timeout(LIMIT_S),
                httpx2.AsyncClient(timeout=LIMIT_S, follow_redirects=False, verify=default_ssl_context()) as client,
                client.stream(
                    "POST",
                    # The address that was checked is the one that receives the state.
                    url.copy_with(host=await find_address(task.config.url)),
                    content=body,
                    headers={"host": url.netloc.decode(), **headers},
                    extensions={"sni_hostname": url.host},
                ) as response,
            ):
                code = response.status_code
        except Exception as error:  # noqa: BLE001  # messages may quote the URL or a header
            return type(error).__name__
        return "" if HTTPStatus.OK <= code < HTTPStatus.MULTIPLE_CHOICES else f"Status{code}"

    def _make_headers(self, task: PushTask) -> dict[str, str]:
        """Return the headers with the secrets of a configuration.

        Raises:
            NotAllowed: The secrets cannot be decrypted.
        """
        if task.sealed is None:
            return {}
        unseal = getattr(self._identity, "unseal", None)  # see `waystation.approvers.identity.WorkerIdentity`
        if unseal is None:
            raise NotAllowed("The workers have no identity configuration.")
        names = {"namespace": self._client.namespace, "place": task.place}
        secrets = json.loads(unseal(task.sealed, **names, request=make_push_request(task.place)))
        if secrets["url"] != task.config.url:
            raise NotAllowed("The secrets are for another URL.")
        return dict(secrets["headers"])


async def find_address(url: str) -> str:
    """Return an address of the host of a URL.

    Raises:
        NotAllowed: A name resolves to this machine or to its link, where cloud services keep credentials.
        OSError: The name does not resolve.
    """
    host = urlsplit(url).hostname or ""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    address = str(found[0][4][0])
    parsed = ipaddress.ip_address(address.partition("%")[0])
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    # The operator who allows an address itself, or `localhost`, wants it.
    is_named = host not in (address, "localhost")
    if is_named and (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified or parsed.is_multicast):
        raise NotAllowed("The host resolves to this machine or its link.")
    return address
