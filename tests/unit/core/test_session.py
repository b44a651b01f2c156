"""A session decides when each invocation starts and loses no message."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.core.contract import InvocationReport
from waystation.core.errors import InvalidInput, QueueFull, SessionBusy, SessionClosed, SessionRefused
from waystation.core.session_log import (
    MAX_QUEUED,
    SessionInput,
    SessionLog,
    SessionMessage,
    StateChange,
    parse_message,
    parse_nudge,
    parse_session,
)

ID = "session/waystation/user/s"


def session(**fields: object) -> SessionLog:
    return SessionLog(ID, SessionInput.model_validate({"agent": "root", "session_id": "s", **fields}))


def message(text: str, **fields: object) -> SessionMessage:
    return SessionMessage.model_validate({"message": text, **fields})


def report(since: int, **fields: object) -> InvocationReport:
    return InvocationReport.model_validate({"since": since, "entries": (), **fields})


def test_one_invocation_starts_at_a_time() -> None:
    """The next invocation starts after the previous one ended."""
    log = session()
    assert log.accept(message("a"))["status"] == "started"
    assert log.accept(message("b"))["status"] == "queued"
    started = log.start("run")
    assert started is not None
    assert (started[0], started[1].message) == (1, "a")
    assert log.start("run") is None
    log.end(1, "completed")
    started = log.start("run")
    assert started is not None
    assert started[1].message == "b"


def test_the_next_invocation_starts_while_one_waits() -> None:
    """An invocation that waits for a person does not block the session."""
    log = session()
    log.accept(message("a"))
    log.accept(message("b"))
    log.start("run")
    log.park(1)
    started = log.start("run")
    assert started is not None
    assert started[0] == 2
    assert [turn.n for turn in log.open] == [1, 2]


def test_the_state_excludes_temporary_and_scoped_keys() -> None:
    """`temp:` keys end with the invocation; `user:` and `app:` keys do not belong to the session."""
    log = session(state={"a": 1, "b": 2})
    log.accept(message("x", state={"c": 3, "user:lang": "de"}))
    started = log.start("run")
    assert started is not None
    assert started[1].state == {"a": 1, "b": 2, "c": 3, "user:lang": "de"}
    log.apply(1, report(1, state_delta={"a": 9, "temp:x": 1, "app:y": 2}, removed_keys=("b",)), 4)
    assert log.state == {"a": 9, "c": 3}


def test_the_next_message_goes_to_the_agent_that_took_over() -> None:
    """The next message goes to that agent until the conversation is handed back."""
    log = session()
    for next_agent, expected in ((None, ("root", None)), ("billing", ("root", None)), (None, ("billing", "root"))):
        log.accept(message("x"))
        started = log.start("run")
        assert started is not None
        assert (started[1].agent, started[1].root) == expected
        log.end(started[0], "completed", next_agent)
    log.accept(message("x"))
    started = log.start("run")
    assert started is not None
    log.end(started[0], "completed", "root")
    assert log.next_agent is None


def test_an_invocation_is_requested_by_the_sender_of_its_message() -> None:
    """The next message has no other sender than the session's user."""
    log = session(user_id="ann")
    for requester, requesters in (("machine:hook:shop", ("machine:hook:shop", "ann")), (None, ("ann",))):
        log.accept(message("x", requester=requester))
        started = log.start("run")
        assert started is not None
        assert started[1].requesters == requesters
        log.end(started[0], "completed")


def test_an_undelivered_joined_message_starts_its_own_invocation() -> None:
    """The invocation of an undelivered message starts before the messages that were already queued."""
    log = session()
    log.accept(message("a"))
    log.start("run")
    assert log.accept(message("b", when_busy="join"))["status"] == "joined"
    assert log.accept(message("c", when_busy="join"))["status"] == "joined"
    log.accept(message("d"))
    log.apply(1, report(1, joined=(1,)), 5)
    log.end(1, "completed")
    started = log.start("run")
    assert started is not None
    assert started[1].message == "c"


@pytest.mark.parametrize(
    ("busy", "content", "error"),
    [
        (True, message("x", when_busy="reject"), SessionBusy),
        (False, message("x", state={"k": "v" * 200_000}), InvalidInput),
    ],
)
def test_a_message_is_refused(busy: bool, content: SessionMessage, error: type[Exception]) -> None:
    """The class of the error states why the message is refused."""
    log = session(state={"large": "v" * 600_000})
    if busy:
        log.accept(message("a"))
        log.start("run")
    with pytest.raises(error):
        log.check(content)


def test_the_queue_is_bounded_by_number_and_size() -> None:
    """Only the messages above the limit are refused."""
    log = session()
    for n in range(MAX_QUEUED):
        log.check(message(str(n)))
        log.accept(message(str(n)))
    with pytest.raises(QueueFull):
        log.check(message("one too many"))
    log = session()
    log.accept(message("x" * 300_000))
    with pytest.raises(QueueFull):
        log.check(message("x" * 300_000))


def test_joined_messages_count_until_they_are_delivered() -> None:
    """Joined messages count towards the limit, because they are carried over like queued messages."""
    log = session()
    log.accept(message("a"))
    log.start("run")
    for n in range(MAX_QUEUED):
        log.check(message(str(n), when_busy="join"))
        log.accept(message(str(n), when_busy="join"))
    for when_busy in ("join", "queue"):
        with pytest.raises(QueueFull):
            log.check(message("one too many", when_busy=when_busy))
    log.apply(1, report(1, joined=(1,)), 5)
    log.check(message("another", when_busy="join"))


def test_a_closed_session_still_answers_repeated_messages() -> None:
    """A message with a known ID is not a new message."""
    log = session()
    log.accept(message("a", message_id="m"))
    log.closing = True
    log.check(message("a", message_id="m"))
    with pytest.raises(SessionClosed):
        log.check(message("b"))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"invocation": "1"}', b'{"invocation": 1, "at": "x"}', b"null"])
def test_an_invalid_nudge_is_refused(data: bytes) -> None:
    """An invalid nudge raises only `InvalidInput`."""
    with pytest.raises(InvalidInput):
        parse_nudge(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    """Invalid bytes raise only `InvalidInput`."""
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
def test_every_accepted_message_is_answered_once(steps: list[tuple[str, object]]) -> None:
    """Every accepted message is answered once, for any order of messages, waits, ends and runs."""
    log, accepted, answered = session(), [], []

    def start() -> None:
        if started := log.start("run"):
            assert log.current == started[0]
            answered.append(started[1].message)

    for number, (kind, what) in enumerate(steps):
        match kind:
            case "send":
                request = message(f"m{number}", when_busy=what)
                try:
                    log.check(request)
                except SessionRefused:
                    pass
                else:
                    log.accept(request)
                    accepted.append(request.message)
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
    assert sorted(map(str, answered)) == sorted(map(str, accepted))
    assert not log.busy


def test_a_state_change_counts_once_from_the_next_invocation() -> None:
    """An open invocation keeps its state, and keys of users and apps do not belong to the session."""
    log = session(state={"a": 1})
    log.accept(message("one"))
    log.start("run")
    log.change_state(StateChange(state={"a": 2, "user:b": 1}, change_id="c1"))
    log.end(1, "completed")
    log.change_state(StateChange(state={"a": 3}, change_id="c1"))
    log.accept(message("two"))
    started = log.start("run")
    assert started is not None
    assert started[1].state == {"a": 2}


def test_a_state_change_above_the_limit_is_refused() -> None:
    """The state stays the same, and the ID can be used again."""
    log = session(state={"a": "x" * 400_000})
    change = StateChange(state={"b": "x" * 350_000}, change_id="c1")
    with pytest.raises(InvalidInput, match="more than 700000 bytes"):
        log.change_state(change)
    assert log.message_ids == {}
