"""Histories that a release has frozen never change, so that every later version is tested with them."""

from tests.corpus.freeze import read_frozen, read_kept


def test_frozen_histories_have_not_changed() -> None:
    """A later version replays what an earlier one has recorded. A kept history that changes cannot show this."""
    kept = read_kept()
    assert {path: kept.get(path) for path in read_frozen()} == read_frozen()
