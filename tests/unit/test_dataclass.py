"""Waystation's dataclasses behave like those of `dataclasses`, but that only type checkers reject assignments."""

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from waystation.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A frozen dataclass."""

    x: int
    label: str = dataclasses.field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Empty:
    """A dataclass without fields."""


@dataclass
class Mutable:
    """A dataclass that is not frozen."""

    values: list[int] = dataclasses.field(default_factory=list)
    secret: str = dataclasses.field(default="", repr=False)


@dataclass(eq=False)
class Identity:
    """A dataclass whose fields are not compared."""

    x: int


@dataclass(frozen=True)
class Own:
    """A dataclass that defines the methods itself."""

    x: int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


def test_instances_are_equal_if_their_class_and_fields_are() -> None:
    """A field can be left out of the comparison."""
    assert Point(1) == Point(1, "other")
    assert Point(1) != Point(2)
    assert Empty() == Empty()

    @dataclass(frozen=True)
    class Pixel(Point):
        pass

    assert Pixel(1) != Point(1)


def test_frozen_instances_are_hashable() -> None:
    """Equal instances have equal hashes. Others cannot be hashed, because their fields may change."""
    assert {Point(1, "a"): 1}[Point(1, "b")] == 1
    assert len({Empty(), Empty()}) == 1
    with pytest.raises(TypeError):
        hash(Mutable())


def test_the_text_of_an_instance_has_its_fields() -> None:
    """It is the same as with `dataclasses`."""
    assert repr(Point(1, "a")) == "Point(x=1, label='a')"
    assert repr(Mutable([1], secret="x")) == "Mutable(values=[1])"


def test_methods_of_the_class_are_kept() -> None:
    """As with `dataclasses`, a method that the class defines is not replaced."""
    assert Own(1) == Own(2)
    assert hash(Own(1)) == 7
    assert repr(Own(1)) == "own"
    assert Identity(1) != Identity(1)


@pytest.mark.parametrize("use", [dataclasses.replace, lambda point: pickle.loads(pickle.dumps(point))])
def test_functions_of_the_standard_library_accept_instances(use: Callable[[Point], Any]) -> None:
    """The classes are dataclasses of the standard library."""
    assert use(Point(1, "a")) == Point(1)
    assert dataclasses.asdict(Point(1, "a")) == {"x": 1, "label": "a"}
