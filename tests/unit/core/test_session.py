"""What a session decides, and that nothing it is sent gets lost."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.core import (
    MAX_QUEUED,
    InvalidInput,
    QueueFull,
    Report,
    SessionBusy,
    SessionClosed,
    SessionInput,
    SessionLog,
    SessionMessage,
    SessionRefused,
    StateChange,
    parse_message,
    parse_nudge,
    parse_session,
)

ID = "session/waystation/user/s"


def session(**fields: object) -> SessionLog:
    return SessionLog(ID, SessionInput.model_validate({"agent": "root", "session_id": "s", **fields}))


def said(text: str, **fields: object) -> SessionMessage:
    return SessionMessage.model_validate({"message": text, **fields})


def report(since: int, **fields: object) -> Report:
    return Report.model_validate({"since": since, "entries": (), **fields})


def test_one_invocation_begins_at_a_time() -> None:
    """The next begins when the one before is over."""
    log = session()
    assert log.accept(said("a"))["status"] == "started"
    assert log.accept(said("b"))["status"] == "queued"
    begun = log.start("run")
    assert begun is not None
    assert (begun[0], begun[1].message) == (1, "a")
    assert log.start("run") is None
    log.end(1, "completed")
    begun = log.start("run")
    assert begun is not None
    assert begun[1].message == "b"


def test_the_next_begins_when_one_waits() -> None:
    """Waiting for a person is not being at work."""
    log = session()
    log.accept(said("a"))
    log.accept(said("b"))
    log.start("run")
    log.park(1)
    begun = log.start("run")
    assert begun is not None
    assert begun[0] == 2
    assert [turn.n for turn in log.open] == [1, 2]


def test_state_is_folded_without_what_lasts_elsewhere() -> None:
    """`temp:` keys end with the invocation; `user:` and `app:` keys are not the session's."""
    log = session(state={"a": 1, "b": 2})
    log.accept(said("x", state={"c": 3, "user:lang": "de"}))
    begun = log.start("run")
    assert begun is not None
    assert begun[1].state == {"a": 1, "b": 2, "c": 3, "user:lang": "de"}
    log.apply(1, report(1, state_delta={"a": 9, "temp:x": 1, "app:y": 2}, removed_keys=("b",)), 4)
    assert log.state == {"a": 9, "c": 3}


def test_a_conversation_that_was_handed_over_stays_with_that_agent() -> None:
    """Until it is handed back."""
    log = session()
    for next_agent, expected in ((None, ("root", None)), ("billing", ("root", None)), (None, ("billing", "root"))):
        log.accept(said("x"))
        begun = log.start("run")
        assert begun is not None
        assert (begun[1].agent, begun[1].root) == expected
        log.end(begun[0], "completed", next_agent)
    log.accept(said("x"))
    begun = log.start("run")
    assert begun is not None
    log.end(begun[0], "completed", "root")
    assert log.next_agent is None


def test_a_joined_message_that_did_not_arrive_begins_its_own_invocation() -> None:
    """Before those that waited anyway."""
    log = session()
    log.accept(said("a"))
    log.start("run")
    assert log.accept(said("b", when_busy="join"))["status"] == "joined"
    assert log.accept(said("c", when_busy="join"))["status"] == "joined"
    log.accept(said("d"))
    log.apply(1, report(1, joined=(1,)), 5)
    log.end(1, "completed")
    begun = log.start("run")
    assert begun is not None
    assert begun[1].message == "c"


@pytest.mark.parametrize(
    ("busy", "given", "error"),
    [
        (True, said("x", when_busy="reject"), SessionBusy),
        (False, said("x", state={"k": "v" * 200_000}), InvalidInput),
    ],
)
def test_what_is_refused(busy: bool, given: SessionMessage, error: type[Exception]) -> None:
    """The class says why."""
    log = session(state={"large": "v" * 600_000})
    if busy:
        log.accept(said("a"))
        log.start("run")
    with pytest.raises(error):
        log.check(given)


def test_the_queue_is_bounded_by_number_and_size() -> None:
    """Refused is the one too many, none before."""
    log = session()
    for n in range(MAX_QUEUED):
        log.check(said(str(n)))
        log.accept(said(str(n)))
    with pytest.raises(QueueFull):
        log.check(said("one too many"))
    log = session()
    log.accept(said("x" * 300_000))
    with pytest.raises(QueueFull):
        log.check(said("x" * 300_000))


def test_joined_messages_count_until_they_have_arrived() -> None:
    """They are carried over like those that wait, and one agent at work may be sent any number."""
    log = session()
    log.accept(said("a"))
    log.start("run")
    for n in range(MAX_QUEUED):
        log.check(said(str(n), when_busy="join"))
        log.accept(said(str(n), when_busy="join"))
    for when_busy in ("join", "queue"):
        with pytest.raises(QueueFull):
            log.check(said("one too many", when_busy=when_busy))
    log.apply(1, report(1, joined=(1,)), 5)
    log.check(said("another", when_busy="join"))


def test_a_closed_session_still_answers_for_messages_it_took() -> None:
    """Sending again with the same id is no new message."""
    log = session()
    log.accept(said("a", message_id="m"))
    log.closing = True
    log.check(said("a", message_id="m"))
    with pytest.raises(SessionClosed):
        log.check(said("b"))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"invocation": "1"}', b'{"invocation": 1, "at": "x"}', b"null"])
def test_a_nudge_that_is_none_is_refused(data: bytes) -> None:
    """It never raises anything else."""
    with pytest.raises(InvalidInput):
        parse_nudge(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    """Nothing else is raised, whatever arrives."""
    for parse in (parse_message, lambda found: parse_session(found, ID, continues=False)):
        with contextlib.suppress(InvalidInput):
            parse(data)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(["queue", "reject", "join"])),
        st.tuples(st.just("park"), st.integers(1, 12)),
        st.tuples(st.just("end"), st.integers(1, 12)),
        st.tuples(st.just("arrive"), st.integers(1, 3)),
        st.tuples(st.just("cut"), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_every_message_that_was_taken_is_answered_once(steps: list[tuple[str, object]]) -> None:
    """In whatever order messages come, invocations wait, end, and the session continues in a new run."""
    log, taken, answered = session(), [], []

    def start() -> None:
        if begun := log.start("run"):
            assert log.current == begun[0]
            answered.append(begun[1].message)

    for number, (kind, what) in enumerate(steps):
        match kind:
            case "send":
                given = said(f"m{number}", when_busy=what)
                try:
                    log.check(given)
                except SessionRefused:
                    pass
                else:
                    log.accept(given)
                    taken.append(given.message)
            case "park" if isinstance(what, int) and what in log.turns and log.turns[what].status == "running":
                log.park(what)
            case "end" if isinstance(what, int) and what in log.turns:
                log.end(what, "completed")
            case "arrive" if log.current is not None and isinstance(what, int):
                turn = log.turns[log.current]
                answered.extend(m.message for join, m in turn.unconfirmed if join == what)
                log.apply(turn.n, report(turn.known, joined=(what,)), turn.known + 1)
            case "cut" if log.current is None:
                log = SessionLog(ID, log.given.model_copy(update={"carried": log.kept()}))
        start()
    for _ in range(200):
        for turn in log.open:
            log.end(turn.n, "completed")
        start()
    assert sorted(map(str, answered)) == sorted(map(str, taken))
    assert not log.busy


def test_change_of_the_state_counts_once_and_for_the_next_invocation() -> None:
    """An invocation that is open keeps its state. Keys of users and apps do not belong to the session."""
    log = session(state={"a": 1})
    log.accept(said("one"))
    log.start("run")
    log.change_state(StateChange(state={"a": 2, "user:b": 1}, change_id="c1"))
    log.end(1, "completed")
    log.change_state(StateChange(state={"a": 3}, change_id="c1"))
    log.accept(said("two"))
    begun = log.start("run")
    assert begun is not None
    assert begun[1].state == {"a": 2}


def test_change_that_makes_the_state_too_large_is_refused() -> None:
    """The state stays the same, and the ID can be used again."""
    log = session(state={"a": "x" * 400_000})
    change = StateChange(state={"b": "x" * 350_000}, change_id="c1")
    with pytest.raises(InvalidInput, match="more than 700000 bytes"):
        log.change_state(change)
    assert log.message_ids == {}
