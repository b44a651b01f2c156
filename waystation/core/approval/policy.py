"""Approval policies: who must approve a call, how many approvals it needs, and what happens if no one answers.

A policy is recorded with each call, so changing a policy affects only later calls. A call is never approved merely
because time has passed.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from waystation.core.actions import ACTIONS, Decision
from waystation.core.payload import JsonObject, Recorded, digest

ROLE = "role:"
MACHINE = "machine:"
"""Prefix of the names of machines, as in `machine:claims`. No person has such a name."""
OPERATOR = "role:waystation-operator"
MAX_QUORUM = 50
LONGEST = timedelta(days=36500)
"""The longest allowed `deadline` or `remember`: one hundred years. Later dates would overflow."""
MAX_NOTICES = 50


def _no_flag(value: Any) -> Any:
    """Reject a bool, such as `remember=True`, which Pydantic would read as one second. Return any other value."""
    if isinstance(value, bool):
        raise ValueError("is not a duration; use a timedelta, such as timedelta(hours=1)")
    return value


PositiveDuration = Annotated[timedelta, BeforeValidator(_no_flag), Field(gt=timedelta())]
ApproverName = Annotated[str, Field(min_length=1, max_length=300)]
"""An approver: either a subject from the identity provider, such as `alice@example.com`, or a role, such as
`role:finance`."""


def is_among_people(name: str | None, people: Iterable[str | None]) -> bool:
    """Return whether a name refers to one of these people, ignoring differences in spelling.

    This comparison is for exclusions and quorums. Permissions are compared exactly, so that a different spelling can
    neither gain a permission nor avoid a restriction.
    """
    return bool(name) and normalize_person(name or "") in {normalize_person(person) for person in people if person}


def normalize_person(name: str) -> str:
    """Return a name in normalized form: NFC, case-folded, trimmed, and without `mailto:`."""
    spelled = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return spelled.strip().removeprefix("mailto:").strip()


def _is_none(value: object) -> bool:
    """Return whether a field is left out. Older clients cannot read null."""
    return value is None


class Verified(Recorded):
    """An identity that was verified by an identity provider or a trusted gateway."""

    subject: str
    roles: tuple[str, ...] = ()
    """Role names without the `role:` prefix."""
    issuer: str = ""
    tenant: str | None = Field(default=None, exclude=True)
    """The person's tenant: empty if the token names none, or None if the issuer has no `tenant_claim`. The tenant is
    checked when the identity is verified, and is not recorded."""
    is_program: bool = Field(default=False, exclude=True)
    """Whether the token was issued to a program itself. Checked when the identity is verified, and not recorded."""
    kind: str | None = Field(default=None, exclude_if=_is_none)
    """The kind of the issuer in the workers' identity file: `chat` if it signs for the people of a chat, or None."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names, including roles, that policies and claims may use to refer to this person."""
        return self.subject, *(f"{ROLE}{role}" for role in self.roles)

    def may_access(self, tenant: str | None) -> bool:
        """Return whether the person may access the data of a tenant or, if `tenant` is None, data without a tenant."""
        return self.tenant in (None, tenant or "")

    def is_among(self, named: tuple[str, ...]) -> bool:
        """Return whether a list of subjects and roles includes this person or one of this person's roles."""
        return self.subject in named or any(f"{ROLE}{role}" in named for role in self.roles)


@dataclass(frozen=True, slots=True)
class Notice:
    """A reminder or an escalation in a policy."""

    after: timedelta
    escalates: bool = False
    notify: tuple[str, ...] | None = None


class Authored(Recorded):
    """Base class for recorded types that users also create in code.

    Unknown fields raise an error in code but are ignored in a history.
    """

    if not TYPE_CHECKING:  # type checkers would see `**fields` instead of the fields

        def __init__(self, **fields: Any) -> None:
            """Reject unknown fields. If a misspelled `aprovers` were ignored, anyone could answer.

            Raises:
                TypeError: An argument is not the name of a field.
                ValidationError: A field has an invalid value.
            """
            known = type(self).model_fields
            for name in fields:
                if name not in known:
                    raise TypeError(f"{type(self).__name__} has no field {name!r}. Its fields are: {', '.join(known)}.")
            super().__init__(**fields)

        # Pydantic sets this attribute on its own `__init__`. Without it, Pydantic would also call this `__init__` when
        # it validates a history.
        __init__.__pydantic_base_init__ = True


class Escalation(Authored):
    """Additional approvers who may answer if the call is still unanswered after some time.

    The earlier approvers may still answer.
    """

    after: PositiveDuration
    """The delay, counted from the moment the call starts to wait."""
    to: tuple[ApproverName, ...] = Field(min_length=1)
    notify: tuple[str, ...] | None = Field(default=None, exclude_if=_is_none)
    """Channels to notify of the escalation. If None, the policy's channels are notified; if empty, nobody is."""


class ApprovalPolicy(Authored):
    """Who must approve a call, how many approvals it needs, and by when."""

    approvers: tuple[ApproverName, ...] = ()
    """The subjects and roles that may answer. If empty, anyone may answer."""
    not_requester: bool = False
    """Whether the person who requested the call is excluded from answering."""
    quorum: int = Field(default=1, ge=1, le=MAX_QUORUM)
    """Number of different people who must approve the call. A single rejection is enough to reject it."""
    verified: bool | None = None
    """Whether only answers with a verified identity count. If None, this is the case only if the policy names
    approvers, excludes the requester or has a quorum."""
    deadline: PositiveDuration | None = None
    """How long approvers have to answer. Defaults to the tool's deadline, or 30 days if the tool has none."""
    reminders: tuple[PositiveDuration, ...] = ()
    """When to send reminders, counted from the moment the call starts to wait."""
    escalation: tuple[Escalation, ...] = ()
    on_expiry: Literal["reject", "fail"] = "reject"
    """The action at the deadline: `reject` rejects the call and lets the model continue; `fail` fails the
    invocation."""
    actions: tuple[Decision, ...] | None = None
    """The decisions that an answer may contain. Defaults to all that apply to the call. Other actions, such as `claim`
    and `cancel`, are not affected."""
    comment: bool = False
    """Whether an answer that decides the call must include a comment."""
    digest: bool = False
    """Whether an answer that decides the call must repeat the call's digest."""
    remember: PositiveDuration | None = None
    """How long an approval can also cover later identical calls in the same session. If None, approvals are not
    remembered."""
    remember_args: tuple[str, ...] | None = None
    """Names of the arguments that must be equal for a call to count as identical. Defaults to all arguments."""
    operators: tuple[ApproverName, ...] = (OPERATOR,)
    """The subjects and roles that may waive the policy or cancel the call. They apply only if `must_verify` is true;
    otherwise, anyone may do so."""
    notify: tuple[str, ...] | None = Field(default=None, exclude_if=_is_none)
    """Channels to notify when a call is waiting, as named in the workers' configuration. If None, the workers' default
    channels are notified; if empty, nobody is."""
    chat: bool = Field(default=True, exclude_if=lambda value: value is True)
    """Whether people may answer in a chat, such as Slack. If not, only answers with a verified identity from another
    issuer count."""

    @property
    def must_verify(self) -> bool:
        """Whether only answers with a verified identity count."""
        matters = bool(self.approvers) or self.not_requester or self.quorum > 1 or not self.chat
        return matters if self.verified is None else self.verified

    @property
    def machine(self) -> str | None:
        """The name of the machine that answers, or None if people do. See `External.policy`."""
        return self.approvers[0].removeprefix(MACHINE) if [*map(is_machine, self.approvers)] == [True] else None

    def notices(self) -> list[Notice]:
        """Return the reminders and escalations, ordered by time."""
        reminders = (Notice(after=after) for after in self.reminders)
        escalations = (
            Notice(after=escalation.after, escalates=True, notify=escalation.notify) for escalation in self._levels()
        )
        return sorted((*reminders, *escalations), key=lambda notice: (notice.after, notice.escalates))

    def _levels(self) -> list[Escalation]:
        return sorted(self.escalation, key=lambda escalation: escalation.after)

    def asked(self, level: int) -> tuple[str, ...]:
        """Return the approvers after `level` escalations. The result is empty if anyone may answer."""
        further = tuple(who for escalation in self._levels()[:level] for who in escalation.to)
        return self.approvers + further if self.approvers else ()

    def mistakes(self) -> Iterator[str]:
        """Yield a description of each mistake in the policy as declared.

        These are not validation errors, because recorded policies that contain them must remain readable.
        """
        approvers = (*self.approvers, *(who for level in self._levels() for who in level.to))
        if ROLE in (*approvers, *self.operators):
            yield f"names {ROLE!r}, a role without a name, which no one can have; name a role, such as 'role:finance'."
        longest = max(self.deadline or timedelta(), self.remember or timedelta())
        if longest > LONGEST:
            yield f"has a duration of {longest.days} days; at most {LONGEST.days} days (a hundred years) are allowed."
        if named := next(filter(is_machine, (*approvers, *self.operators)), None):
            machine = named.removeprefix(MACHINE)
            yield (
                f"names {named!r}, but policies are for people; remove it, and set `answered_by=External({machine!r})` "
                "on the long-running tool whose calls the machine answers."
            )
        people = {who for who in approvers if not who.startswith(ROLE)}
        if self.approvers and len(people) == len(set(approvers)) < self.quorum:
            yield (
                f"requires {self.quorum} people (`quorum`), but names only {', '.join(sorted(people))}, so no call "
                "could ever be approved; name more people or a role."
            )
        if self.operators != (OPERATOR,) and not self.must_verify:
            yield (
                f"names {', '.join(self.operators) or 'no one'} as `operators`, but accepts answers without a verified "
                "identity, so anyone may waive or cancel; set verified=True or omit `operators`."
            )

    def satisfies(self, other: "ApprovalPolicy") -> bool:
        """Return whether approvals that meet this policy also meet the other one.

        The approvers, the quorum, the verification of identities, `not_requester` and `chat` are compared.
        """
        approvers = self.asked(len(self.escalation))
        return (
            (not other.approvers or (bool(approvers) and set(approvers) <= set(other.approvers)))
            and self.quorum >= other.quorum
            and self.must_verify >= other.must_verify
            and self.not_requester >= other.not_requester
            and self.chat <= other.chat
        )

    def alike(self, args: JsonObject) -> JsonObject:
        """Return those of a call's arguments that a later call must repeat to be covered by a remembered approval."""
        names = self.remember_args
        return dict(args) if names is None else {name: args[name] for name in names if name in args}

    def bound_to(self, declared: str | None, origin: str | None) -> str:
        """Return the digest that ties a remembered approval to this policy, the tool's parameters and its origin."""
        bound: JsonObject = {"schema": declared, "policy": self.record()}
        return digest(bound if origin is None else {**bound, "origin": origin})

    def record(self) -> JsonObject:
        """Return the policy as JSON without default values."""
        return dict(self.model_dump(mode="json", exclude_defaults=True))

    @field_validator("on_expiry", mode="before")
    @classmethod
    def _never_approves(cls, value: Any) -> Any:
        if value in ("approve", "escalate"):
            raise ValueError(
                "a call is never approved without an answer; use 'reject' or 'fail', and `escalation` to ask others "
                "first"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "ApprovalPolicy":
        roles = [who for who in (*self.approvers, *(w for e in self.escalation for w in e.to)) if who.startswith(ROLE)]
        if self.verified is False and roles:
            raise ValueError(f"{roles[0]!r} cannot be checked for an unverified answer; omit `verified`")
        if self.verified is False and not self.chat:
            raise ValueError("`chat=False` cannot be checked for an unverified answer; omit `verified`")
        if self.quorum > 1 and self.actions is not None and "approve" not in self.actions:
            raise ValueError("a `quorum` above 1 requires approvals, but `actions` does not include 'approve'")
        if self.actions is not None and not any(ACTIONS[action].decides for action in self.actions):
            raise ValueError("`actions` does not include any action that decides a call")
        if len(self.reminders) + len(self.escalation) > MAX_NOTICES:
            raise ValueError(f"at most {MAX_NOTICES} reminders and escalations are allowed in total")
        if self.deadline:
            late = [
                at
                for at in (*self.reminders, *(escalation.after for escalation in self.escalation))
                if at >= self.deadline
            ]
            if late:
                raise ValueError(f"a reminder or escalation after {late[0]} would not come before the deadline")
        return self


def is_machine(name: str | None) -> bool:
    """Return whether a name is that of a machine."""
    return name is not None and name.startswith(MACHINE)


def call_digest(
    agent: str,
    tool: str,
    args: JsonObject,
    *,
    declared: str | None = None,
    policy: ApprovalPolicy | None = None,
    origin: str | None = None,
) -> str:
    """Return the digest of what an approver approves: the call, the tool's origin and parameters, and the policy.

    If `declared` is None, the digest covers neither parameters nor policy. If `origin` is None, as in calls that an
    earlier version recorded, it does not cover the origin.
    """
    bound: JsonObject = {"agent": agent, "tool": tool, "args": args}
    if origin is not None:
        bound["origin"] = origin
    if declared is not None:
        bound |= {"schema": declared, "policy": policy.record() if policy else None}
    return digest(bound)
