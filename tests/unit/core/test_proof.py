"""Approvals that worker keys authenticate: their content, and when they satisfy a policy."""

import pytest

from waystation.core.approval import ApprovalPolicy, SignedApproval, Verified, describe_coverage, satisfies_policy

ANN, BOB, OPERATOR = (
    Verified(subject="ann@example.com", issuer="tests"),
    Verified(subject="bob@example.com", issuer="tests"),
    Verified(subject="olga@example.com", issuer="tests", roles=("waystation-operator",)),
)
BOTH = ApprovalPolicy(approvers=(ANN.subject, BOB.subject), quorum=2, not_requester=True)


def approval(who: Verified, action: str = "approve", *, remember: bool = False) -> SignedApproval:
    """Return an authentic approval of a call."""
    return SignedApproval(who=who, action=action, digest="d", asked="confirmation", wait=1, at=0.0, remember=remember)


@pytest.mark.parametrize(
    ("approvers", "requesters", "satisfied"),
    [
        ([ANN, BOB], (), True),
        ([ANN], (), False),
        ([ANN, Verified(subject="eve@example.com", issuer="tests")], (), False),
        ([ANN, BOB], ("mailto:Bob@example.com",), False),
        ([ANN, BOB], None, False),
    ],
    ids=["both", "one", "a stranger", "a requester", "unverified requesters"],
)
def test_a_quorum_needs_different_approvers_who_requested_nothing(
    approvers: list[Verified], requesters: tuple[str, ...] | None, satisfied: bool
) -> None:
    """A policy is not satisfied if the requesters are unverified, because any approver could be a requester."""
    assert satisfies_policy(BOTH, map(approval, approvers), requesters) is satisfied


def test_another_spelling_of_a_name_is_not_another_approver() -> None:
    """Names without a list of approvers are compared with one another, in any spelling."""
    spellings = [ANN, ANN.model_copy(update={"subject": "Ann@Example.com "})]
    assert not satisfies_policy(ApprovalPolicy(quorum=2), map(approval, spellings), ())


@pytest.mark.parametrize(("who", "satisfied"), [(OPERATOR, True), (ANN, False)])
def test_only_an_operator_waives_a_policy(who: Verified, satisfied: bool) -> None:
    """An ordinary approver cannot waive other people's approvals."""
    assert satisfies_policy(BOTH, [approval(who, "waive")], None) is satisfied


@pytest.mark.parametrize("remember", [True, False])
def test_the_mac_of_a_remembered_approval_covers_its_scope(remember: bool) -> None:
    """The MAC covers the scope, so a forged log cannot use the approval for another call, agent or session."""
    coverage = describe_coverage("session", "root", "payer", "pay", {"amount": 5}, "bound")
    claims = approval(ANN, remember=remember).claims("default", "pay-1/fc-1", coverage)
    assert claims["coverage"] == (coverage if remember else None)
