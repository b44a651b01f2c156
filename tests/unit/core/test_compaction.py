"""Which events a summary is to stand for, and what is shown in their place."""

from tests.unit.core.story import answered, asked_model, called, log_of, returned, said
from tests.unit.core.test_prompt import brief
from waystation.core import (
    Body,
    Compaction,
    Conversation,
    ConversationView,
    Covered,
    Event,
    EventActions,
    EventCompaction,
    JsonObject,
    Log,
    ModelReplied,
    ModelReply,
    SummaryRange,
    Transcript,
    Usage,
    hidden,
    parse_ref,
)
from waystation.core.conversation import prompt
from waystation.core.conversation.compaction import effective_summaries

SUMMARY: JsonObject = {"role": "model", "parts": [{"text": "SUMMARY"}]}


def looked(*numbers: int) -> list[Body]:
    """The model looked at pages, one after the other, and was asked again after each."""
    steps: list[list[Body]] = [
        [called("look", id=f"fc-{n}"), returned(f"fc-{n}", {"page": n}), asked_model(n + 1)] for n in numbers
    ]
    return [body for step in steps for body in step]


def chosen(log: Log, retention: int = 2) -> SummaryRange | None:
    """Return what is to be summarised before the model call that is in flight."""
    return ConversationView.of(log, log.state.runs[0]).over_threshold(retention)


def shown(log: Log, made: Compaction | None = None) -> list[str]:
    """Return the prompt as short lines, with a summary that is not recorded yet."""
    contents = prompt.contents(log, summary=made.event("inv", None) if made else None)
    return [f"{content['role']}: {' '.join(brief(part) for part in content['parts'])}" for content in contents]


def summarised(log: Log, retention: int = 2) -> Compaction:
    """Return a summary as the activity would make it."""
    found = chosen(log, retention)
    assert found
    return found.compaction(content=SUMMARY)


def test_a_summary_stands_before_what_stays() -> None:
    """First the summary, then the user's newest message, then the newest events, so that no call follows talk."""
    log = log_of(said("go"), looked(1, 2, 3))
    assert shown(log, summarised(log)) == [
        "model: SUMMARY",
        "user: go",
        "model: look()",
        "user: look={'page': 3}",
    ]


def test_a_call_is_never_separated_from_its_response() -> None:
    """The limit lies between them; both stay."""
    log = log_of(said("go"), looked(1, 2, 3))
    assert shown(log, summarised(log, retention=3)) == shown(log, summarised(log, retention=4))


def test_what_the_model_has_not_been_told_is_not_summarised() -> None:
    """Even when no event is to be retained; ADK would summarise it."""
    log = log_of(said("go"), looked(1, 2))
    assert shown(log, summarised(log, retention=0))[-1] == "user: look={'page': 2}"


def test_a_call_that_waits_stays_visible_and_does_not_keep_the_rest_from_being_summarised() -> None:
    """An approval may take a month."""
    log = log_of(
        said("go"),
        called("ask", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(2),
        looked(2, 3, 4),
    )
    made = summarised(log)
    assert shown(log, made) == [
        "model: SUMMARY",
        "user: go",
        "model: ask()",
        "user: ask={'status': 'pending'}",
        "model: look()",
        "user: look={'page': 4}",
    ]
    assert made.covered.count == 4


def test_an_answer_to_a_call_that_waited_through_a_summary_is_shown_with_its_call() -> None:
    """The next summary may then cover both."""
    log = log_of(
        said("go"),
        called("ask", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(2),
        looked(2, 3, 4),
    )
    log.append(parse_ref("m5"), 2_000.0, ModelReplied(5, ModelReply(content=SUMMARY, compaction=summarised(log))))
    log.append(parse_ref("s1"), 2_001.0, answered("fc-1"))
    assert shown(log)[-2:] == ["model: ask()", "user: ask={'status': 'approved'}"]


def test_nothing_is_summarised_while_there_are_no_more_events_than_are_to_stay() -> None:
    """Nor when all that could go has to stay."""
    assert chosen(log_of(said("go"), looked(1)), retention=3) is None
    assert chosen(log_of(said("go"), looked(1)), retention=1) is None


def test_a_later_summary_replaces_the_earlier_one_and_is_made_from_it() -> None:
    """The earlier one is given to the summarizer first; its events are not given again."""
    log = log_of(said("go"), looked(1, 2, 3))
    log.append(parse_ref("m4"), 2_000.0, reply_of_a_call(4, summarised(log)))
    for body in (returned("fc-4", {"page": 4}), asked_model(5)):
        log.append(parse_ref("m9"), 2_001.0, body)
    later = chosen(log)
    assert later
    first, *others = later.events
    assert (first.author, first.content) == ("model", SUMMARY)
    assert [call["id"] for event in others for call in event.function_calls()] == ["fc-3"]
    assert later.covered.first == log.state.events[0].id
    assert later.covered.count == 6
    again: JsonObject = {"role": "model", "parts": [{"text": "LATER"}]}
    assert shown(log, later.compaction(content=again)) == [
        "model: LATER",
        "user: go",
        "model: look()",
        "user: look={'page': 4}",
    ]


def reply_of_a_call(number: int, made: Compaction) -> Body:
    """The model was shown a summary and looked at a further page."""
    reply = called("look", id=f"fc-{number}")
    assert isinstance(reply, ModelReplied)
    return ModelReplied(number, reply.reply.model_copy(update={"compaction": made}))


def test_the_event_of_a_summary_precedes_the_models_and_has_adks_shape() -> None:
    """Its tokens count for the invocation."""
    log = log_of(said("go"), looked(1, 2, 3))
    made = summarised(log).model_copy(update={"usage": Usage(prompt_tokens=7, total_tokens=9), "model": "small"})
    log.append(
        parse_ref("m4"),
        2_000.0,
        ModelReplied(4, ModelReply(content=SUMMARY, usage=Usage(total_tokens=1), compaction=made)),
    )
    summary, spoken = log.state.events[-2:]
    assert summary.to_json()["actions"] == {
        "compaction": {
            "startTimestamp": log.state.events[0].timestamp,
            "endTimestamp": log.state.events[4].timestamp,
            "compactedContent": SUMMARY,
        }
    }
    assert (summary.author, summary.content, summary.model_version) == ("user", None, "small")
    assert spoken.content == SUMMARY
    assert log.state.outcome.usage.total_tokens == 10


def test_a_failed_summary_leaves_a_note_and_the_prompt_as_it_was() -> None:
    """Nothing is hidden; what it cost counts."""
    log = log_of(said("go"), looked(1, 2, 3))
    found, before = chosen(log), shown(log)
    assert found
    made = found.compaction(failure="no")
    assert shown(log, made) == before
    log.append(parse_ref("m4"), 2_000.0, ModelReplied(4, ModelReply(content=SUMMARY, compaction=made)))
    assert log.state.events[-1].custom_metadata == {"compaction_failed": {"trigger": "token_threshold", "reason": "no"}}
    assert shown(log) == [*before, "model: SUMMARY"]


def test_agents_that_are_shown_one_turn_only_are_shown_no_summary() -> None:
    """What they would be shown is short by itself."""
    log = log_of(said("go"), looked(1, 2, 3))
    before = prompt.contents(log, current_turn_only=True)
    log.append(parse_ref("m4"), 2_000.0, ModelReplied(4, ModelReply(content=SUMMARY, compaction=summarised(log))))
    assert prompt.contents(log, current_turn_only=True)[: len(before)] == before


def test_the_size_of_a_prompt_is_what_was_counted_last_and_an_estimate_of_what_came_since() -> None:
    """Without a count all of it is estimated."""
    log = log_of(said("go"), looked(1))
    conversed = ConversationView.of(log, log.state.runs[0])
    assert conversed.tokens(lambda: [{"role": "user", "parts": [{"text": "x" * 40}]}]) == 10
    counted = called("look", id="fc-2")
    assert isinstance(counted, ModelReplied)
    reply = counted.reply.model_copy(update={"usage": Usage(prompt_tokens=100)})
    log.append(parse_ref("m2"), 2_000.0, ModelReplied(2, reply))
    log.append(parse_ref("fc-2"), 2_000.0, returned("fc-2", {"text": "x" * 400}))
    assert 200 <= ConversationView.of(log, log.state.runs[0]).tokens(list) < 210


# Sessions: the events of several invocations.


def turn(number: int, *, answer: str = "fine " * 40) -> list[Event]:
    """One invocation: the user spoke, and the agent answered."""
    said: JsonObject = {"role": "user", "parts": [{"text": f"question {number}"}]}
    spoken: JsonObject = {"role": "model", "parts": [{"text": answer}]}
    at = float(number)
    return [
        Event(id=f"i{number}/e1", invocation_id=f"i{number}", author="user", timestamp=at, content=said),
        Event(id=f"i{number}/e2", invocation_id=f"i{number}", author="ag", timestamp=at + 0.5, content=spoken),
    ]


def session(*events: list[Event]) -> ConversationView:
    """Return the conversation when the first model call of its newest invocation is due."""
    flat = [event for some in events for event in some]
    return ConversationView(flat, "ag", None, flat[-1].invocation_id, lambda _event, _id: False)


def summary_event(id: str, covered: Covered, content: JsonObject) -> Event:
    """The event of a summary."""
    compaction = EventCompaction(start_timestamp=1.0, end_timestamp=2.5, compacted_content=content)
    actions = EventActions(compaction=compaction)
    return Event(id=id, invocation_id=id.split("/")[0], author="user", actions=actions, covered=covered)


def test_what_another_invocation_said_meanwhile_is_not_covered() -> None:
    """It waited when the summary was made, and has its answer now: nobody has summarised that."""
    question, answer = turn(3)
    late = turn(1)[1].model_copy(update={"id": "i1/e3"})
    made = summary_event("i3/e3", Covered(first="i1/e1", last="i3/e2", count=6), SUMMARY)
    events = [*turn(1), *turn(2), question, late, answer, made]
    gone = hidden(events, effective_summaries(events, None))
    assert [event.id for index, event in enumerate(events) if index not in gone] == ["i1/e3", "i3/e3"]


def test_a_window_is_due_after_so_many_invocations() -> None:
    """The one that goes on does not count. Source: ADK's sliding window."""
    asked = turn(3)[:1]
    assert session(turn(1), turn(2)[:1]).due_window(2, 1) is None
    found = session(turn(1), turn(2), asked).due_window(2, 1)
    assert found
    assert (found.trigger, found.covered) == ("sliding_window", Covered(first="i1/e1", last="i2/e2", count=4))


def test_windows_overlap() -> None:
    """With an interval of 2 and an overlap of 1 the second summary covers invocations 2 to 4. Source: ADK."""
    first = session(turn(1), turn(2), turn(3)[:1]).due_window(2, 1)
    assert first
    made = summary_event("i3/e2", first.covered, SUMMARY)
    question, answer = turn(3)
    assert session(turn(1), turn(2), [question, made, answer], turn(4)[:1]).due_window(2, 1) is None
    second = session(turn(1), turn(2), [question, made, answer], turn(4), turn(5)[:1]).due_window(2, 1)
    assert second
    assert (second.covered.first, second.covered.last) == ("i2/e1", "i4/e2")
    assert [event.invocation_id for event in second.events] == ["i2", "i2", "i3", "i3", "i4", "i4"]


def test_a_window_that_is_smaller_than_the_last_summary_is_not_summarised() -> None:
    """It would make the prompt no shorter. Source: ADK."""
    long: JsonObject = {"role": "model", "parts": [{"text": "x" * 5_000}]}
    made = summary_event("i2/e0", Covered(first="i1/e1", last="i1/e2", count=2), long)
    assert session(turn(1), [made, *turn(2)], turn(3)[:1]).due_window(1, 0) is None


def test_a_call_that_was_answered_but_whose_answer_is_no_event_yet_stays_visible() -> None:
    """The answer is held back while a tool runs; another agent may be summarising just then."""
    log = log_of(
        said("go"),
        called("ask", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(2),
        called("look", id="fc-2"),
        answered("fc-1"),
    )
    assert log.state.calls["fc-1"].closed
    assert chosen(log, retention=0) is None


def test_summaries_of_earlier_invocations_are_shown_in_later_ones() -> None:
    """And may be replaced by one that reaches into the invocation that goes on."""
    before = log_of(said("go"), looked(1, 2, 3))
    before.append(parse_ref("m4"), 2_000.0, ModelReplied(4, ModelReply(content=SUMMARY, compaction=summarised(before))))
    earlier = Transcript("s")
    earlier.logs["inv"] = before
    earlier.events.extend(before.state.events)
    log = Log("next")
    for body in (*said("and now?"), *looked(1, 2)):
        answered_now = ModelReplied(log.state.steps, body.reply) if isinstance(body, ModelReplied) else body
        log.append(parse_ref("m9"), 3_000.0, answered_now)
    conversation = Conversation(log, earlier, len(earlier.events))
    found = ConversationView.of(conversation, log.state.runs[0]).over_threshold(2)
    assert found
    assert (found.covered.first, found.covered.last) == ("inv/e1", "next/e3")
    told = prompt.contents(conversation)
    assert [brief(content["parts"][0]) for content in told][:2] == ["SUMMARY", "go"]
    made = found.compaction(content=SUMMARY).event("next", None)
    told = prompt.contents(conversation, summary=made)
    assert [brief(content["parts"][0]) for content in told] == ["SUMMARY", "and now?", "look()", "look={'page': 2}"]
