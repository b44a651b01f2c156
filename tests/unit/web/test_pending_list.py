"""The search, filters, order and counts of the inbox."""

import time
from dataclasses import replace
from typing import Any

import pytest

from waystation.core.approval import ApprovalPolicy, PendingCall, Verified
from waystation.web.http_responses import RequestRefused
from waystation.web.logins import Login
from waystation.web.pending_list import InboxQuery, Neighbors, select

NOW = time.time()
DANA = Login("dana")


def call(number: int, **fields: Any) -> PendingCall:
    """Return a pending call that started to wait `number` minutes ago."""
    values = {
        "function_call_id": "fc-1",
        "invocation_id": f"i-{number}",
        "agent": "payer",
        "tool": "pay",
        "args": {},
        "kind": "confirmation",
        "digest": "d",
        "requested_at": NOW - 60 * number,
        "deadline": NOW + 7 * 86_400,
        "user_id": "alex",
    }
    return PendingCall.model_validate({**values, **fields})


CALLS = (
    call(1, title="Pay 5 to Rose", args={"payee": "Rose"}, claimed_by="erin"),
    call(90, agent="support", tool="refund", user_id="lee", args={"order": "8812"}),
    call(2_000, tool="freeze", deadline=NOW + 600, claimed_by="dana"),
)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, ["i-1", "i-90", "i-2000"]),
        ({"sort": "oldest"}, ["i-2000", "i-90", "i-1"]),
        ({"sort": "deadline"}, ["i-2000", "i-1", "i-90"]),
        ({"agent": "support"}, ["i-90"]),
        ({"tool": "freeze"}, ["i-2000"]),
        ({"user": "lee"}, ["i-90"]),
        ({"age": "hour"}, ["i-90", "i-2000"]),
        ({"age": "day"}, ["i-2000"]),
        ({"due": "hour"}, ["i-2000"]),
        ({"show": "claimed"}, ["i-2000"]),
        ({"show": "free"}, ["i-90"]),
        ({"q": "rose PAY"}, ["i-1"]),
        ({"q": "8812"}, ["i-90"]),
        ({"q": "rose 8812"}, []),
        ({"sort": "sideways", "age": "eon"}, ["i-1", "i-90", "i-2000"]),
    ],
)
def test_the_inbox_lists_the_calls_that_its_address_selects(params: dict[str, str], expected: list[str]) -> None:
    """Search finds words in titles, arguments and names; unknown choices have no effect."""
    selection = select(CALLS, InboxQuery.parse(params), DANA)
    assert [each.invocation_id for each in selection.calls] == expected


def test_an_address_of_the_inbox_leads_to_the_same_list() -> None:
    """Links to pages and to calls keep all filters."""
    params = {"q": "a b&c", "agent": "x", "tool": "y", "user": "z", "show": "mine", "age": "day", "due": "week"}
    query = InboxQuery.parse({**params, "sort": "deadline", "page": "3"})
    assert dict(pair.split("=") for pair in query.encode().split("&")) == {
        **params,
        "q": "a+b%26c",
        "sort": "deadline",
        "page": "3",
    }
    assert InboxQuery().encode() == ""


@pytest.mark.parametrize("page", ["0", "-1", "x", "1.5"])
def test_a_page_that_cannot_exist_is_an_error(page: str) -> None:
    """The inbox reports an error instead of showing another page."""
    with pytest.raises(RequestRefused, match="is not a page"):
        InboxQuery.parse({"page": page})


def test_the_counts_are_those_of_the_tabs_with_the_other_filters_applied() -> None:
    """The count in the title of the browser tab ignores filters, and the counts of the tabs apply the other filters."""
    selection = select(CALLS, InboxQuery(user="alex", show="claimed"), DANA)
    assert dict(selection.counts) == {"": 2, "mine": 2, "free": 0, "claimed": 1, "machines": 0}
    assert selection.waiting == 3
    assert selection.options["tool"] == (("freeze", 1), ("pay", 1), ("refund", 1))


def test_people_find_counts_and_choices_only_of_calls_that_they_may_see() -> None:
    """Counts and choices cover only these calls, because they would reveal agents and users of other tenants."""
    ann = Login("ann", verified=Verified(subject="ann", tenant="acme"), roles=frozenset({"viewer"}))
    calls = (*CALLS, call(3, tenant="acme", tool="ship"), call(4, tenant="other", tool="spy"))
    selection = select(calls, InboxQuery(), ann)
    assert [each.tool for each in selection.calls] == ["ship"]
    assert selection.options == {"agent": (("payer", 1),), "tool": (("ship", 1),), "user": (("alex", 1),)}
    assert selection.waiting == 1


def test_calls_for_other_people_do_not_count_as_waiting_for_the_reader() -> None:
    """Calls whose policy names other approvers do not count as waiting."""
    other = call(5, policy=ApprovalPolicy(approvers=("ben",)))
    selection = select([other], InboxQuery(), DANA)
    assert (len(selection.calls), selection.counts["mine"], selection.waiting) == (1, 0, 0)


def test_a_call_has_neighbors_in_the_order_of_the_list() -> None:
    """A call that has left the list leads to the first call."""
    selection = select(CALLS, InboxQuery(), DANA)
    assert selection.find_neighbors("i-90/fc-1") == Neighbors(2, 3, "i-1/fc-1", "i-2000/fc-1")
    assert selection.find_neighbors("i-2000/fc-1") == Neighbors(3, 3, "i-90/fc-1", None)
    assert selection.find_neighbors("gone/fc-1") == Neighbors(None, 3, None, "i-1/fc-1")


def test_the_version_of_a_list_changes_with_every_visible_change() -> None:
    """An open page refreshes when the version differs from its own."""
    before = select(CALLS, InboxQuery(), DANA)
    claimed = (*CALLS[:2], CALLS[2].model_copy(update={"claimed_by": "erin"}))
    assert before.version == replace(before).version
    assert len({select(calls, InboxQuery(), DANA).version for calls in (CALLS, claimed, CALLS[:2])}) == 3
