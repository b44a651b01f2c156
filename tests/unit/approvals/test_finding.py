"""Pending calls of the whole namespace are found in visibility and memos."""

from datetime import timedelta
from typing import Any

import pytest

from waystation.client.approvals import ApprovalFilter
from waystation.core.approval import ApprovalPolicy, Escalation, PendingCall, Verified


def pending(**fields: Any) -> PendingCall:
    """Return a call that has been pending since second 100."""
    given = {"function_call_id": "fc-1", "invocation_id": "inv", "agent": "payer", "tool": "pay", "args": {}}
    times = {"kind": "confirmation", "digest": "d", "requested_at": 100.0, "deadline": 900.0, "user_id": "dana"}
    return PendingCall.model_validate({**given, **times, **fields})


ASKED = ApprovalPolicy(
    approvers=("alice", "role:finance"),
    not_requester=True,
    escalation=(Escalation(after=timedelta(hours=1), to=("bob",)),),
)


@pytest.mark.parametrize(
    ("person", "fields", "concerned"),
    [
        ("alice", {"policy": ASKED}, True),
        ("emil", {"policy": ASKED}, False),
        ("", {"policy": ASKED}, False),
        (("emil", "role:finance"), {"policy": ASKED}, True),
        ("bob", {"policy": ASKED}, False),
        ("bob", {"policy": ASKED, "level": 1}, True),
        ("alice", {"policy": ASKED, "requester": "alice"}, False),
        ("dana", {"policy": ApprovalPolicy(not_requester=True)}, False),
        ("emil", {"policy": ASKED, "claimed_by": "emil"}, True),
        ("alice", {"policy": ASKED, "approved_by": ["alice"]}, False),
        ("emil", {}, True),
    ],
)
def test_a_person_is_shown_what_she_may_answer_or_has_claimed(person: Any, fields: Any, concerned: bool) -> None:
    """The policy and its escalations decide which calls a person sees; a call without a policy is shown to everyone."""
    wanted = ApprovalFilter.from_options(person=person)
    assert wanted.matches(pending(**fields), searchable=True, now=1_000.0) is concerned


@pytest.mark.parametrize(
    ("tenant", "fields", "concerned"),
    [
        (None, {"policy": ASKED}, True),
        (None, {"policy": ASKED, "requester": "emil"}, False),
        ("acme", {"policy": ASKED, "tenant": "acme"}, True),
        ("acme", {"policy": ASKED, "tenant": "other"}, False),
        ("acme", {"policy": ASKED}, False),
    ],
)
def test_a_verified_person_is_shown_calls_for_her_roles_in_her_tenant(
    tenant: str | None, fields: Any, concerned: bool
) -> None:
    """The person behind a token has the roles and the tenant that the token names."""
    who = Verified(subject="emil", roles=("finance",), tenant=tenant)
    wanted = ApprovalFilter.from_options(person=who)
    assert wanted.matches(pending(**fields), searchable=True, now=1_000.0) is concerned


def test_age_is_counted_from_when_the_call_began_to_wait() -> None:
    """A call that has waited for exactly the given time is included."""
    old = ApprovalFilter.from_options(older_than=timedelta(seconds=60))
    assert old.matches(pending(), searchable=True, now=160.0)
    assert not old.matches(pending(), searchable=True, now=159.0)


def test_without_search_attributes_an_agent_is_known_by_who_calls() -> None:
    """A filter by agent falls back to the agent of the call if the namespace has no search attributes."""
    assert not ApprovalFilter.from_options(agent="buyer").matches(pending(), searchable=False, now=0.0)
    assert ApprovalFilter.from_options(agent="payer").matches(pending(), searchable=False, now=0.0)
