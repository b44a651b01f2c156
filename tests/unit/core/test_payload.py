"""Plain JSON may be recorded; other values are converted or refused."""

import dataclasses
import datetime
import decimal
import enum
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from waystation.core.errors import NotJson
from waystation.core.payload import MAX_DEPTH, copy_json, decode, digest, encode, normalize_json, to_plain_json

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def _doubling(depth: int) -> Any:
    """Return a small value whose JSON is large: every list contains the same list twice."""
    value: Any = 1
    for _ in range(depth):
        value = [value, value]
    return value


def _circular() -> Any:
    """Return a value that contains itself twice."""
    value: Any = {}
    value.update(a=value, b=value)
    return value


class Color(enum.Enum):
    """An enum."""

    RED = "red"


class Point(BaseModel):
    """A model."""

    x: int = 1


@dataclasses.dataclass
class Pair:
    """A dataclass."""

    left: int
    right: list[int]


@given(json_values)
def test_plain_values_survive_a_round_trip(value: Any) -> None:
    """Encoding and decoding a JSON value returns the value."""
    assert decode(encode(to_plain_json(value))) == value
    assert copy_json(value) == value


@given(st.dictionaries(st.text(), st.integers(), max_size=5))
def test_the_digest_does_not_depend_on_the_order_of_keys(value: dict[str, int]) -> None:
    """Equal values have equal digests."""
    assert digest(value) == digest(dict(reversed(value.items())))


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        ((1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (Color.RED, "red"),
        (Point(), {"x": 1}),
        (Pair(1, [2]), {"left": 1, "right": [2]}),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.timedelta(seconds=90), "PT1M30S"),
        (decimal.Decimal("1.10"), "1.10"),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        ({Color.RED: 1}, {"red": 1}),
    ],
)
def test_common_values_have_a_plain_form(value: object, recorded: object) -> None:
    """Values that authors often return, such as dates and models, are converted."""
    assert to_plain_json(value) == recorded


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (math.nan, "the number nan"),
        ({"a": [1, math.inf]}, "'a\\[1\\]' is the number inf"),
        (10**5000, "an integer beyond 64 bits"),
        ("\ud800", "a lone surrogate"),
        ({"\udfff": 1}, "a lone surrogate"),
        (b"x", "bytes"),
        ({"1": "a", 1: "b"}, "two keys that both read '1'"),
        ({(1, 2): 3}, "a key of type tuple"),
        (object(), "builtins.object"),
        ({"f": len}, "'f' is a value of type"),
        ({10**5000: 1}, "a key that is an integer beyond 64 bits"),
        (range(10**10), "more than 500000 values"),
        (_doubling(60), "more than 500000 values"),
    ],
    ids=[
        "nan", "infinity", "huge integer", "surrogate", "surrogate key", "bytes", "colliding keys", "tuple key",
        "object", "function", "huge key", "long range", "doubling",
    ],
)  # fmt: skip
def test_a_value_without_a_faithful_form_is_refused_with_its_place(value: object, complaint: str) -> None:
    """The error names the place, the value and the remedy."""
    with pytest.raises(NotJson, match=complaint):
        to_plain_json(value)


@pytest.mark.parametrize(
    ("value", "repaired"),
    [
        ({"a\ud83d\ude00": ["\ud83d", "b\ude00c"]}, {"a\U0001f600": ["\ufffd", "b\ufffdc"]}),
        ([2**63 - 1, 2**63, -(2**63), -(2**63) - 1], [2**63 - 1, str(2**63), -(2**63), str(-(2**63) - 1)]),
        ({"a": True, "b": ("\udfff",)}, {"a": True, "b": ["\ufffd"]}),
        (dict.fromkeys(["\ud800", "\ud801"], 1), {"\ufffd": 1, "\ufffd (1)": 1}),
        ([10**5000], None),
        ([math.nan], None),
        (_doubling(60), None),
        (_circular(), None),
    ],
    ids=["surrogates", "integers", "tuple", "colliding keys", "huge integer", "nan", "doubling", "circular"],
)
def test_values_with_an_equivalent_are_repaired(value: Any, repaired: Any) -> None:
    """Values with an equivalent are converted, others are refused, and no key replaces another."""
    if repaired is not None:
        assert normalize_json(value) == repaired
        return
    with pytest.raises(NotJson):
        normalize_json(value)


def test_nesting_is_bounded() -> None:
    """Values that decoders would refuse as too deep are refused."""
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert decode(encode(to_plain_json(deep))) == deep
    with pytest.raises(NotJson, match="nesting deeper"):
        to_plain_json([deep])


def test_a_value_that_contains_itself_is_refused() -> None:
    """A circular value ends at the depth limit."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotJson, match="nesting deeper"):
        to_plain_json(loop)


def test_a_plain_copy_shares_nothing_with_its_source() -> None:
    """A later change of the tool's value does not change the copy."""
    source = {"a": [1]}
    result = to_plain_json(source)
    source["a"].append(2)
    assert result == {"a": [1]}


@pytest.mark.parametrize("data", [b"NaN", b'{"a": Infinity}', b'"\\ud800"', b"[" * 300 + b"]" * 300, b"{", b""])
def test_decoding_is_strict(data: bytes) -> None:
    """Decoding refuses JSON that other readers would refuse."""
    with pytest.raises(ValueError, match=r"."):
        decode(data)
