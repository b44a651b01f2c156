"""The recorded push configurations of A2A tasks, and the URLs that they may name. Pure."""

from collections.abc import Collection
from urllib.parse import urlsplit

from pydantic import Field

from waystation.core import ids
from waystation.core.approval import PendingCall, Request
from waystation.core.contract import DEFAULT_APP, DEFAULT_USER, AppName, TenantName
from waystation.core.payload import Recorded
from waystation.core.secrets import is_private_url

PUSH_WORKFLOW = "AgentPushDelivery"
PUSH_HOSTS = "WAYSTATION_PUSH_HOSTS"
"""Environment variable with the hosts that push configurations may name, separated by commas."""
MAX_CONFIGS = 5
"""How many push configurations a task can have."""
ENDS = {
    "completed": "COMPLETED",
    "canceled": "CANCELED",
    "failed": "FAILED",
    "terminated": "FAILED",
    "timed_out": "FAILED",
}
"""The states of tasks that have ended, by the statuses of their invocations."""


class PushConfig(Recorded):
    """The part of a push configuration that its owner can read."""

    id: str = Field(min_length=1, max_length=200)
    url: str = Field(max_length=2_000)
    scheme: str = Field(default="", pattern=r"^[A-Za-z0-9-]{0,50}$")


class PushTask(Recorded):
    """A task whose states are sent to a URL: the input of the delivery's workflow, and of its activity."""

    invocation_id: str
    number: int
    """The place of the configuration among those of the task."""
    task_id: str
    context_id: str
    app: AppName = DEFAULT_APP
    user_id: str = DEFAULT_USER
    tenant: TenantName | None = None
    names: tuple[str, ...] = ()
    """The names and roles of the owner when the configuration was made."""
    is_approver: bool = False
    config: PushConfig
    sealed: str | None = Field(default=None, max_length=40_000, repr=False)
    """The secrets, encrypted for the workers."""
    sent: str = ""
    """The last state that was sent."""

    @property
    def place(self) -> str:
        """The only workflow ID that this delivery may have."""
        return ids.push_delivery(self.invocation_id, self.number)

    def find_state(self, status: str, pending: Collection[PendingCall]) -> str:
        """Return the state of the task, as far as names and roles show it. This authorizes nothing.

        Args:
            status: The status of its invocation.
            pending: The calls that the invocation waits for.
        """
        if status == "waiting":
            return "INPUT_REQUIRED" if any(map(self._is_asked, pending)) else "AUTH_REQUIRED"
        return ENDS.get(status, "WORKING")

    def _is_asked(self, call: PendingCall) -> bool:
        policy = call.policy
        if policy and policy.not_requester and self.user_id in (call.requesters or ()):
            return False
        asked = policy.asked(call.level) if policy else ()
        return not set(asked).isdisjoint(self.names) if asked else self.is_approver


class PushReport(Recorded):
    """The state that was sent."""

    sent: str


def parse_hosts(text: str | None) -> frozenset[str]:
    """Return the hosts in the value of `PUSH_HOSTS`. Without any, there are no push notifications."""
    return frozenset(filter(None, (host.strip().lower() for host in (text or "").split(","))))


def make_push_request(place: str) -> Request:
    """Return what the secrets of a configuration are bound to."""
    return Request(content={"push": place}, lasting=True)


def find_push_fault(url: str, hosts: Collection[str]) -> str:
    """Return why states must not be sent to a URL, or an empty string. `hosts` are those that an operator allows."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return "The URL is not valid."
    if not is_private_url(url):
        return "The URL is not an https URL."
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        return "The URL is recorded, so it must not have a user, a query or a fragment. Send secrets as `token`."
    if host.lower() not in hosts:
        return f"The operator of this server does not allow the host {host[:200]!r} ({PUSH_HOSTS})."
    return ""
