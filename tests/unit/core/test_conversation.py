"""The prompt contains earlier messages of the session."""

from tests.unit.core.story import (
    answered,
    log_of,
    model_called,
    model_calls,
    model_replied,
    tool_returned,
    user_message,
)
from tests.unit.core.test_prompt import brief
from waystation.core.conversation import Conversation, Transcript, prompt
from waystation.core.log import Body, Log


def transcript_of(*invocations: Log) -> Transcript:
    """Return the transcript of these invocations, one after the other."""
    earlier = Transcript("s")
    for log in invocations:
        earlier.logs[log.invocation_id] = log
        earlier.events.extend(log.state.events)
    return earlier


def invocation(id: str, *happened: Body | list[Body]) -> Log:
    """Return the log of one invocation."""
    told = log_of(*happened)
    log = Log(id)
    for entry in told.entries:
        log.append(entry.ref, entry.time, entry.body)
    return log


def prompt_lines(conversation: Conversation) -> list[str]:
    return [
        f"{content['role']}: {' '.join(brief(part) for part in content['parts'])}"
        for content in prompt.contents(conversation)
    ]


def test_earlier_messages_come_first() -> None:
    """Text, calls and responses of earlier invocations precede the current message."""
    first = invocation(
        "s/1",
        user_message("weather?"),
        model_calls("look"),
        tool_returned("fc-1", {"sky": "grey"}),
        model_called(),
        model_replied("Grey."),
    )
    now = invocation("s/2", user_message("thanks"))
    earlier = transcript_of(first)
    assert prompt_lines(Conversation(now, earlier, len(earlier.events))) == [
        "user: weather?",
        "model: look()",
        "user: look={'sky': 'grey'}",
        "model: Grey.",
        "user: thanks",
    ]


def test_only_events_before_the_start_of_the_invocation_are_visible() -> None:
    """Events that other invocations add later do not change the prompt."""
    earlier = transcript_of(invocation("s/1", user_message("one"), model_replied("1")))
    count = len(earlier.events)
    now = invocation("s/2", user_message("two"))
    later = invocation("s/3", user_message("three"))
    earlier.logs["s/3"] = later
    earlier.events.extend(later.state.events)
    assert prompt_lines(Conversation(now, earlier, count)) == ["user: one", "model: 1", "user: two"]


def test_equal_call_ids_of_two_invocations_are_different_calls() -> None:
    """Each invocation counts its calls from 1, and each call gets its own response."""
    first = invocation(
        "s/1", user_message("a"), model_calls("look", model_id="x"), tool_returned("fc-1", {"v": 1}), model_called()
    )
    now = invocation("s/2", user_message("b"), model_calls("look", model_id="y"), tool_returned("fc-1", {"v": 2}))
    earlier = transcript_of(first)
    conversation = Conversation(now, earlier, len(earlier.events))
    assert prompt_lines(conversation) == [
        "user: a",
        "model: look()",
        "user: look={'v': 1}",
        "user: b",
        "model: look()",
        "user: look={'v': 2}",
    ]
    contents = prompt.contents(conversation)
    assert [contents[i]["parts"][0]["functionCall"]["id"] for i in (1, 4)] == ["x", "y"]
    assert [contents[i]["parts"][0]["functionResponse"]["id"] for i in (2, 5)] == ["x", "y"]


def test_a_pending_call_of_an_earlier_message_is_shown_as_open() -> None:
    """A pending call gets a placeholder response, because providers refuse calls without a response."""
    first = invocation("s/1", user_message("pay"), model_calls("pay", gated=True))
    earlier = transcript_of(first)
    assert prompt_lines(Conversation(invocation("s/2", user_message("and?")), earlier, len(earlier.events))) == [
        "user: pay",
        "model: pay()",
        "user: pay={'status': 'pending'}",
        "user: and?",
    ]


def test_an_answer_ends_the_request_of_a_waiting_invocation() -> None:
    """The invocation sees what it saw before, plus the answer. Source: adk-semantics 3.7."""
    earlier = transcript_of(invocation("s/1", user_message("hello"), model_replied("hi")))
    waited = invocation(
        "s/2",
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(),
        model_replied("I asked."),
        answered("fc-1"),
    )
    assert prompt_lines(Conversation(waited, earlier, len(earlier.events))) == [
        "user: hello",
        "model: hi",
        "user: ask",
        "model: ask()",
        "user: ask={'status': 'approved'}",
    ]


def test_the_prompt_grows_with_the_conversation() -> None:
    """Contents of earlier events are reused, and later ones are added."""
    earlier = transcript_of(invocation("s/1", user_message("one"), model_replied("1")))
    assert len(prompt_lines(Conversation(invocation("s/2", user_message("two")), earlier, 2))) == 3
    second = invocation("s/2", user_message("two"), model_replied("2"))
    earlier.logs["s/2"] = second
    earlier.events.extend(second.state.events)
    last = Conversation(invocation("s/3", user_message("three")), earlier, 4)
    assert prompt_lines(last) == ["user: one", "model: 1", "user: two", "model: 2", "user: three"]
