"""Reports of very long invocations."""

from tests.server.recordings.test_report import long
from waystation.replay import report


async def test_the_page_of_a_long_invocation_stays_small() -> None:
    """Four times the events add nothing to the page, and each cut text still has its length."""
    short, whole = (report(long(rounds)).html() for rounds in (300, 1_200))
    assert len(whole) < 1.2 * len(short) < 2_000_000
    assert "1802 events after number 100 are omitted here" in whole
    assert "characters omitted" in whole
