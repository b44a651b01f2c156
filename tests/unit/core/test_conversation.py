"""What a model is shown of the messages before the one that it answers."""

from tests.unit.core.story import answered, asked_model, called, log_of, replied, returned, said
from tests.unit.core.test_prompt import brief
from waystation.core import Body, Conversation, Log, Transcript
from waystation.core.conversation import prompt


def after(*invocations: Log) -> Transcript:
    """Return what was said in some invocations, one after the other."""
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


def shown(conversation: Conversation) -> list[str]:
    return [
        f"{content['role']}: {' '.join(brief(part) for part in content['parts'])}"
        for content in prompt.contents(conversation)
    ]


def test_earlier_messages_come_first() -> None:
    """Words, calls and responses of earlier invocations stand before the message that is answered."""
    first = invocation(
        "s/1", said("weather?"), called("look"), returned("fc-1", {"sky": "grey"}), asked_model(), replied("Grey.")
    )
    now = invocation("s/2", said("thanks"))
    earlier = after(first)
    assert shown(Conversation(now, earlier, len(earlier.events))) == [
        "user: weather?",
        "model: look()",
        "user: look={'sky': 'grey'}",
        "model: Grey.",
        "user: thanks",
    ]


def test_only_what_was_said_before_the_invocation_began_is_shown() -> None:
    """What other invocations add meanwhile does not change what this one sees."""
    earlier = after(invocation("s/1", said("one"), replied("1")))
    count = len(earlier.events)
    now = invocation("s/2", said("two"))
    later = invocation("s/3", said("three"))
    earlier.logs["s/3"] = later
    earlier.events.extend(later.state.events)
    assert shown(Conversation(now, earlier, count)) == ["user: one", "model: 1", "user: two"]


def test_equal_ids_of_calls_in_two_invocations_are_two_calls() -> None:
    """Each invocation counts its calls from 1; each call has the response of its own."""
    first = invocation("s/1", said("a"), called("look", model_id="x"), returned("fc-1", {"v": 1}), asked_model())
    now = invocation("s/2", said("b"), called("look", model_id="y"), returned("fc-1", {"v": 2}))
    earlier = after(first)
    conversation = Conversation(now, earlier, len(earlier.events))
    assert shown(conversation) == [
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


def test_a_call_of_an_earlier_message_that_still_waits_is_shown_as_open() -> None:
    """A model that does not see its call makes it again; one without a response is refused by providers."""
    first = invocation("s/1", said("pay"), called("pay", gated=True))
    earlier = after(first)
    assert shown(Conversation(invocation("s/2", said("and?")), earlier, len(earlier.events))) == [
        "user: pay",
        "model: pay()",
        "user: pay={'status': 'pending'}",
        "user: and?",
    ]


def test_an_answer_ends_the_request_of_an_invocation_that_waited() -> None:
    """The invocation sees what it saw before, and its answer. Source: adk-semantics 3.7."""
    earlier = after(invocation("s/1", said("hello"), replied("hi")))
    waited = invocation(
        "s/2",
        said("ask"),
        called("ask", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(),
        replied("I asked."),
        answered("fc-1"),
    )
    assert shown(Conversation(waited, earlier, len(earlier.events))) == [
        "user: hello",
        "model: hi",
        "user: ask",
        "model: ask()",
        "user: ask={'status': 'approved'}",
    ]


def test_what_is_shown_grows_with_the_conversation() -> None:
    """What was made of earlier events is kept, and what comes later is added to it."""
    earlier = after(invocation("s/1", said("one"), replied("1")))
    assert len(shown(Conversation(invocation("s/2", said("two")), earlier, 2))) == 3
    second = invocation("s/2", said("two"), replied("2"))
    earlier.logs["s/2"] = second
    earlier.events.extend(second.state.events)
    last = Conversation(invocation("s/3", said("three")), earlier, 4)
    assert shown(last) == ["user: one", "model: 1", "user: two", "model: 2", "user: three"]
