"""Permissions of logins.

Without an identity provider, everybody who logs in has all roles, because the server then listens only on this machine.
With a provider, people see their own invocations and the calls that they may answer, unless the identity file grants
them roles. Programs with the access token have only the role `viewer`, unless there is no provider and only this
machine can reach the server.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, get_args

from waystation.core import DEFAULT_USER, Action, PendingCall
from waystation.web.http_responses import Refused

if TYPE_CHECKING:
    from waystation.web.access import Login

Role = Literal["viewer", "approver", "author", "operator"]
"""A role of the web application. `viewer` sees everything. `approver` answers calls that do not name their approvers.
`author` starts and cancels invocations and chats. `operator` forks and resets invocations, reads prompts, writes `app:`
state and closes calls.
"""
ROLES = frozenset(get_args(Role))
PRIVILEGED: tuple[Action, ...] = ("waive", "cancel")
"""Actions on calls that close them without a decision."""


def is_requester(login: "Login", requesters: Iterable[str | None]) -> bool:
    """Return whether this person, as the provider identified them, requested an invocation."""
    # The default user ID identifies nobody.
    return login.verified is not None and login.verified.subject != DEFAULT_USER and login.subject in requesters


def is_named(login: "Login", names: tuple[str, ...]) -> bool:
    """Return whether a list of subjects and roles names this person."""
    return not set(names).isdisjoint(login.names)


def may_answer(login: "Login", call: PendingCall) -> bool:
    """Return whether this person's roles allow deciding a call. The call's policy may still exclude the person.

    Without the role `approver`, people may decide only calls whose policy names them.
    """
    return "approver" in login.roles or (call.policy is not None and is_named(login, call.policy.asked(call.level)))


def sees_tenant(login: "Login", tenant: str | None) -> bool:
    """Return whether this person may see the data of a tenant or, if `tenant` is None, data without a tenant."""
    return login.verified is None or login.verified.may_access(tenant)


def sees_everything(login: "Login") -> bool:
    """Return whether this person is a viewer who may access all tenants."""
    return "viewer" in login.roles and (login.verified is None or login.verified.tenant is None)


def sees_invocation(login: "Login", requesters: Iterable[str | None], tenant: str | None) -> bool:
    """Return whether this person may see an invocation that `requesters` requested: as a viewer, or as one of them.

    In any case, the person must have access to its tenant.
    """
    return sees_tenant(login, tenant) and ("viewer" in login.roles or is_requester(login, requesters))


def sees_call(login: "Login", call: PendingCall) -> bool:
    """Return whether this person may see a call: as a viewer or requester, from a link, or to decide or close it."""
    if login.only == call.approval_id or sees_invocation(login, (call.requester, call.user_id), call.tenant):
        return True
    if not sees_tenant(login, call.tenant):
        return False
    if call.policy is None:
        return "approver" in login.roles
    asked = call.policy.asked(call.level)
    return is_named(login, (*asked, *call.policy.operators)) or (not asked and "approver" in login.roles)


def why_not(login: "Login", call: PendingCall, action: Action) -> str:
    """Return why this person's roles do not allow an action on a visible call, or an empty string if they do."""
    if action in PRIVILEGED:
        allowed = "operator" in login.roles or (call.policy is not None and is_named(login, call.policy.operators))
        return "" if allowed else format_lack("operator")
    return "" if action == "view" or may_answer(login, call) else format_lack("approver")


def check_role(login: "Login", role: Role) -> None:
    """Check that a login has a role.

    Raises:
        Refused: The login does not have the role.
    """
    if role not in login.roles:
        raise Refused(HTTPStatus.FORBIDDEN, "NotAllowed", format_lack(role))


def format_lack(role: Role) -> str:
    """Return the message for a person who lacks a role."""
    if role == "approver":
        return (
            "This call does not name you as an approver, and you do not have the role 'approver', which may answer "
            "other calls. The operator of this server grants roles in the section [oidc.grant] of its identity file."
        )
    return (
        f"This needs the role {role!r}. The operator of this server grants roles in the section [oidc.grant] of its "
        "identity file."
    )
