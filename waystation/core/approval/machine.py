"""Machines that answer calls instead of people, and what their completion URLs allow."""

import re
from dataclasses import KW_ONLY, dataclass

from waystation.core import ids
from waystation.core.approval.answer import PendingCall
from waystation.core.approval.policy import MACHINE, OPERATOR, ApprovalPolicy
from waystation.core.errors import NotAllowed


@dataclass(frozen=True)
class External:
    """A machine, such as another system of yours, that answers the calls of a long-running tool instead of people.

    No person is notified of such a call, and no person can answer it, except an operator who replaces or cancels it.
    """

    name: str
    """Up to 63 of `a-z`, `0-9`, `.`, `_`, `-`. Answers count as those of `machine:NAME`."""
    _: KW_ONLY
    verified: bool | None = None
    """Whether only answers through a completion URL count. If None, this is the case if the worker that makes the call
    has a key for completion URLs, or if `operators` are set. Otherwise, anyone with access to Temporal can answer under
    the machine's name."""
    operators: tuple[str, ...] = (OPERATOR,)
    """The subjects and roles that may replace or cancel a call, if only verified answers count."""

    def __post_init__(self) -> None:
        if not re.fullmatch(ids.TENANT, self.name):
            raise ValueError(f"{self.name!r} is not a valid name of a machine; use a name such as 'claims'.")
        if self.operators != (OPERATOR,) and self.verified is False:
            raise ValueError("`operators` cannot be checked for unverified answers; omit `verified` or `operators`.")

    def policy(self, *, has_key: bool) -> "ApprovalPolicy":
        """Return the policy for the machine's answers. `has_key` says whether the worker can make completion URLs."""
        must_verify = (has_key or self.operators != (OPERATOR,)) if self.verified is None else self.verified
        return ApprovalPolicy(
            approvers=(f"{MACHINE}{self.name}",),
            verified=None if must_verify else False,
            actions=("respond", "progress"),
            operators=self.operators,
            notify=(),
        )


@dataclass(frozen=True, kw_only=True)
class CompletionGrant:
    """The permission that a completion URL gives: a machine may answer one call.

    The run ID, which the server chooses, ties it to the invocation, and so to its tenant and app.
    """

    namespace: str
    approval_id: str
    run: str
    """ID of the invocation's first run."""
    digest: str
    """Digest of the call."""
    machine: str
    revoked: int = 0
    """How often the call's URLs had been revoked when this one was made. Each revocation ends the earlier ones."""
    until: int
    """When the URL expires, in seconds since 1970."""

    @classmethod
    def of(cls, call: PendingCall, namespace: str) -> "CompletionGrant":
        """Return what the machine of a pending call may do until the call's deadline.

        Raises:
            NotAllowed: People answer the call.
        """
        if call.machine is None or call.run is None:
            raise NotAllowed(f"No machine answers call {call.approval_id!r}, so it has no completion URL.")
        about = {"approval_id": call.approval_id, "run": call.run, "digest": call.digest, "machine": call.machine}
        return cls(namespace=namespace, revoked=call.revoked, until=int(call.deadline) + 1, **about)
