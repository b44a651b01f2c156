"""Who may do what to a call that waits.

An identity counts only when a provider has verified it. `by` alone is a claim, and is taken where the policy asks for
no more, or where there is no policy.
"""

from waystation.core.answer import Answer
from waystation.core.call import CallState
from waystation.core.errors import NotAllowed
from waystation.core.policy import Verified


def check_authority(call: CallState, answer: Answer, who: Verified | None, requester: str) -> None:
    """Look whether whoever answers may.

    Raises:
        NotAllowed: No; the message says who may, as far as the policy names them.
    """
    policy, name = call.policy, who.subject if who else answer.by
    if answer.action in ("claim", "release", "view") and not name:
        raise NotAllowed(f"To {answer.action} call {call.id!r} somebody has to say who they are, in `by`.")
    if policy is None:
        return
    if policy.must_verify and who is None:
        raise NotAllowed(f"Call {call.id!r} takes only answers with a verified identity; send a `token`.")
    if answer.action in ("waive", "cancel"):
        if who and policy.must_verify and not who.is_among(policy.operators):
            raise NotAllowed(f"{name!r} may not {answer.action} call {call.id!r}; {_listed(policy.operators)} may.")
        return
    if answer.action == "view":
        return
    asked = policy.asked(call.level)
    if asked and not (who.is_among(asked) if who else name in asked):
        raise NotAllowed(f"{name!r} may not answer call {call.id!r}; {_listed(asked)} may.")
    if policy.not_requester and name == requester:
        raise NotAllowed(f"{name!r} asked for call {call.id!r}; somebody else has to answer it.")
    if policy.quorum > 1 and not name:
        raise NotAllowed(f"{policy.quorum} people have to approve call {call.id!r}; say who answers, in `by`.")


def check_claim(call: CallState, answer: Answer, who: Verified | None) -> None:
    """Look whether somebody else has taken the call on.

    Raises:
        NotAllowed: Somebody has.
    """
    name = who.subject if who else answer.by
    if call.claimed_by in (None, name) or answer.action in ("view", "release", "waive", "cancel"):
        return
    raise NotAllowed(
        f"{call.claimed_by!r} has taken on call {call.id!r}. Whoever may answer it may `release` it, and then answer."
    )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nobody"
