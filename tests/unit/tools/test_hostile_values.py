"""Any outcome of a tool decodes again from its own encoding.

The server retries an activity whose result it cannot accept, and a workflow that cannot decode a result is stuck.
"""

import collections
import datetime
import decimal
import enum
import itertools
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, computed_field

from tests.tiers import drawn_examples
from waystation.core.contract import ToolOutcome
from waystation.core.payload import decode
from waystation.tools.outcome import create_failure_outcome, create_outcome
from waystation.tools.tool_context import ToolContext


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Model(BaseModel):
    a: int = 1


class Exploding(BaseModel):
    @computed_field(repr=False)  # type: ignore[prop-decorator]
    @property
    def bomb(self) -> int:
        raise KeyError("bomb")


class Truthless:
    def __bool__(self) -> bool:
        raise TypeError("neither true nor false")


class BadDict(dict[str, int]):
    def items(self) -> Any:
        raise OSError("disk")


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def cycle() -> object:
    value: list[object] = []
    value.append(value)
    return value


def generator() -> Iterator[int]:
    yield 1


def read_back(outcome: ToolOutcome) -> ToolOutcome:
    """Return the outcome as it is read back; the recorded form omits the ID of the call."""
    read = ToolOutcome.model_validate(decode(outcome.encode()))
    return read.model_copy(update={"function_call_id": outcome.function_call_id})


UNRECORDABLE: dict[str, tuple[Callable[[], object], str]] = {
    "bytes": (lambda: b"x", "'result' is bytes"),
    "object": (object, "a value of type builtins.object"),
    "exception instance": (lambda: ValueError("x"), "a value of type builtins.ValueError"),
    "class": (lambda: Model, "a value of type"),
    "function": (lambda: nested, "a value of type builtins.function"),
    "generator": (generator, "a value of type builtins.generator"),
    "iterator": (itertools.count, "a value of type itertools.count"),
    "complex": (lambda: 1j, "a value of type builtins.complex"),
    "33 MB of text": (lambda: "x" * 33_000_000, "33,000,018 bytes of JSON"),
    "3 MB of list": (lambda: [0] * 1_500_000, "more than 500000 values"),
    "model that raises": (lambda: Exploding(), "its result cannot be read: 'bomb'"),
    "dictionary that raises": (lambda: BadDict(a=1), "its result cannot be read: disk"),
}

RECORDABLE: dict[str, tuple[object, object]] = {
    "set": ({3, 1, 2}, [1, 2, 3]),
    "frozenset": (frozenset("a"), ["a"]),
    "pydantic object": (Model(), {"a": 1}),
    "range": (range(3), [0, 1, 2]),
    "datetime": (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02T00:00:00Z"),
    "timedelta": (datetime.timedelta(seconds=90), "PT1M30S"),
    "Decimal": (decimal.Decimal("1.10"), "1.10"),
    "UUID": (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "Enum": (Color.RED, "red"),
    "IntEnum": (Level.HIGH, 3),
    "deque": (collections.deque([1]), [1]),
    "mapping proxy": (types.MappingProxyType({"a": 1}), {"a": 1}),
    "largest integer": (2**63 - 1, 2**63 - 1),
    "nesting 60 deep": (nested(60), nested(60)),
    "NUL and emoji": ("\x00😀", "\x00😀"),
    "990 kB": ("x" * 990_000, "x" * 990_000),
}


@pytest.mark.parametrize(("name", "long_running"), [*((name, False) for name in UNRECORDABLE), ("bytes", True)])
def test_a_value_that_cannot_be_recorded_becomes_an_error_response(name: str, long_running: bool) -> None:
    """The error says what is wrong and that the tool ran, and the call is closed."""
    make, problem = UNRECORDABLE[name]
    outcome = create_outcome(make(), context=ToolContext(function_call_id="fc-1"), long_running=long_running)
    assert outcome.response is not None
    assert outcome.response["error"].startswith("The tool ran, but its result cannot be ")
    assert problem in outcome.response["error"]
    assert outcome.response["error"].endswith(" Do not call it again for this reason alone.")
    assert outcome.final
    assert read_back(outcome) == outcome


@pytest.mark.parametrize("name", RECORDABLE)
def test_a_value_that_can_be_recorded_survives_a_round_trip(name: str) -> None:
    """The value is recorded in its JSON form."""
    value, form = RECORDABLE[name]
    outcome = create_outcome({"it": value}, context=ToolContext(function_call_id="fc-1"))
    assert outcome.response == {"it": form}
    assert read_back(outcome) == outcome


def test_a_value_without_a_truth_value_is_an_error() -> None:
    """A value without a truth value is an error, because long-running tools may return a falsy value."""
    outcome = create_outcome(Truthless(), context=ToolContext(), long_running=True)
    assert outcome.response == {
        "error": "The tool ran, but its result cannot be read: neither true nor false. Do not call it again for this "
        "reason alone.",
        "error_type": "TypeError",
    }


def test_an_exception_class_may_have_any_name() -> None:
    """The name is sanitized and cut like the text."""
    strange = type("é" * 1_000_000, (Exception,), {})
    outcome = create_failure_outcome(strange("no"), context=ToolContext(function_call_id="fc-1"))
    assert outcome.error_type is not None
    assert outcome.error_type.startswith("ééé")
    assert len(outcome.error_type.encode()) <= 200
    assert read_back(outcome) == outcome


text = st.text(st.characters(exclude_categories=()))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | text
    | st.binary()
    | st.decimals()
    | st.datetimes()
    | st.timedeltas()
    | st.uuids()
    | st.sampled_from([Color.RED, Level.HIGH, object(), Model(), Exploding(), ValueError("x")])
    | st.builds(pow, st.just(10), st.just(5000))
)
keys = text | st.integers() | st.floats() | st.booleans() | st.none() | st.sampled_from([Color.RED])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner) | st.dictionaries(keys, inner) | st.tuples(inner, inner) | st.frozensets(st.integers() | text)
    ),
    max_leaves=20,
)


@settings(max_examples=drawn_examples(200), deadline=None)
@given(value=values, written=st.dictionaries(text, values, max_size=3), inside=values, long_running=st.booleans())
def test_every_outcome_decodes_again(
    value: object, written: dict[str, object], inside: object, long_running: bool
) -> None:
    """All kinds of results, of writes to state, and of changes in place decode again."""
    context = ToolContext(state={"kept": {}}, function_call_id="fc-1")
    for key, item in written.items():
        try:
            context.state[key] = item
        except Exception:  # noqa: BLE001  # a tool may continue after a refusal
            continue
    if isinstance(context.state["kept"], dict):
        context.state["kept"]["inside"] = inside
    outcome = create_outcome(value, context=context, long_running=long_running)
    assert read_back(outcome) == outcome


@settings(max_examples=drawn_examples(200), deadline=None)
@given(message=text, name=st.text(min_size=1).filter(lambda name: "\0" not in name))
def test_every_failure_decodes_again(message: str, name: str) -> None:
    """All kinds of messages and class names decode again."""
    error = type(name, (Exception,), {})(message)
    outcome = create_failure_outcome(error, context=ToolContext(function_call_id="fc-1"))
    assert outcome.response is not None
    assert outcome.response["error"]
    assert read_back(outcome) == outcome
