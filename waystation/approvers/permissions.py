"""The people that an interface has identified, and what they may see and answer.

With an identity provider, people see their own invocations and the calls that they may answer, unless the identity file
grants them roles. Without one, everybody has all roles, because the interface then serves only this machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from waystation.core.actions import ACTIONS, Action
from waystation.core.approval import PendingCall, Verified
from waystation.core.contract import DEFAULT_USER
from waystation.core.errors import NotAllowed

Role = Literal["viewer", "approver", "author", "operator"]
"""A role in an interface. `viewer` sees everything. `approver` answers calls that do not name their approvers. `author`
starts and cancels invocations and chats. `operator` forks and resets invocations, reads prompts, writes `app:` state
and closes calls.
"""
ROLES: frozenset[str] = frozenset(get_args(Role))


@dataclass(frozen=True, eq=False)
class Person:
    """A person who uses an interface, or a program that does."""

    name: str
    """The person's name. If no provider has confirmed an identity, answers are recorded under this name. Workers can
    verify it only if the interface has a gateway."""
    verified: Verified | None = None
    """The identity that an identity provider confirmed, with the person's tenant, if any."""
    roles: frozenset[str] = ROLES
    """The roles in the interface. The default, all roles, is for people who log in without a provider."""
    only: str = ""
    """Approval ID of the only call that this person may open, such as that of a link. Empty if there is no limit."""
    proof: str | None = field(default=None, repr=False)
    """A token with which the person has proved the identity, and which workers accept. Without one, the gateway signs
    the person's answers."""

    vouched: bool = True
    """Whether the gateway may sign answers for this person without a proof."""

    is_machine: bool = False
    """Whether this is a program with an identity of its own. It counts as an approver or operator only of calls whose
    policy names it."""

    @property
    def subject(self) -> str:
        """The name to record with answers: the verified one, if there is one."""
        return self.verified.subject if self.verified else self.name

    @property
    def names(self) -> tuple[str, ...]:
        """The names, including roles, that policies and claims may use to refer to this person."""
        return self.verified.names if self.verified else (self.name,)


def is_requester(person: Person, requesters: Iterable[str | None]) -> bool:
    """Return whether this person, as the provider identified them, requested an invocation."""
    # The default user ID identifies nobody.
    return person.verified is not None and person.verified.subject != DEFAULT_USER and person.subject in requesters


def is_named(person: Person, names: tuple[str, ...]) -> bool:
    """Return whether a list of subjects and roles names this person."""
    return not set(names).isdisjoint(person.names)


def may_answer(person: Person, call: PendingCall) -> bool:
    """Return whether this person's roles allow deciding a call. The call's policy may still exclude the person.

    Without the role `approver`, people may decide only calls whose policy names them, and so may machines in any case.
    """
    is_asked = call.policy is not None and is_named(person, call.policy.asked(call.level))
    return is_asked or ("approver" in person.roles and not person.is_machine)


def sees_tenant(person: Person, tenant: str | None) -> bool:
    """Return whether this person may see the data of a tenant or, if `tenant` is None, data without a tenant."""
    return person.verified is None or person.verified.may_access(tenant)


def sees_everything(person: Person) -> bool:
    """Return whether this person is a viewer who may access all tenants."""
    return "viewer" in person.roles and (person.verified is None or person.verified.tenant is None)


def sees_invocation(person: Person, requesters: Iterable[str | None], tenant: str | None) -> bool:
    """Return whether this person may see an invocation that `requesters` requested: as a viewer, or as one of them.

    In any case, the person must have access to its tenant.
    """
    return sees_tenant(person, tenant) and ("viewer" in person.roles or is_requester(person, requesters))


def sees_call(person: Person, call: PendingCall) -> bool:
    """Return whether this person may see a call: as a viewer or requester, from a link, or to decide or close it."""
    if person.only == call.approval_id or sees_invocation(person, (call.requester, call.user_id), call.tenant):
        return True
    if not sees_tenant(person, call.tenant):
        return False
    if call.policy is None:
        return "approver" in person.roles
    if call.machine and "operator" in person.roles:
        return True
    asked = call.policy.asked(call.level)
    return is_named(person, (*asked, *call.policy.operators)) or (not asked and "approver" in person.roles)


def why_not(person: Person, call: PendingCall, action: Action) -> str:
    """Return why this person's roles do not allow an action on a visible call, or an empty string if they do."""
    if ACTIONS[action].operators_only:
        is_operator = call.policy is not None and is_named(person, call.policy.operators)
        allowed = is_operator or ("operator" in person.roles and not person.is_machine)
    else:
        allowed = action == "view" or may_answer(person, call)
    if not allowed and person.is_machine:
        return f"{person.subject!r} is a machine, so it may {action} only calls whose policy names it."
    return "" if allowed else format_lack("operator" if ACTIONS[action].operators_only else "approver")


def check_role(person: Person, role: Role) -> None:
    """Check that a person has a role.

    Raises:
        NotAllowed: The person does not have the role.
    """
    if role not in person.roles:
        raise NotAllowed(format_lack(role))


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
