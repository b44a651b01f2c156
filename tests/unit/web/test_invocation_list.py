"""The list of invocations: filters, order, counts and rows."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from waystation.client import InvocationEntry, fold_called
from waystation.core.approval import ApprovalPolicy, PendingCall
from waystation.web.http_responses import RequestRefused
from waystation.web.invocation_details import InvocationDetails
from waystation.web.invocation_list_page import (
    ListFilters,
    choose,
    choose_by_details,
    count_statuses,
    make_row,
    match_person,
)

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def entry(id: str, status: str = "running", *, age_s: float = 60, **fields: Any) -> InvocationEntry:
    """Return an entry that started some time ago."""
    began = NOW - timedelta(seconds=age_s)
    usual = {"agent": "payer", "user_id": "erin", "tenant": None, "ended_at": None}
    return InvocationEntry(id=id, status=status, started_at=began, **{**usual, **fields})


def pending(id: str, *approvers: str) -> PendingCall:
    """Return a pending call of an invocation."""
    return PendingCall(
        function_call_id="fc-1",
        invocation_id=id,
        agent="payer",
        tool="pay",
        args={},
        kind="confirmation",
        digest="d",
        requested_at=0.0,
        deadline=1.0,
        user_id="erin",
        policy=ApprovalPolicy(approvers=approvers) if approvers else None,
    )


def test_an_address_keeps_the_filters_of_another_page() -> None:
    """Only values that differ from the defaults are in the address, and a new filter shows the first page."""
    filters = ListFilters.parse({"q": " pay er ", "status": "held", "age": "day", "page": "3", "unknown": "x"})
    assert (filters.q, filters.page) == ("pay er", 3)
    assert filters.encode(page=4) == "q=pay+er&status=held&age=day&page=4"
    assert filters.encode(status="") == "q=pay+er&age=day"


@pytest.mark.parametrize("params", [{"status": "stuck"}, {"age": "year"}, {"sort": "price"}, {"page": "0"}])
def test_an_unknown_value_of_a_filter_is_refused(params: dict[str, str]) -> None:
    """The message names the parameter."""
    with pytest.raises(RequestRefused, match=next(iter(params))):
        ListFilters.parse(params)


def test_an_age_bounds_the_start() -> None:
    """An age selects invocations that are younger or older."""
    assert ListFilters(age="day").conditions(NOW)["since"] == NOW - timedelta(days=1)
    assert ListFilters(age="over-hour").conditions(NOW)["until"] == NOW - timedelta(hours=1)
    assert ListFilters().conditions(NOW) == {"search": ""}


def test_open_invocations_are_counted_together_and_by_status() -> None:
    """Open invocations count together and by status; closed ones count only under their own status."""
    counts = count_statuses([entry("a"), entry("b", "waiting"), entry("c", "held"), entry("d", "failed")])
    assert {name: count for name, count in counts.items() if count} == {
        "open": 3,
        "waiting": 1,
        "held": 1,
        "running": 1,
        "failed": 1,
    }


def test_entries_are_filtered_by_status_and_sorted() -> None:
    """Waiting and held invocations are first in the order by status; `-` reverses any order."""
    entries = [entry("a", "failed", age_s=5), entry("b", age_s=50), entry("c", "waiting", age_s=500, agent="clerk")]

    def ids(**filters: Any) -> str:
        return "".join(each.id for each in choose(entries, ListFilters(**filters), NOW.timestamp()))

    assert ids() == "abc"
    assert ids(sort="-started") == "cba"
    assert ids(sort="status") == "cba"
    assert ids(sort="agent") == "cab"
    assert ids(sort="duration") == "cba"
    assert ids(status="open") == "bc"
    assert ids(status="failed") == "a"


def test_the_pending_calls_of_called_agents_belong_to_the_caller() -> None:
    """Each caller lists the calls below it, and called agents are left out unless they are asked for."""
    inner, outer = "a/fc-1/fc-2", "a/fc-1"
    entries = [
        entry(inner, "waiting", parent=outer, pending=(pending(inner),)),
        entry(outer, parent="a"),
        entry("a"),
        entry("a", "terminated"),
    ]
    (caller,) = fold_called(entries)
    assert (caller.status, [call.approval_id for call in caller.called_pending]) == ("waiting", [f"{inner}/fc-1"])
    assert [each.id for each in fold_called(entries, keep=True)] == [inner, outer, "a"]


def test_a_caller_waits_even_if_a_filter_leaves_out_the_agents_that_it_called() -> None:
    """The caller waits for called agents that are passed separately, even if an agent between is missing."""
    inner = entry("a/fc-1/fc-2", "waiting", parent="a/fc-1", pending=(pending("a/fc-1/fc-2"),))
    (caller,) = fold_called([entry("a")], others=[inner])
    assert (caller.status, len(caller.called_pending), inner.root_id) == ("waiting", 1, "a")


def test_an_invocation_whose_id_looks_like_that_of_a_called_agent_is_a_root() -> None:
    """The user chose the ID, so the invocation is a root, and its pending calls do not belong to another one."""
    named = entry("a/fc-1", pending=(pending("a/fc-1"),))
    assert [each.called_pending for each in fold_called([entry("a"), named])] == [(), ()]


def test_a_held_caller_stays_held() -> None:
    """The hold is more urgent than the call of a called agent."""
    inner = entry("a/fc-1", "waiting", parent="a", pending=(pending("a/fc-1"),))
    (caller,) = fold_called([entry("a", "held"), inner])
    assert (caller.status, len(caller.called_pending)) == ("held", 1)


def test_a_person_filter_matches_part_of_a_name_in_called_agents_too() -> None:
    """Case does not matter, and roles count as names."""
    entries = [
        entry("a", "waiting", pending=(pending("a", "role:Finance"),)),
        entry("b", "waiting", called_pending=(pending("b/fc-1", "dana"),)),
        entry("c"),
    ]
    assert [each.id for each in match_person(entries, "finance")] == ["a"]
    assert [each.id for each in match_person(entries, "DAN")] == ["b"]
    assert len(match_person(entries, "")) == 3
    assert [each.id for each in choose(entries, ListFilters(sort="person"), NOW.timestamp())] == ["b", "a", "c"]


def test_details_sort_and_filter_a_list() -> None:
    """Invocations without details come last, and `-` reverses the order."""
    details = {"a": InvocationDetails(cost=1.0, error="No key"), "b": InvocationDetails(cost=2.0, tokens=5)}
    entries = [entry("a"), entry("b"), entry("c")]

    def ids(*, sort: str = "", error: str = "") -> str:
        filters = ListFilters(sort=sort, error=error)
        return "".join(each.id for each in choose_by_details(entries, filters, details))

    assert (ids(sort="cost"), ids(sort="-cost")) == ("bac", "cab")
    assert (ids(sort="tokens"), ids(sort="error"), ids(error="no key")) == ("bac", "abc", "a")


def test_a_row_links_the_calls_that_it_waits_for() -> None:
    """At most three are linked; the others are counted."""
    waiting = entry("a", "waiting", pending=(pending("a", "role:finance"),), called_pending=(pending("a/fc-1"),) * 3)
    row = make_row(waiting, InvocationDetails(), NOW.timestamp())
    assert [call.invocation_id for call in row["calls"]] == ["a", "a/fc-1", "a/fc-1"]
    assert (row["more_calls"], row["more"]) == (1, "")


def test_a_row_of_a_held_invocation_has_the_reason() -> None:
    """The row has the reason, even if the invocation has a pending call."""
    hold = {"reason": "model_unavailable", "since": 1.0}
    held = make_row(entry("a", "held", holds=(hold,)), InvocationDetails(), NOW.timestamp())
    both = make_row(entry("a", "held", holds=(hold,), pending=(pending("a"),)), InvocationDetails(), NOW.timestamp())
    assert (held["more"], both["holds"]) == ("the model is not available",) * 2
