"""The OpenAPI document of the JSON API, and the page that is generated from it."""

import pytest

from docs.json_api import PAGE, read_document, render
from waystation.core.actions import ACTIONS
from waystation.web.http_responses import RequestRefused
from waystation.web.pending_list import InboxQuery
from waystation.web.typed_routes import WaitQuery, parse_query


def test_the_page_equals_the_document() -> None:
    """The page is up to date; run `python -m docs.json_api` after changing a route."""
    assert PAGE.read_text(encoding="utf-8") == render(read_document())


def test_each_operation_has_a_name_of_its_own_and_describes_its_errors() -> None:
    """Generators of clients take method names from the document."""
    operations = [each for path in read_document()["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations) > 20
    assert all("application/problem+json" in each["responses"]["default"]["content"] for each in operations)
    assert [each["operationId"] for each in operations if not each["summary"].endswith(".")] == []


def test_an_answer_has_all_actions_of_the_action_table() -> None:
    """The body is not a second list of actions."""
    body = read_document()["components"]["schemas"]["AnswerBody"]
    assert set(body["properties"]["action"]["enum"]) == set(ACTIONS)
    assert body["additionalProperties"] is False


@pytest.mark.parametrize("params", [{"wait_s": "51"}, {"wait_s": "x"}, {"wait": "1"}])
def test_a_parameter_that_is_invalid_or_unknown_is_refused(params: dict[str, str]) -> None:
    """A misspelled parameter would silently have no effect."""
    with pytest.raises(RequestRefused, match=next(iter(params))):
        parse_query(WaitQuery, params)


def test_a_list_refuses_a_filter_that_the_page_ignores() -> None:
    """A program that misspells a value would receive the unfiltered list."""
    assert InboxQuery.parse({"show": "yours"}) == InboxQuery()
    for params in ({"show": "yours"}, {"tol": "pay"}):
        with pytest.raises(RequestRefused, match=next(iter(params))):
            parse_query(InboxQuery, params)
