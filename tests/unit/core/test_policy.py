"""Comparison of approval policies, and mistakes of authors."""

from datetime import timedelta

import pytest
from pydantic import ValidationError

from waystation.core.approval import ApprovalPolicy, Escalation, Notice
from waystation.core.contract import Call
from waystation.core.log import CallState
from waystation.core.log.notification import due_notification
from waystation.core.payload import JsonObject

LATER = (Escalation(after=timedelta(hours=1), to=("role:boss",)),)


@pytest.mark.parametrize(
    ("fields", "other_fields", "satisfied"),
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
def test_a_stricter_policy_satisfies_another(fields: JsonObject, other_fields: JsonObject, satisfied: bool) -> None:
    """A stricter policy has the same approvers or fewer, the same quorum or more, and the same conditions or more."""
    assert ApprovalPolicy(**fields).satisfies(ApprovalPolicy(**other_fields)) is satisfied


@pytest.mark.parametrize("field", ["deadline", "remember"])
def test_true_is_not_a_duration(field: str) -> None:
    """The value `remember=True` is refused, because it would mean one second."""
    with pytest.raises(ValidationError, match=r"is not a duration; use a timedelta, such as timedelta\(hours=1\)"):
        ApprovalPolicy.model_validate({field: True})


@pytest.mark.parametrize(
    ("fields", "mistake_text"),
    [
        ({"approvers": ("role:",)}, "names 'role:', a role without a name"),
        ({"verified": True, "operators": ("role:",)}, "names 'role:', a role without a name"),
        ({"approvers": ("ann", "ben"), "quorum": 3}, "requires 3 people (`quorum`), but names only ann, ben"),
        ({"deadline": timedelta.max}, "has a duration of 999999999 days; at most 36500"),
        ({"remember": timedelta(days=40000)}, "has a duration of 40000 days; at most 36500"),
        ({"operators": ("ann",)}, "names ann as `operators`, but accepts answers without a verified identity"),
        (
            {"approvers": ("ann",), "verified": False, "operators": ()},
            "names no one as `operators`, but accepts answers",
        ),
    ],
)
def test_a_policy_that_makes_no_sense_is_reported(fields: JsonObject, mistake_text: str) -> None:
    """The author's mistake is reported, but a recorded policy is still accepted, so histories replay."""
    [mistake] = ApprovalPolicy(**fields).mistakes()
    assert mistake.startswith(mistake_text)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"quorum": 3},
        {"approvers": ("ann", "role:finance"), "quorum": 3},
        {"approvers": ("ann",), "escalation": LATER, "quorum": 3},
        {"approvers": ("ann",), "operators": ("ben",)},
        {"verified": True, "operators": ("ben",)},
    ],
)
def test_a_meaningful_policy_has_no_mistakes(fields: JsonObject) -> None:
    """Roles may have any number of members, and escalations may name more approvers."""
    assert list(ApprovalPolicy(**fields).mistakes()) == []


@pytest.mark.parametrize(
    ("notice", "policy", "channels"),
    [
        (None, None, ("all",)),
        (None, ("desk",), ("desk",)),
        (None, (), None),
        (("board",), ("desk",), ("board",)),
        ((), ("desk",), None),
        (("board",), (), ("board",)),
    ],
)
def test_an_empty_list_of_channels_notifies_nobody(
    notice: tuple[str, ...] | None, policy: tuple[str, ...] | None, channels: tuple[str, ...] | None
) -> None:
    """An empty list is kept when it is recorded; only an unset list falls back to the policy and the worker."""
    recorded = ApprovalPolicy.model_validate_json(ApprovalPolicy(notify=policy).encode())
    call = CallState(call=Call(id="fc-1", approval=recorded))
    due = due_notification(call, "escalation", ("all",), Notice(after=timedelta(hours=1), notify=notice))
    assert (due and due.channels) == channels
