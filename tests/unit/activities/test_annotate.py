"""Contents from models are validated."""

from typing import Any

import pytest

from waystation.activities.model_call.annotate import find_content_problem


@pytest.mark.parametrize(
    "content",
    [
        "text",
        ["text"],
        {"parts": "text"},
        {"parts": {"text": "a"}},
        {"parts": ["text"]},
        {"parts": [None]},
        {"parts": [{"text": 5}]},
        {"parts": [{"text": ["a"]}]},
        {"parts": [{"functionCall": "pay"}]},
        {"parts": [{"functionCall": None}]},
        {"parts": [{"functionCall": ["pay"]}]},
        {"role": 5, "parts": [{"text": "a"}]},
        {"parts": [{"functionCall": {"name": 5}}]},
        {"parts": [{"functionCall": {"name": "pay", "id": 5}}]},
        {"parts": [{"functionResponse": {"id": "fc-1", "name": "pay", "response": {"status": "approved"}}}]},
        {"parts": [{"functionResponse": {}}]},
    ],
    ids=repr,
)
def test_an_invalid_content_has_a_problem(content: Any) -> None:
    """The problem of an invalid content is reported, because custom adapters may return anything."""
    assert find_content_problem(content)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"role": "model"},
        {"role": None, "parts": None},
        {"parts": []},
        {"parts": [{}]},
        {"parts": [{"text": None}]},
        {"parts": [{"text": "a"}, {"functionCall": {"name": "pay", "id": None}}, {"somethingNew": [1]}]},
    ],
    ids=repr,
)
def test_a_valid_content_has_no_problem(content: Any) -> None:
    """Fields of a valid content may be missing or null, and parts may have unknown kinds."""
    assert find_content_problem(content) is None
