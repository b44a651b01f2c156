"""Short forms replace large values when their store is not available."""

from typing import Any

import pytest

from waystation.core.payload import decode, encode
from waystation.storage.driver import MAX_BYTES, ROOM, short_form

DIGEST = "0123456789ab" + "c" * 52


def shortened(value: object) -> Any:
    """Return the short form of a value."""
    short = short_form(encode(value), DIGEST)
    assert short is not None
    assert len(short.encode()) <= MAX_BYTES
    return decode(short)


def test_only_large_parts_are_cut() -> None:
    """Names, numbers and short texts are kept, so a short form reads like the value."""
    short = shortened({"id": "fc-1", "response": {"page": "x" * 20_000_000, "ok": True}, "took": 0.5})
    page = short["response"].pop("page")
    assert short == {"id": "fc-1", "response": {"ok": True}, "took": 0.5}
    assert page.startswith("[offloaded: 20.0 MB, sha256 0123456789ab…] xxxx")
    assert page.endswith("x…")


def test_large_parts_share_the_space() -> None:
    """Two large parts have equal space."""
    first, second = shortened(["a" * 300_000, "b" * 300_000])
    assert ("a" * 100 in first, "b" * 100 in second) == (True, True)


def test_the_first_of_many_parts_stay() -> None:
    """The first parts are kept, with the number of the others."""
    numbers = shortened({"numbers": list(range(100_000))})["numbers"]
    assert numbers[:3] == [0, 1, 2]
    assert numbers[-1] == f"{100_000 - len(numbers) + 1:,} more [offloaded: 588.9 kB, sha256 0123456789ab…]"
    names = shortened({f"name {n}": n for n in range(50_000)})
    assert (names["name 0"], names["…"].split(" [")[0]) == (0, f"{50_000 - len(names) + 1:,} more")


def test_text_is_cut_between_characters() -> None:
    """A short form is valid JSON for any text."""
    assert "] \N{PILE OF POO}é\N{PILE OF POO}é" in shortened("\N{PILE OF POO}é" * 100_000)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\x00", b'"' + b"\\ud800" + b'"'])
def test_a_value_that_is_not_json_has_no_short_form(data: bytes) -> None:
    """A value that is not JSON, such as an encoded payload, has no short form."""
    assert short_form(data, DIGEST) is None


def test_a_small_value_is_its_own_short_form() -> None:
    """A value within the limit is not cut."""
    assert shortened({"text": "x" * (ROOM - 20)}) == {"text": "x" * (ROOM - 20)}
