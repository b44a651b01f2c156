"""Tools read and write state."""

import datetime
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from waystation.core.secrets import Secret
from waystation.tools.state import State, StateRefused


class Watched(Mapping[str, Any]):
    """A mapping that counts which keys were read."""

    def __init__(self, **values: Any) -> None:
        self.values_, self.reads = values, list[str]()

    def __getitem__(self, key: str) -> Any:
        self.reads.append(key)
        return self.values_[key]

    def __contains__(self, key: object) -> bool:
        return key in self.values_

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


# Reads and writes


def test_a_tool_reads_its_own_writes() -> None:
    """A tool reads its own writes under the full key, with its prefix."""
    state = State({"a": 1})
    state["user:b"] = 2
    state["temp:c"] = 3
    assert (state["a"], state["user:b"], state["temp:c"]) == (1, 2, 3)
    assert state.delta() == ({"user:b": 2, "temp:c": 3}, ())


def test_adks_methods_work() -> None:
    """All methods of ADK's State work."""
    state = State({"a": 1})
    assert state.get("x") is None
    assert state.get("x", 5) == 5
    assert "a" in state
    assert "x" not in state
    assert state.setdefault("a", 9) == 1
    assert state.setdefault("b", 2) == 2
    state.update({"c": 3})
    assert list(state) == ["a", "b", "c"]
    assert state.to_dict() == {"a": 1, "b": 2, "c": 3}
    assert state.has_delta()
    with pytest.raises(KeyError):
        state["x"]


def test_state_is_a_whole_mapping() -> None:
    """The state has `del`, `pop`, `keys`, `items`, `len` and `dict()`, which ADK's state lacks."""
    state = State({"a": 1, "b": 2})
    state["c"] = 3
    del state["a"]
    assert state.pop("b") == 2
    assert state.pop("b", None) is None
    assert (list(state.keys()), list(state.items()), list(state.values())) == (["c"], [("c", 3)], [3])
    assert len(state) == 1
    assert dict(state) == {"c": 3}
    with pytest.raises(KeyError):
        del state["a"]


def test_reading_creates_no_delta() -> None:
    """An unchanged state has no delta."""
    state = State({"a": {"b": [1]}})
    assert state["a"]["b"] == [1]
    assert not state.has_delta()
    assert state.delta() == ({}, ())


# Deltas


def test_a_write_is_recorded_even_if_it_changes_nothing() -> None:
    """A write of an equal value is recorded, as in ADK, and wins over a parallel call's write."""
    state = State({"a": 1})
    state["a"] = 1
    assert state.delta() == ({"a": 1}, ())


def test_none_is_a_value_and_del_removes() -> None:
    """Only `del` and `pop` delete."""
    state = State({"a": 1, "b": 2})
    state["a"] = None
    del state["b"]
    assert state.delta() == ({"a": None}, ("b",))


def test_deleting_a_new_key_leaves_no_trace() -> None:
    """The invocation's state does not contain a key that was written and deleted."""
    state = State({})
    state["a"] = 1
    del state["a"]
    assert state.delta() == ({}, ())
    assert not state.has_delta()


def test_a_deleted_key_can_be_written_again() -> None:
    """A deleted key that is written again reads as a new key."""
    state = State({"a": {"old": 1}})
    del state["a"]
    assert "a" not in state
    state["a"] = {"new": 2}
    assert state.delta() == ({"a": {"new": 2}}, ())
    assert list(state) == ["a"]
    assert len(state) == 1


CHANGES: list[tuple[Callable[[State], object], dict[str, Any]]] = [
    (lambda s: s["prefs"].update(theme="dark"), {"prefs": {"theme": "dark", "deep": {"n": 1}}}),
    (lambda s: s["prefs"]["deep"].pop("n"), {"prefs": {"theme": "light", "deep": {}}}),
    (lambda s: s["items"].append(3), {"items": [1, 2, 3]}),
    (lambda s: s["items"].__setitem__(0, True), {"items": [True, 2]}),
    (lambda s: s.setdefault("new", {}).update(z=1), {"new": {"z": 1}}),
    (lambda s: s.get("items", []).clear(), {"items": []}),
    (lambda s: next(iter(s.values())).clear(), {"prefs": {}}),
]


@pytest.mark.parametrize(("change", "delta"), CHANGES)
def test_changes_inside_a_value_are_found(change: Callable[[State], object], delta: dict[str, Any]) -> None:
    """Changes of lists and dictionaries are found at any depth; True is not 1."""
    current = {"prefs": {"theme": "light", "deep": {"n": 1}}, "items": [1, 2]}
    state = State(current)
    change(state)
    assert state.has_delta()
    assert state.delta() == (delta, ())
    assert current == {"prefs": {"theme": "light", "deep": {"n": 1}}, "items": [1, 2]}


def test_a_written_value_may_be_changed_afterward() -> None:
    """The list in the state is the list that was written, as in ADK, so later changes count."""
    state, items = State({}), [1]
    state["items"] = items
    items.append(2)
    state["items"].append(3)
    assert state.delta() == ({"items": [1, 2, 3]}, ())


def test_a_delta_is_a_copy() -> None:
    """A delta is a copy, so a thread that keeps running cannot change the record."""
    state, items = State({}), [1]
    state["items"] = items
    delta, _ = state.delta()
    items.append(2)
    assert delta == {"items": [1]}


def test_a_tool_reads_the_recorded_form() -> None:
    """Values that are not plain JSON are replaced by their JSON form at the write."""
    state = State({})
    state["at"] = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    state["pair"] = (1, {2})
    assert state["at"] == "2026-01-02T00:00:00Z"
    assert state["pair"] == [1, [2]]


# The underlying state


def test_only_keys_that_are_read_are_copied() -> None:
    """Only keys that are read are copied, because the state of a long session is large and shared."""
    current = Watched(a=[1], b=[2], c=[3])
    state = State(current)
    assert "b" in state
    assert list(state) == ["a", "b", "c"]
    assert len(state) == 3
    state["c"] = 1
    state.delta()
    assert current.reads == []
    state["a"]
    state["a"]
    assert current.reads == ["a"]


def test_the_underlying_state_may_be_read_only() -> None:
    """The underlying state is never written to, so it may be read-only."""
    state = State(MappingProxyType({"a": 1, "b": [1]}))
    state["a"] = 2
    state["b"].append(2)
    state.pop("b")
    assert state.delta() == ({"a": 2}, ("b",))


def test_to_dict_returns_a_copy() -> None:
    """The copy includes changes in place, and changing it changes no state."""
    state = State({"a": [1], "b": [1]})
    state["a"].append(2)
    copied = state.to_dict()
    copied["b"].append(2)
    assert copied["a"] == [1, 2]
    assert state.delta() == ({"a": [1, 2]}, ())


# Refusals


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "client",
            object(),
            "Tool 'pay' cannot store state 'client': it is a value of type builtins.object, which has no JSON form; "
            "store plain data (strings, numbers, lists, dictionaries), or save it as an artifact.",
        ),
        (
            "prefs",
            {"token": Secret("hunter2222")},
            "Tool 'pay' cannot store state 'prefs.token': it is part of a credential, which has no JSON form; "
            "store plain data (strings, numbers, lists, dictionaries), or save it as an artifact.",
        ),
        (
            7,
            "x",
            "Tool 'pay' cannot store state '7': it is under a key of type int, which has no "
            "JSON form; use text as keys.",
        ),
    ],
)
def test_a_value_that_is_not_json_is_refused_at_the_write(key: Any, value: object, message: str) -> None:
    """The error has the key, the tool, the value and the remedy; the state is unchanged."""
    state = State({}, tool="pay")
    with pytest.raises(StateRefused) as raised:
        state[key] = value
    assert str(raised.value) == message
    assert state.delta() == ({}, ())


def test_an_unreadable_value_is_refused() -> None:
    """A value that raises any exception when it is read is refused."""

    class Broken(dict[str, int]):
        def items(self) -> Any:
            raise OSError("disk")

    state = State({"prefs": {}}, tool="pay")
    with pytest.raises(StateRefused, match=r"state 'x': it is a Broken that cannot be read \(OSError\), which"):
        state["x"] = Broken(a=1)


def test_a_part_that_is_not_json_is_replaced() -> None:
    """The tool reads the stored value; a change in place is noticed with the delta; a new value has no notes."""
    state = State({"prefs": {}}, tool="pay")
    state["seen"] = {"at": math.nan}
    state["gone"] = state["new"] = [math.inf]
    assert state["seen"] == {"at": "NaN"}
    state["prefs"]["client"] = object()
    del state["gone"]
    state["new"] = 1
    assert state.delta()[0] == {"seen": {"at": "NaN"}, "new": 1, "prefs": {"client": "<object>"}}
    assert {key: notes for key, notes in state.replaced.items() if notes} == {
        "seen": ["seen.at was the number nan"],
        "prefs": ["prefs.client was a value of type builtins.object"],
    }


def test_a_lone_surrogate_in_a_key_is_refused() -> None:
    """A lone surrogate in a key is refused, because it could be recorded but never read back."""
    with pytest.raises(StateRefused, match="lone surrogate"):
        State({})["\ud800"] = 1


def test_threads_may_share_a_state() -> None:
    """Threads may share a state, because a sync tool may distribute its work."""
    state = State({"list": []})

    def work(n: int) -> None:
        for i in range(200):
            state[f"{n}:{i}"] = i
            state["list"].append(i)
            state.has_delta()
            len(list(state.items()))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    delta, _ = state.delta()
    assert len(delta) == 801
    assert len(delta["list"]) == 800
