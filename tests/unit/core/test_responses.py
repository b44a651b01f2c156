"""What an answer to a long-running call becomes: the response that the model reads."""

from typing import Any

import pytest

from tests.unit.core.story import answered, called, log_of, responses, returned, said
from waystation.core import JsonObject


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ({"action": "approve"}, {"status": "approved"}),
        ({"action": "reject"}, {"status": "rejected"}),
        (
            {"action": "approve", "response": {"limit": 9}, "comment": "fine", "by": "dana"},
            {"status": "approved", "limit": 9, "comment": "fine"},
        ),
        ({"action": "reject", "comment": "no budget"}, {"status": "rejected", "comment": "no budget"}),
        ({"action": "respond", "response": {"colour": "red"}}, {"colour": "red"}),
        ({"action": "respond", "response": {}, "comment": "not shown"}, {}),
    ],
)
def test_an_answer_becomes_the_response_of_the_wire_contract(answer: dict[str, Any], response: JsonObject) -> None:
    """Approve and reject become a status, respond exactly its response."""
    log = log_of(
        said("ask"), called("ask", kind="long_running"), returned("fc-1", final=False), answered("fc-1", **answer)
    )
    assert responses(log) == [("fc-1", response)]
    assert log.state.events[-1].author == "user"
