"""Proofs: what a worker key has authenticated, so that an approval can be verified again where it is used.

Histories and inputs can be forged by anyone who may write to the namespace. Only workers have the keys, and only
activities use them. An activity authenticates a verified answer, and the activity that runs the tool checks it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from waystation.core.approval.policy import ApprovalPolicy, Verified, is_among_people, normalize_person
from waystation.core.payload import JsonObject, Recorded


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a workflow run comes from, as the server recorded it. No client can forge this."""

    workflow_type: str
    first_run_id: str
    """ID of the first run in the chain of runs that continued as new or were reset."""
    parent: tuple[str, str] | None = None
    """Workflow ID and run ID of the workflow that started the chain as its child."""


class Mac(Recorded):
    """A message authentication code that was computed with a worker key."""

    key: str
    """ID of the key."""
    code: str


@dataclass(frozen=True, slots=True)
class Request:
    """The content of an invocation's start or of a session message. The sender's token is valid only for it."""

    content: JsonObject
    lasting: bool = False
    """Whether this is the request for a schedule, whose token must be valid for as long as the schedule."""


class SignedRequest(Recorded):
    """The verified people who requested an invocation, authenticated by a worker."""

    subjects: tuple[str, ...] = ()
    """The senders of the messages. Empty if one of the messages was sent without a valid token."""
    messages: int = 1
    """How many messages were verified: the first one, and those that joined the invocation."""
    invocation_id: str
    """The invocation that received the messages. Agents that it calls inherit its requesters."""
    run: str = ""
    """ID of the first run of that invocation."""
    mac: Mac | None = None

    def claims(self, namespace: str) -> JsonObject:
        """Return what the MAC authenticates."""
        return {"kind": "request", "namespace": namespace, **self.model_dump(mode="json", exclude={"mac"})}


class SignedApproval(Recorded):
    """A verified answer that lets a call run, authenticated by a worker."""

    who: Verified
    action: str
    """`approve`, `edit`, `waive` or `start_again`."""
    digest: str
    """Digest of the call that may run; see `policy.call_digest`. After `edit`, it includes the edited arguments."""
    asked: str
    """The kind of request that was answered: `confirmation`, `credential`, `budget` or `unknown`."""
    wait: int
    """Number of the call's request that was answered, counted from 1."""
    run: str = ""
    """ID of the first run of the invocation that made the call."""
    remember: bool = False
    at: float
    """When the answer was verified, in seconds since 1970."""
    mac: Mac | None = None

    def claims(self, namespace: str, approval_id: str, coverage: JsonObject | None) -> JsonObject:
        """Return what the MAC authenticates.

        Args:
            namespace: The Temporal namespace.
            approval_id: The approved call, as `<invocation id>/<function call id>`.
            coverage: What the approval covers if it is remembered; see `remembered.describe_coverage`.
        """
        approval = self.model_dump(mode="json", exclude={"mac"})
        place = {"kind": "approval", "namespace": namespace, "call": approval_id}
        return {**place, **approval, "coverage": coverage if self.remember else None}


def call_claims(
    namespace: str, approval_id: str, run: str, root: str | None, digest: str, *, asks: bool, covered: bool
) -> JsonObject:
    """Return what the MAC of a call authenticates: a worker's decision on whether the call needs an approval.

    Args:
        namespace: The Temporal namespace.
        approval_id: The call, as `<invocation id>/<function call id>`.
        run: ID of the first run of the invocation.
        root: The root agent, whose rules apply to the call, or None if an earlier version recorded the call.
        digest: Digest of the call; see `policy.call_digest`.
        asks: Whether the call requires an approval before it runs.
        covered: Whether a remembered approval covers the call.
    """
    place = {"kind": "call", "namespace": namespace, "call": approval_id, "run": run}
    claims: JsonObject = {**place, "digest": digest, "asks": asks, "covered": covered}
    return {**claims, "root": root} if root else claims


def satisfies_policy(
    policy: ApprovalPolicy, approvals: Iterable[SignedApproval], requesters: Sequence[str] | None
) -> bool:
    """Return whether approvals of one call satisfy the policy: enough different approvers, or an operator's waiver.

    The caller must already have checked that the approvals are authentic. If `requesters` is None because the requester
    is not verified, a policy with `not_requester` accepts only a waiver.
    """
    approvers, people = policy.asked(len(policy.escalation)), set[str]()
    for approval in approvals:
        who = approval.who
        if who.kind == "chat" and not policy.chat:
            continue
        if approval.action == "waive":
            if who.is_among(policy.operators):
                return True
        elif (not approvers or who.is_among(approvers)) and not (
            policy.not_requester and (requesters is None or is_among_people(who.subject, requesters))
        ):
            people.add(normalize_person(who.subject))
    return len(people) >= policy.quorum
