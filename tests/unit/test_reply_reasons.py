"""Every problem of a reply has one documented decision."""

import re

import pytest
from google.genai import types

from tests.documents import DOCS
from waystation.models.reply_reasons import DECISIONS, MAX_REMEDIES, find_remedy

USABLE = {"STOP", "CONTINUATION", "FINISH_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED"}


def test_the_documentation_has_the_same_table() -> None:
    """The page lists the same rows in the same order."""
    page = (DOCS / "reference" / "replies.md").read_text().partition("| what | decision |")[2]
    assert re.findall(r"^\| `?([^`|]+?)`? \| (\w+) \|$", page, re.M) == list(DECISIONS.items())


@pytest.mark.parametrize("reasons", [types.FinishReason, types.BlockedReason])
def test_every_reason_of_gemini_has_a_decision(reasons: type[types.FinishReason]) -> None:
    """Every reason has a decision, because a new version of google-genai may add reasons."""
    assert {reason.value for reason in reasons} - USABLE <= DECISIONS.keys()


@pytest.mark.parametrize(
    ("code", "remedy"), [("OUTPUT_SCHEMA", "report"), ("OTHER", "retry"), ("SAFETY", None), ("X", None)]
)
def test_a_model_is_called_again_at_most_twice(code: str, remedy: str | None) -> None:
    """Only codes in the table lead to another call; others stop the invocation."""
    assert [find_remedy(code, earlier) for earlier in range(MAX_REMEDIES + 1)] == [remedy, remedy, None]
