"""Segments carry the entries of a log to the next run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import drawn_examples
from tests.unit.core.drawn import Story
from tests.unit.core.test_interleavings import observable
from waystation.core.errors import ForeignHistory
from waystation.core.log import Log
from waystation.core.projection import pack_entries, unpack_entries


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_entries_survive_packing(data: st.DataObject) -> None:
    """A log built from packed entries equals the log that was packed."""
    log = Story(data).play().whole
    copy = Log(log.invocation_id)
    for entry in unpack_entries(pack_entries(log.entries)):
        copy.append(entry.ref, entry.time, entry.body)
    assert observable(copy) == observable(log)


@pytest.mark.parametrize(
    "data", [b"", b"{", b'[{"ref": "start"}]', b'[{"ref": "x", "time": 1, "kind": "new", "body": {}}]']
)
def test_an_invalid_segment_is_refused(data: bytes) -> None:
    """Damaged data and data of a newer version are refused."""
    with pytest.raises(ForeignHistory):
        unpack_entries(data)
