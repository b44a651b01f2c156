"""Remembered approvals, which cover later identical calls in the same session or, outside sessions, invocation."""

from collections.abc import Callable, Iterable

from waystation.core.approval.policy import ApprovalPolicy
from waystation.core.approval.proof import SignedApproval
from waystation.core.payload import JsonObject, Recorded, digest

MAX_STANDING = 100
"""Maximum number of remembered approvals in an invocation or session. When it is exceeded, the oldest approvals are
dropped."""


class RememberedApproval(Recorded):
    """A remembered approval, which covers later identical calls for a limited time."""

    root: str | None = None
    """Name of the root agent whose tree contains `agent`. If an earlier version recorded the approval, it is None and
    the approval covers nothing, because another tree may have an agent of that name."""
    agent: str
    tool: str
    args: JsonObject
    """Those arguments of the approved call that a later call must repeat; see `ApprovalPolicy.alike`."""
    bound_to: str
    """Digest of the tool's parameters, its origin and the policy. If one changes, the approval no longer applies."""
    by: str
    until: float
    """The time at which the approval expires, in seconds since 1970."""
    origin: str
    """The approved call, as `<invocation id>/<function call id>`."""
    signed: tuple[SignedApproval, ...] = ()
    """The approvals behind it, if the policy requires verified approvers."""

    def coverage(self, scope: str) -> JsonObject:
        """Return what the approval covers in a scope, as its approvers' MACs authenticate it."""
        return describe_coverage(scope, self.root, self.agent, self.tool, self.args, self.bound_to)


def merge_remembered(
    known: Iterable[RememberedApproval], more: Iterable[RememberedApproval]
) -> tuple[RememberedApproval, ...]:
    """Merge two lists of remembered approvals, keeping one per origin and dropping the oldest if there are too many."""
    return tuple({approval.origin: approval for approval in (*known, *more)}.values())[-MAX_STANDING:]


def find_covering_approval(
    standing: Iterable[RememberedApproval],
    *,
    root: str | None,
    agent: str,
    tool: str,
    args: JsonObject,
    declared: str | None,
    origin: str | None,
    policy: ApprovalPolicy,
    is_proven: Callable[[RememberedApproval], bool] = lambda _: True,
) -> RememberedApproval | None:
    """Return the first remembered approval that covers a call, or None.

    Root agent, agent, tool, parameters, origin, policy and arguments must match, `is_proven` must accept the approval,
    and the policy must still allow remembered approvals. Expiration is not checked here.
    """
    # Compare digests of the arguments, because 1, 1.0 and True are equal in Python.
    expected = (root, agent, tool, policy.bound_to(declared, origin), digest(policy.alike(args)))
    for known in standing:
        covered = (known.root, known.agent, known.tool, known.bound_to, digest(known.args))
        if policy.remember and covered == expected and is_proven(known):
            return known
    return None


def describe_coverage(
    scope: str, root: str | None, agent: str, tool: str, args: JsonObject, bound_to: str
) -> JsonObject:
    """Return what a remembered approval covers, in the form that MACs authenticate.

    Args:
        scope: The session, or the invocation outside sessions, in which the approval is remembered.
        root: The root agent, or None if an earlier version recorded the call.
        agent: The agent that calls the tool.
        tool: The tool's name.
        args: The arguments that a later call must repeat; see `ApprovalPolicy.alike`.
        bound_to: See `ApprovalPolicy.bound_to`.
    """
    coverage: JsonObject = {"scope": scope, "agent": agent, "tool": tool, "args": digest(args), "bound_to": bound_to}
    return {**coverage, "root": root} if root else coverage
