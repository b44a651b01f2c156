"""Approvals that hold for further calls like the one that was approved."""

from collections.abc import Iterable

from waystation.core import ids
from waystation.core.approval.policy import ApprovalPolicy, StandingApproval
from waystation.core.call import CallState
from waystation.core.payload import JsonObject, digest

MAX_STANDING = 100
"""How many one invocation, or one session, keeps; one more takes the place of the oldest."""


def merge_remembered(
    known: Iterable[StandingApproval], more: Iterable[StandingApproval]
) -> tuple[StandingApproval, ...]:
    """Return standing approvals with further ones, each once."""
    return tuple({each.origin: each for each in (*known, *more)}.values())[-MAX_STANDING:]


def standing_approval(invocation_id: str, call: CallState, by: str, now: float) -> StandingApproval | None:
    """Return what an approval of the call that is to be remembered allows from now on; None when nothing."""
    policy = call.policy
    if policy is None or policy.remember is None:
        return None
    return StandingApproval(
        agent=call.agent,
        tool=call.name,
        args=_alike(policy, call.args),
        bound_to=_bound_to(call.declared, policy),
        by=by,
        until=now + policy.remember.total_seconds(),
        origin=ids.approval(invocation_id, call.id),
    )


def covering(
    standing: Iterable[StandingApproval],
    *,
    agent: str,
    tool: str,
    args: JsonObject,
    declared: str | None,
    policy: ApprovalPolicy,
) -> StandingApproval | None:
    """Return the approval under which a call may run unasked: of the same tool, parameters, policy and arguments."""
    # Digests, because Python takes 1, 1.0 and True for the same.
    wanted = (agent, tool, _bound_to(declared, policy), digest(_alike(policy, args)))
    found = (each for each in standing if (each.agent, each.tool, each.bound_to, digest(each.args)) == wanted)
    return next(found, None) if policy.remember else None


def _alike(policy: ApprovalPolicy, args: JsonObject) -> JsonObject:
    names = policy.remember_args
    return dict(args) if names is None else {name: args[name] for name in names if name in args}


def _bound_to(declared: str | None, policy: ApprovalPolicy) -> str:
    return digest({"schema": declared, "policy": policy.record()})
