"""Streamed text: every reader receives each piece once, and a new attempt discards the text of the previous one."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core.contract import PARTIAL, Event, PartialText, PartialTexts, Piece, TextWindow, streaming_fields
from waystation.core.contract.partial_text import MAX_WINDOW_CHARS
from waystation.core.errors import InvalidInput


def said(*texts: str, attempt: int = 1, mark: str = "") -> PartialText:
    """Return the newest partial text of a call that streamed these texts."""
    window = TextWindow(agent="a", number=1, attempt=attempt, mark=mark)
    for text in texts:
        window.add(text)
    return window.newest


def test_each_piece_is_shown_once() -> None:
    """Reading the same text twice yields no second piece."""
    texts = PartialTexts()
    assert list(texts.look(1, 1, said("It "))) == [Piece(1, 1, 0, "It ")]
    assert list(texts.look(1, 1, said("It "))) == []
    assert list(texts.look(1, 1, said("It ", "rains"))) == [Piece(1, 1, 3, "rains")]


def test_a_reader_who_comes_late_is_shown_the_newest_text_with_its_place() -> None:
    """A late reader receives the newest text with its offset; the recorded event has the text before it."""
    told = said("x" * MAX_WINDOW_CHARS, "late")
    (piece,) = PartialTexts().look(1, 1, told)
    assert (piece.offset, len(piece.text), piece.text[-4:]) == (4, MAX_WINDOW_CHARS, "late")


def test_another_attempt_makes_void_what_was_shown_before_it_speaks() -> None:
    """A new attempt discards the earlier text at once, although the heartbeat still contains it."""
    texts = PartialTexts()
    first = said("It ")
    assert [piece.text for piece in texts.look(1, 1, first)] == ["It "]
    assert list(texts.look(1, 2, first)) == [Piece(1, 1, 3, void=True)]
    assert list(texts.look(1, 2, first)) == []
    assert list(texts.look(1, 2, said("Well", attempt=2))) == [Piece(1, 2, 0, "Well")]


def test_an_attempt_that_an_operator_reset_begins_anew_under_the_same_number() -> None:
    """Attempts have marks, because their numbers restart at 1 when an operator resets the activity."""
    texts = PartialTexts()
    list(texts.look(1, 1, said("It rains", mark="one")))
    assert list(texts.look(1, 1, said("It rains today", mark="two"))) == [
        Piece(1, 1, 8, void=True),
        Piece(1, 1, 0, "It rains today"),
    ]


def test_a_call_that_was_recorded_is_complete_and_one_that_was_lost_is_void() -> None:
    """The text of a recorded call is completed, and that of a lost call is discarded.

    A call without text yields no piece.
    """
    texts = PartialTexts()
    list(texts.look(1, 1, said("It ")))
    assert list(texts.close(1, replied=True)) == [Piece(1, 1, 3, complete=True)]
    assert list(texts.close(1)) == []
    assert texts.shown == ()


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    """Half of a surrogate pair is replaced, because UTF-8 cannot encode it; the length stays the same."""
    assert said("a\ud83d", "b") == said("a\N{REPLACEMENT CHARACTER}b")


def test_the_halves_of_a_surrogate_pair_in_two_texts_are_joined() -> None:
    """The first half of a surrogate pair is held back until the second half arrives."""
    assert said("a\ud83d") == said("a")
    assert said("a\ud83d", "\ude00b").text == "a\U0001f600b"


def test_a_piece_is_a_partial_event_without_an_index() -> None:
    """The event of a piece has no index and an ID that no recorded event has, because nothing resumes from it."""
    event = Piece(2, 1, 5, "rain").event(invocation_id="i/e7", author="a", branch="p.a", timestamp=1.0)
    assert (event.partial, event.index, event.is_final_response()) == (True, None, False)
    assert event.custom_metadata == {PARTIAL: {"model_call": 2, "attempt": 1, "offset": 5}}
    assert Event(id="i/e7/e3", invocation_id="i/e7", author="a", timestamp=1.0).index == 2


def test_a_heartbeat_that_another_overtook_changes_nothing() -> None:
    """An outdated heartbeat yields nothing, because the text of an attempt only grows."""
    texts = PartialTexts()
    assert [piece.text for piece in texts.look(1, 1, said("It ", "rains"))] == ["It rains"]
    assert list(texts.look(1, 1, said("It "))) == []


@pytest.mark.parametrize("seconds", [0, -1, 0.01])
def test_an_interval_that_a_heartbeat_cannot_keep_is_refused(seconds: float) -> None:
    """The error names the shortest interval. Zero is refused, too, because it does not switch streaming off."""
    with pytest.raises(InvalidInput, match=r"use at least 0.05 s\."):
        streaming_fields(timedelta(seconds=seconds))


@given(
    st.lists(st.lists(st.text(max_size=3 * MAX_WINDOW_CHARS // 2), max_size=6), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_a_reader_at_any_moments_gets_the_text_or_knows_the_gap(attempts: list[list[str]], chance) -> None:  # type: ignore[no-untyped-def]
    """The pieces since the last discarded one agree with the text at their offsets."""
    texts = PartialTexts()
    shown: dict[int, str] = {}
    for attempt, pieces in enumerate(attempts, 1):
        window = TextWindow(agent="a", number=1, attempt=attempt)
        whole = ""
        for text in ["", *pieces]:
            window.add(text)
            whole += text
            if chance.random() < 0.5:
                for piece in texts.look(1, attempt, window.newest):
                    if piece.void:
                        shown.clear()
                    else:
                        assert piece.offset >= max((at + len(part) for at, part in shown.items()), default=0)
                        shown[piece.offset] = piece.text
                assert all(whole[at : at + len(part)] == part for at, part in shown.items())
