"""A stretch of a log, handed on as entries, gives the same log again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import drawn_examples
from tests.unit.core.drawn import Story
from tests.unit.core.test_interleavings import shown
from waystation.core import ForeignHistory, Log, pack_entries, unpack_entries


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_entries_survive_the_way_through_bytes(data: st.DataObject) -> None:
    """Whatever happened, a log built from packed entries is the log that was packed."""
    log = Story(data).play().whole
    copy = Log(log.invocation_id)
    for entry in unpack_entries(pack_entries(log.entries)):
        copy.append(entry.ref, entry.time, entry.body)
    assert shown(copy) == shown(log)


@pytest.mark.parametrize(
    "data", [b"", b"{", b'[{"ref": "start"}]', b'[{"ref": "x", "time": 1, "kind": "new", "body": {}}]']
)
def test_what_is_no_stretch_of_a_log_is_refused(data: bytes) -> None:
    """Damage, and what a newer version wrote, is said and not guessed at."""
    with pytest.raises(ForeignHistory):
        unpack_entries(data)
