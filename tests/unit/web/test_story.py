"""The history of a call in words."""

from tests.unit.core.story import answered, called, expired, log_of, said
from waystation.core import Body, NoticeReport, Notified
from waystation.presentation.words import story


def test_who_was_told_of_what_is_in_words() -> None:
    """Each occasion is described with its channels, also an unknown one."""
    report = NoticeReport(delivered=("mail",), failed={"chat": "Timeout"})
    occasions = ("asked", "reminder1", "escalation12", "expired", "later")
    noticed: list[Body] = [Notified("fc-1", occasion, report) for occasion in occasions]
    log = log_of(said("go"), called("pay", gated=True), noticed, expired("fc-1"))
    told = [text for _, text in story(log, log.state.calls["fc-1"]) if text.startswith("notified")]
    assert told == [
        f"notified mail: {what}; failed: chat"
        for what in (
            "the call is pending",
            "the call is still pending",
            "the call was escalated",
            "the deadline passed without an answer",
            "the call changed",
        )
    ]


def test_an_answer_of_a_claimed_name_is_told_as_a_claim() -> None:
    """The line includes the comment."""
    log = log_of(said("go"), called("pay", gated=True), answered("fc-1", by="emil", comment="fine"))
    assert "approved by emil (unverified): “fine”" in [text for _, text in story(log, log.state.calls["fc-1"])]
