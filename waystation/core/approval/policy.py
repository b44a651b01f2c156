"""Approval policies: who must approve a call, how many approvals it needs, and what happens without an answer.

A policy is recorded with its call, so a changed policy applies to later calls only. Time alone never approves a call.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from waystation.core.payload import JsonObject, Recorded, digest

ROLE = "role:"
OPERATOR = "role:waystation-operator"
MAX_QUORUM = 50
LONGEST = timedelta(days=36500)
"""A hundred years; later dates overflow."""
MAX_NOTICES = 50
MAX_STANDING = 100
"""Remembered approvals that one invocation, or one session, keeps; one more replaces the oldest."""


def _no_flag(value: Any) -> Any:
    """Refuse `remember=True`, which would mean one second."""
    if isinstance(value, bool):
        raise ValueError("is not a duration; use a timedelta, such as timedelta(hours=1)")
    return value


PositiveDuration = Annotated[timedelta, BeforeValidator(_no_flag), Field(gt=timedelta())]
ApproverName = Annotated[str, Field(min_length=1, max_length=300)]
"""An approver: a subject of the identity provider, such as `alice@example.com`, or a role, such as `role:finance`."""
Decision = Literal["approve", "reject", "edit", "respond", "progress"]


def is_among_people(name: str | None, people: Iterable[str | None]) -> bool:
    """Whether a name is one of these people in any spelling, for exclusions and quorums.

    Rights are compared exactly instead: another spelling must neither gain a right nor escape a restriction.
    """
    return bool(name) and _person(name or "") in {_person(person) for person in people if person}


def _person(name: str) -> str:
    spelled = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return spelled.strip().removeprefix("mailto:").strip()


class Verified(Recorded):
    """An identity verified by an identity provider or a trusted gateway."""

    subject: str
    roles: tuple[str, ...] = ()
    """Role names without the prefix `role:`."""
    issuer: str = ""

    def is_among(self, named: tuple[str, ...]) -> bool:
        """Whether a list of subjects and roles includes this person."""
        return self.subject in named or any(f"{ROLE}{role}" in named for role in self.roles)


@dataclass(frozen=True, slots=True)
class Notice:
    """A reminder or an escalation in a policy."""

    after: timedelta
    escalates: bool = False
    notify: tuple[str, ...] = ()


class Authored(Recorded):
    """A recorded type that authors write. Unknown fields are errors in code, but are ignored in a history."""

    if not TYPE_CHECKING:  # for type checkers it would hide the fields

        def __init__(self, **fields: Any) -> None:
            """Refuse unknown fields. If a misspelt `aprovers` were ignored, anybody could answer.

            Raises:
                TypeError: There is no such field.
                ValidationError: A field has a wrong value.
            """
            known = type(self).model_fields
            for name in fields:
                if name not in known:
                    raise TypeError(f"{type(self).__name__} has no field {name!r}; there are {', '.join(known)}.")
            super().__init__(**fields)

        # Pydantic's mark for its own `__init__`; without it, validation of a history would call this one.
        __init__.__pydantic_base_init__ = True


class Escalation(Authored):
    """Further approvers after a time without an answer. Earlier approvers may still answer."""

    after: PositiveDuration
    """Counted from the moment the call began to wait."""
    to: tuple[ApproverName, ...] = Field(min_length=1)
    notify: tuple[str, ...] = ()
    """Channels to notify; empty: those of the policy."""


class ApprovalPolicy(Authored):
    """Who must approve a call, how many approvals it needs, and by when."""

    approvers: tuple[ApproverName, ...] = ()
    """Subjects and roles; empty: anybody may answer."""
    not_requester: bool = False
    """Whether the requester is excluded from answering."""
    quorum: int = Field(default=1, ge=1, le=MAX_QUORUM)
    """Number of different people who must approve. A single rejection decides."""
    verified: bool | None = None
    """Whether only answers with a verified identity count. None: only if the policy names approvers, excludes the
    requester, or has a quorum."""
    deadline: PositiveDuration | None = None
    """How long the answer may take. None: the deadline of the tool, or 30 days."""
    reminders: tuple[PositiveDuration, ...] = ()
    """Times of the reminders, counted from the moment the call began to wait."""
    escalation: tuple[Escalation, ...] = ()
    on_expiry: Literal["reject", "fail"] = "reject"
    """At the deadline: `reject` the call and let the model continue, or `fail` the invocation."""
    actions: tuple[Decision, ...] | None = None
    """Allowed actions. None: all that suit the call."""
    comment: bool = False
    """Whether an answer needs a comment."""
    digest: bool = False
    """Whether an answer must repeat the digest of the pending call."""
    remember: PositiveDuration | None = None
    """How long an approval may cover later identical calls of the session. None: not at all."""
    remember_args: tuple[str, ...] | None = None
    """Arguments that must be equal for a call to count as identical. None: all of them."""
    operators: tuple[ApproverName, ...] = (OPERATOR,)
    """Who may waive the policy or cancel the call, if `must_verify`; otherwise anybody may."""
    notify: tuple[str, ...] = ()
    """Channels to notify when a call waits, by their names in the workers' configuration."""

    @property
    def must_verify(self) -> bool:
        """Whether only answers with a verified identity count."""
        matters = bool(self.approvers) or self.not_requester or self.quorum > 1
        return matters if self.verified is None else self.verified

    def notices(self) -> list[Notice]:
        """Return reminders and escalations, ordered by time."""
        reminders = (Notice(after=after) for after in self.reminders)
        escalations = (
            Notice(after=escalation.after, escalates=True, notify=escalation.notify) for escalation in self._levels()
        )
        return sorted((*reminders, *escalations), key=lambda notice: (notice.after, notice.escalates))

    def _levels(self) -> list[Escalation]:
        return sorted(self.escalation, key=lambda escalation: escalation.after)

    def asked(self, level: int) -> tuple[str, ...]:
        """Return the approvers after `level` escalations; empty: anybody may answer."""
        further = tuple(who for escalation in self._levels()[:level] for who in escalation.to)
        return self.approvers + further if self.approvers else ()

    def mistakes(self) -> Iterator[str]:
        """Yield mistakes of the author. Not part of validation, because recorded policies may contain them."""
        approvers = (*self.approvers, *(who for level in self._levels() for who in level.to))
        if ROLE in (*approvers, *self.operators):
            yield f"names {ROLE!r}, a role without a name, which nobody has; say which, such as 'role:finance'."
        longest = max(self.deadline or timedelta(), self.remember or timedelta())
        if longest > LONGEST:
            yield f"has a duration of {longest.days} days; at most {LONGEST.days} days (a hundred years) are allowed."
        people = {who for who in approvers if not who.startswith(ROLE)}
        if self.approvers and len(people) == len(set(approvers)) < self.quorum:
            yield (
                f"wants {self.quorum} people (`quorum`), but names only {', '.join(sorted(people))}, so that no call "
                "could ever be approved; name more, or a role."
            )
        if self.operators != (OPERATOR,) and not self.must_verify:
            yield (
                f"names {', '.join(self.operators) or 'nobody'} as `operators`, but takes answers without a verified "
                "identity, so that anybody may waive or cancel; add verified=True, or leave `operators` out."
            )

    def satisfies(self, other: "ApprovalPolicy") -> bool:
        """Whether every approval under this policy would also satisfy the other policy."""
        approvers = self.asked(len(self.escalation))
        return (
            (not other.approvers or (bool(approvers) and set(approvers) <= set(other.approvers)))
            and self.quorum >= other.quorum
            and self.must_verify >= other.must_verify
            and self.not_requester >= other.not_requester
        )

    def alike(self, args: JsonObject) -> JsonObject:
        """Return the arguments that a later call must repeat for a remembered approval to cover it."""
        names = self.remember_args
        return dict(args) if names is None else {name: args[name] for name in names if name in args}

    def bound_to(self, declared: str | None) -> str:
        """Return the digest that binds a remembered approval to this policy and to the tool's parameters."""
        return digest({"schema": declared, "policy": self.record()})

    def record(self) -> JsonObject:
        """Return the policy as JSON, without defaults."""
        return dict(self.model_dump(mode="json", exclude_defaults=True))

    @field_validator("on_expiry", mode="before")
    @classmethod
    def _never_approves(cls, value: Any) -> Any:
        if value in ("approve", "escalate"):
            raise ValueError(
                "silence never approves a call; use 'reject' or 'fail', and `escalation` to ask others before that"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "ApprovalPolicy":
        roles = [who for who in (*self.approvers, *(w for e in self.escalation for w in e.to)) if who.startswith(ROLE)]
        if self.verified is False and roles:
            raise ValueError(f"{roles[0]!r} cannot be known of an unverified answer; leave `verified` out")
        if self.quorum > 1 and self.actions is not None and "approve" not in self.actions:
            raise ValueError("a quorum is of people who approve, but `actions` does not allow that")
        if self.actions is not None and not set(self.actions) - {"progress"}:
            raise ValueError("`actions` allows nothing that would settle a call")
        if len(self.reminders) + len(self.escalation) > MAX_NOTICES:
            raise ValueError(f"there may be {MAX_NOTICES} reminders and escalations together")
        if self.deadline:
            late = [
                at
                for at in (*self.reminders, *(escalation.after for escalation in self.escalation))
                if at >= self.deadline
            ]
            if late:
                raise ValueError(f"a reminder or escalation after {late[0]} comes no earlier than the deadline")
        return self


class StandingApproval(Recorded):
    """A remembered approval: it covers later identical calls for a time."""

    agent: str
    tool: str
    args: JsonObject
    """The arguments that must be equal."""
    bound_to: str
    """Digest of the tool's parameters and of the policy. If either changes, the approval no longer applies."""
    by: str
    until: float
    """Seconds since 1970."""
    origin: str
    """`<invocation id>/<function call id>` of the call that was approved."""


def merge_remembered(
    known: Iterable[StandingApproval], more: Iterable[StandingApproval]
) -> tuple[StandingApproval, ...]:
    """Return both, each origin once, without the oldest when there are too many."""
    return tuple({approval.origin: approval for approval in (*known, *more)}.values())[-MAX_STANDING:]


def find_covering_approval(
    standing: Iterable[StandingApproval],
    *,
    agent: str,
    tool: str,
    args: JsonObject,
    declared: str | None,
    policy: ApprovalPolicy,
) -> StandingApproval | None:
    """Return the remembered approval that covers a call: same tool, parameters, policy and arguments."""
    # Digests, because 1, 1.0 and True are equal in Python.
    expected = (agent, tool, policy.bound_to(declared), digest(policy.alike(args)))
    found = (known for known in standing if (known.agent, known.tool, known.bound_to, digest(known.args)) == expected)
    return next(found, None) if policy.remember else None


def call_digest(
    agent: str, tool: str, args: JsonObject, *, declared: str | None = None, policy: ApprovalPolicy | None = None
) -> str:
    """Return the digest of what an approver approves: the call, the tool's parameters and the policy."""
    bound: JsonObject = {"agent": agent, "tool": tool, "args": args}
    if declared is not None:
        bound |= {"schema": declared, "policy": policy.record() if policy else None}
    return digest(bound)
