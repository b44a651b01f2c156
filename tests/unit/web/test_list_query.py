"""The address of a list."""

from typing import Any

import pytest

from waystation.web.invocation_list_page import ListFilters
from waystation.web.list_query import ListQuery
from waystation.web.pending_list import InboxQuery

LISTS = pytest.mark.parametrize("kind", [ListFilters, InboxQuery])


@LISTS
def test_a_change_shows_the_first_page_unless_it_chooses_one(kind: Any) -> None:
    """A change of a filter shows the first page, because later pages may not exist."""
    query = kind.parse({"q": "x", "page": "3"})
    assert [query.encode(), query.encode(agent="a"), query.encode(page=2)] == [
        "q=x&page=3",
        "q=x&agent=a",
        "q=x&page=2",
    ]


def test_a_page_after_the_last_shows_the_last() -> None:
    """The last page is shown, because an open page may name one that has become empty."""
    assert [ListQuery(page=page).cut("abcde", 2) for page in (1, 3, 9)] == [("ab", 1, 3), ("e", 3, 3), ("e", 3, 3)]
    assert ListQuery(page=2).cut("", 2) == ("", 1, 1)


@LISTS
def test_an_order_leaves_nothing_out(kind: Any) -> None:
    """A list in another order still counts as unfiltered, because nothing can be missing."""
    assert not kind(sort="oldest", page=2).is_filtered
    assert kind(q="x").is_filtered
