"""Whether what satisfies one policy satisfies another."""

from datetime import timedelta

import pytest

from waystation.core.payload import JsonObject
from waystation.core.policy import ApprovalPolicy, Escalation

LATER = (Escalation(after=timedelta(hours=1), to=("role:boss",)),)


@pytest.mark.parametrize(
    ("given", "wanted", "satisfied"),
    [
        ({}, {}, True),
        ({"approvers": ("ann",)}, {}, True),
        ({}, {"approvers": ("ann",)}, False),
        ({"approvers": ("ann",)}, {"approvers": ("ann", "ben")}, True),
        ({"approvers": ("ann", "ben")}, {"approvers": ("ann",)}, False),
        ({"approvers": ("ann",), "escalation": LATER}, {"approvers": ("ann",)}, False),
        ({"approvers": ("ann",), "escalation": LATER}, {"approvers": ("ann", "role:boss")}, True),
        ({"quorum": 2}, {"verified": True}, True),
        ({"quorum": 2}, {"quorum": 3}, False),
        ({"quorum": 3}, {"quorum": 2}, True),
        ({"verified": False, "quorum": 2}, {"verified": True}, False),
        ({"verified": True}, {"not_requester": True}, False),
        ({"not_requester": True}, {"verified": True}, True),
        ({"comment": True}, {"digest": True, "deadline": timedelta(days=1)}, True),
    ],
)
def test_a_policy_that_asks_no_less_satisfies_another(given: JsonObject, wanted: JsonObject, satisfied: bool) -> None:
    """Of the same people or fewer, as many or more, proven and not the requester where that is wanted."""
    assert ApprovalPolicy(**given).satisfies(ApprovalPolicy(**wanted)) is satisfied
