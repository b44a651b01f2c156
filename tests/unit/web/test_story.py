"""Descriptions of the history of a call."""

from tests.unit.core.story import answered, expired, log_of, model_calls, user_message
from waystation.core.log import Body, NoticeReport, Notified
from waystation.presentation.words import story


def test_each_notification_is_described() -> None:
    """Each occasion is described with its channels, even an unknown one."""
    report = NoticeReport(delivered=("mail",), failed={"chat": "Timeout"})
    occasions = ("asked", "reminder1", "escalation12", "expired", "later")
    noticed: list[Body] = [Notified("fc-1", occasion, report) for occasion in occasions]
    log = log_of(user_message("go"), model_calls("pay", gated=True), noticed, expired("fc-1"))
    lines = [text for _, text in story(log, log.state.calls["fc-1"]) if text.startswith("notified")]
    assert lines == [
        f"notified mail: {what}; failed: chat"
        for what in (
            "the call is pending",
            "the call is still pending",
            "the call was escalated",
            "the deadline passed without an answer",
            "the call changed",
        )
    ]


def test_an_unverified_name_is_shown_as_a_claim() -> None:
    """The name is marked as a claim, and the line includes the comment."""
    log = log_of(user_message("go"), model_calls("pay", gated=True), answered("fc-1", by="emil", comment="fine"))
    assert "approved by emil (unverified): “fine”" in [text for _, text in story(log, log.state.calls["fc-1"])]
