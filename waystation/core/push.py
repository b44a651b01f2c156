"""The recorded push configurations of A2A tasks, and the URLs that they may name. Pure."""

from collections.abc import Collection
from urllib.parse import urlsplit

from pydantic import Field

from waystation.core.approval import PendingCall, Request
from waystation.core.contract import DEFAULT_APP, DEFAULT_USER, AppName, TenantName
from waystation.core.payload import Recorded
from waystation.core.secrets import is_private_url

PUSH_WORKFLOW = "AgentPushDelivery"
PUT_PUSH, DELETE_PUSH, LIST_PUSH = "put_config", "delete_config", "configs"
"""The updates and the query of the workflow."""
PUSH_HOSTS = "WAYSTATION_PUSH_HOSTS"
"""Environment variable with the hosts that push configurations may name, separated by commas."""
MAX_CONFIGS = 10
WAITING = "waiting"


class PushPerson(Recorded):
    """The person whose configuration it is, as the server knew the person when it was made."""

    subject: str
    tenant: TenantName | None = None
    names: tuple[str, ...] = ()
    is_approver: bool = False

    def is_asked(self, call: PendingCall) -> bool:
        """Return whether the person may answer a call, as far as names and roles tell. This authorizes nothing."""
        policy = call.policy
        if policy and policy.not_requester and self.subject in (call.requesters or ()):
            return False
        asked = policy.asked(call.level) if policy else ()
        return not set(asked).isdisjoint(self.names) if asked else self.is_approver


class PushConfig(Recorded):
    """A URL that receives the states of a task. Its secrets are encrypted for the workers."""

    id: str = Field(min_length=1, max_length=200)
    url: str = Field(max_length=2_000)
    sealed: str | None = Field(default=None, max_length=40_000, repr=False)
    scheme: str = Field(default="", max_length=100)
    person: PushPerson


class PushDeletion(Recorded):
    """The configuration of a person to delete."""

    id: str
    subject: str
    tenant: TenantName | None = None


class PushTask(Recorded):
    """The task of a delivery workflow, with its configurations: the input of a run and of its activity."""

    invocation_id: str
    task_id: str
    context_id: str
    app: AppName = DEFAULT_APP
    user_id: str = DEFAULT_USER
    tenant: TenantName | None = None
    configs: tuple[PushConfig, ...] = ()
    sent: dict[str, str] = {}
    """The last state that each configuration has received, by ID."""


class PushReport(Recorded):
    """The result of looking at a task once."""

    sent: dict[str, str] = {}
    ended: bool = False
    failed: tuple[str, ...] = ()
    """The configurations that did not accept a state."""
    gone: tuple[str, ...] = ()
    """Those whose program has said that it is gone."""


def parse_hosts(text: str) -> frozenset[str]:
    """Return the hosts in the value of `PUSH_HOSTS`. Without any, there are no push notifications."""
    return frozenset(filter(None, (host.strip().lower() for host in text.split(","))))


def make_push_request(place: str) -> Request:
    """Return what the secrets of the configurations of a workflow are bound to."""
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
