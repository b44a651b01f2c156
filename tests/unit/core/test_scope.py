"""Folding deltas into the state of a scope: each delta counts once, whatever else arrives."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.core import scope_state
from waystation.core.errors import ScopeNameTooLong
from waystation.core.payload import decode, encode
from waystation.core.scope_state import (
    MAX_HEARD,
    MAX_REFUSED,
    MAX_REFUSED_IN_RUN,
    MAX_SCOPE_BYTES,
    USER,
    ScopeFold,
    ScopeSnapshot,
    app_scope,
    is_scoped,
    prefix_of,
    split,
    user_scope,
)

NAMES = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
DELTAS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c/d", "a/e1"]),
        st.integers(0, 6),
        st.dictionaries(st.sampled_from(["user:x", "user:y"]), st.integers(), max_size=2),
        st.lists(st.sampled_from(["user:x", "user:y"]), max_size=2),
    )
)


def data(invocation: str, number: int, written: object = None, removed: object = ()) -> bytes:
    """Return an encoded delta."""
    return encode({"id": f"{invocation}/e{number}", "set": written or {}, "removed": removed})


@given(NAMES, NAMES, NAMES, NAMES)
def test_no_two_users_share_an_id(app: str, user: str, other_app: str, other_user: str) -> None:
    """Scopes of different users and apps have different IDs, whatever their names contain."""
    same = (app, user) == (other_app, other_user)
    assert (user_scope(app, user) == user_scope(other_app, other_user)) is same
    assert user_scope(app, user) != app_scope(other_app)
    assert prefix_of(user_scope(app, user)) == "user:"
    assert prefix_of(app_scope(app)) == "app:"


def test_a_name_that_does_not_fit_is_refused() -> None:
    """The error says to use shorter names."""
    with pytest.raises(ScopeNameTooLong, match="use shorter names"):
        user_scope("app", "☃" * 200)
    with pytest.raises(ScopeNameTooLong):
        app_scope("x" * 1_000)


def test_which_keys_are_scoped() -> None:
    """Keys with the prefix `user:` or `app:` are scoped; other keys, such as `xuser:a`, are not."""
    keys = ("user:", "user:a", "app:a", "user", "temp:a", "xuser:a", "User:a")
    assert [key for key in keys if is_scoped(key)] == ["user:", "user:a", "app:a"]


@given(DELTAS, st.data())
def test_what_is_told_again_counts_once(deltas: list[tuple[str, int, object, object]], choice: st.DataObject) -> None:
    """A repeated delta changes nothing, even after later deltas of the invocation."""
    deltas = sorted(deltas, key=lambda delta: delta[:2])
    once, again = ScopeFold(USER), ScopeFold(USER)
    told: list[bytes] = []
    for delta in deltas:
        told.append(data(*delta))
        once.apply("apply", told[-1:])
        again.apply("apply", told[-1:])
        repeated = again.state
        assert "applied" not in again.apply("apply", choice.draw(st.lists(st.sampled_from(told), max_size=3)))
        assert again.state == repeated
    assert again.state == once.state


@given(DELTAS, st.integers(0, 20))
def test_a_fold_goes_on_from_its_snapshot(deltas: list[tuple[str, int, object, object]], cut: int) -> None:
    """A fold that continues from its snapshot has the same state as an uninterrupted one."""
    whole, first = ScopeFold(USER), ScopeFold(USER)
    for delta in deltas:
        whole.apply("apply", [data(*delta)])
    for delta in deltas[:cut]:
        first.apply("apply", [data(*delta)])
    second = ScopeFold(USER, ScopeSnapshot.model_validate(decode(first.snapshot().encode())))
    for delta in deltas[cut:]:
        second.apply("apply", [data(*delta)])
    assert second.snapshot() == whole.snapshot()


@given(st.one_of(st.binary(max_size=40), st.text(max_size=20).map(encode), st.builds(encode, st.dictionaries(
    st.sampled_from(["id", "set", "removed", "x"]), st.one_of(st.integers(), st.text(max_size=5), st.lists(st.text())),
))))  # fmt: skip
def test_junk_is_refused_and_named(junk: bytes) -> None:
    """Malformed deltas are refused with a reason, and change nothing."""
    fold = ScopeFold(USER, ScopeSnapshot(state={"user:a": 1}))
    [heard] = fold.apply("apply", [junk])
    assert heard == "refused"
    assert fold.state == {"user:a": 1}
    assert fold.refusals == 1
    assert fold.refused[0].reason


def test_keys_of_another_scope_are_refused_whole() -> None:
    """A delta with a key of another scope is refused as a whole."""
    fold = ScopeFold(USER)
    assert fold.apply("apply", [data("i", 1, {"user:a": 1, "app:b": 2})]) == ["refused"]
    assert fold.state == {}
    assert fold.refused[0].id == "i/e1"


def test_state_that_would_grow_too_large_is_refused_and_may_shrink() -> None:
    """A delta that exceeds the limit is refused and changes nothing; one that makes the state smaller is applied."""
    fold = ScopeFold(USER)
    fold.apply("apply", [data("i", 1, {"user:a": "x" * (MAX_SCOPE_BYTES - 100)})])
    assert fold.apply("apply", [data("i", 2, {"user:b": "x" * 200})]) == ["refused"]
    assert fold.apply("apply", [data("i", 3, {"user:b": 1}, ["user:a"])]) == ["applied"]
    assert fold.state == {"user:b": 1}


@given(DELTAS, st.integers(2, 60))
def test_the_state_is_never_larger_than_allowed(deltas: list[tuple[str, int, Any, Any]], limit: int) -> None:
    """A delta is refused exactly if the state's JSON would grow beyond the limit; the reason contains its size."""
    fold, expected = ScopeFold(USER), dict[str, int]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scope_state, "MAX_SCOPE_BYTES", limit)
        for index, (_, _, drawn, removed) in enumerate(deltas):
            written = {name: value % 1_000_000 for name, value in drawn.items()}  # at most 64 bits
            kept = {name: value for name, value in expected.items() if name not in removed} | written
            size = len(encode(kept))
            is_refused = size > limit and size > len(encode(expected))
            heard = fold.apply("apply", [data("i", index, written, removed)])
            assert heard == ["refused" if is_refused else "applied"]
            if is_refused:
                assert f"would grow to {size} bytes" in fold.refused[-1].reason
            else:
                expected = kept
            assert [*fold.state.items()] == [*expected.items()]


def test_a_delta_costs_the_same_whatever_the_state_contains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a delta does not depend on the state, because only the delta is encoded."""
    fold, encoded = ScopeFold(USER), list[int]()

    def encode_and_count(value: object) -> bytes:
        encoded.append(len(result := encode(value)))
        return result

    monkeypatch.setattr(scope_state, "encode", encode_and_count)
    for n in range(1_000):
        fold.apply("apply", [data("i", n, {f"user:{n}": "x" * 100})])
    assert max(encoded) < 200
    assert sum(encoded) == len(encode(fold.state)) + 999


def test_state_that_was_read_does_not_change() -> None:
    """A state that was read does not change later, so readers may keep it."""
    fold = ScopeFold(USER)
    fold.apply("apply", [data("i", 1, {"user:a": 1})])
    read = fold.state
    fold.apply("apply", [data("i", 2, {"user:a": 2, "user:b": 3})])
    assert (read, fold.state) == ({"user:a": 1}, {"user:a": 2, "user:b": 3})


def test_what_is_remembered_is_bounded() -> None:
    """A fold remembers a bounded number of invocations and refusals, and carries over fewer refusals than it keeps."""
    fold = ScopeFold(USER)
    for n in range(MAX_HEARD + 10):
        fold.apply("apply", [data(f"i{n}", 1, {"user:n": n})])
        fold.apply("other", [])
    snapshot = fold.snapshot()
    assert (len(snapshot.heard), len(snapshot.refused), snapshot.refusals) == (MAX_HEARD, MAX_REFUSED, MAX_HEARD + 10)
    assert fold.heard("i5", "") == -1
    assert fold.heard("i500", "") == 1
    assert len(fold.refused) == MAX_REFUSED_IN_RUN
    assert len(snapshot.encode()) < 150_000


def test_a_delta_is_split_by_scope() -> None:
    """Keys that belong to the session are left out."""
    parts = list(split("i/e1", "r", {"user:a": 1, "b": 2, "temp:c": 3}, ["app:d", "e"]))
    assert [(prefix, delta.set, delta.removed) for prefix, delta in parts] == [
        ("user:", {"user:a": 1}, ()),
        ("app:", {}, ("app:d",)),
    ]
