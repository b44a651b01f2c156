"""Compaction chooses which events a summary replaces and puts the summary in their place."""

from tests.unit.core.story import answered, log_of, model_called, model_calls, tool_returned, user_message
from tests.unit.core.test_prompt import brief
from waystation.core.budget import Usage
from waystation.core.contract import Compaction, Covered, Event, EventActions, EventCompaction, ModelReply
from waystation.core.conversation import Conversation, ConversationView, SummaryRange, Transcript, prompt
from waystation.core.conversation.compaction import effective_summaries, hidden
from waystation.core.log import Body, Log, ModelReplied, parse_ref
from waystation.core.payload import JsonObject

SUMMARY: JsonObject = {"role": "model", "parts": [{"text": "SUMMARY"}]}


def looked_at_pages(*numbers: int) -> list[Body]:
    """Return entries of a model that reads pages one after the other and is called again after each."""
    steps: list[list[Body]] = [
        [model_calls("look", id=f"fc-{n}"), tool_returned(f"fc-{n}", {"page": n}), model_called(n + 1)] for n in numbers
    ]
    return [body for step in steps for body in step]


def find_compaction(log: Log, retention: int = 2) -> SummaryRange | None:
    """Return the events to summarize before the model call that is in flight."""
    return ConversationView.of(log, log.state.runs[0]).over_threshold(retention)


def prompt_lines(log: Log, made: Compaction | None = None) -> list[str]:
    """Return the prompt as short lines, with a summary that is not recorded yet."""
    contents = prompt.contents(log, summary=made.event("inv", None) if made else None)
    return [f"{content['role']}: {' '.join(brief(part) for part in content['parts'])}" for content in contents]


def summarize(log: Log, retention: int = 2) -> Compaction:
    """Return a summary as the activity would make it."""
    candidate = find_compaction(log, retention)
    assert candidate
    return candidate.compaction(content=SUMMARY)


def test_a_summary_precedes_the_retained_events() -> None:
    """The prompt has the summary, then the user's newest message, then the newest events."""
    log = log_of(user_message("go"), looked_at_pages(1, 2, 3))
    assert prompt_lines(log, summarize(log)) == [
        "model: SUMMARY",
        "user: go",
        "model: look()",
        "user: look={'page': 3}",
    ]


def test_a_call_stays_with_its_response() -> None:
    """A call and its response are both retained if the limit falls between them."""
    log = log_of(user_message("go"), looked_at_pages(1, 2, 3))
    assert prompt_lines(log, summarize(log, retention=3)) == prompt_lines(log, summarize(log, retention=4))


def test_unread_responses_are_not_summarized() -> None:
    """Responses that the model has not seen are kept, even if no event is to be retained. ADK would summarize them."""
    log = log_of(user_message("go"), looked_at_pages(1, 2))
    assert prompt_lines(log, summarize(log, retention=0))[-1] == "user: look={'page': 2}"


def test_a_pending_call_stays_visible_and_the_rest_is_summarized() -> None:
    """One pending approval does not prevent compaction."""
    log = log_of(
        user_message("go"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(2),
        looked_at_pages(2, 3, 4),
    )
    made = summarize(log)
    assert prompt_lines(log, made) == [
        "model: SUMMARY",
        "user: go",
        "model: ask()",
        "user: ask={'status': 'pending'}",
        "model: look()",
        "user: look={'page': 4}",
    ]
    assert made.covered.count == 4


def test_a_late_answer_is_shown_with_its_call_after_a_summary() -> None:
    """A late answer is shown with its call after a summary; the next summary may cover both."""
    log = log_of(
        user_message("go"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(2),
        looked_at_pages(2, 3, 4),
    )
    log.append(parse_ref("m5"), 2_000.0, ModelReplied(5, ModelReply(content=SUMMARY, compaction=summarize(log))))
    log.append(parse_ref("s1"), 2_001.0, answered("fc-1"))
    assert prompt_lines(log)[-2:] == ["model: ask()", "user: ask={'status': 'approved'}"]


def test_nothing_is_summarized_if_every_event_is_retained() -> None:
    """No summary is made if there are too few events, or if all candidates must stay."""
    assert find_compaction(log_of(user_message("go"), looked_at_pages(1)), retention=3) is None
    assert find_compaction(log_of(user_message("go"), looked_at_pages(1)), retention=1) is None


def test_a_later_summary_replaces_the_earlier_one() -> None:
    """The summarizer receives the earlier summary first, and not the events that it covers."""
    log = log_of(user_message("go"), looked_at_pages(1, 2, 3))
    log.append(parse_ref("m4"), 2_000.0, reply_of_a_call(4, summarize(log)))
    for body in (tool_returned("fc-4", {"page": 4}), model_called(5)):
        log.append(parse_ref("m9"), 2_001.0, body)
    later = find_compaction(log)
    assert later
    first, *others = later.events
    assert (first.author, first.content) == ("model", SUMMARY)
    assert [call["id"] for event in others for call in event.function_calls()] == ["fc-3"]
    assert later.covered.first == log.state.events[0].id
    assert later.covered.count == 6
    later_summary: JsonObject = {"role": "model", "parts": [{"text": "LATER"}]}
    assert prompt_lines(log, later.compaction(content=later_summary)) == [
        "model: LATER",
        "user: go",
        "model: look()",
        "user: look={'page': 4}",
    ]


def reply_of_a_call(number: int, made: Compaction) -> Body:
    """Return a reply of a model that was shown a summary and reads another page."""
    reply = model_calls("look", id=f"fc-{number}")
    assert isinstance(reply, ModelReplied)
    return ModelReplied(number, reply.reply.model_copy(update={"compaction": made}))


def test_the_event_of_a_summary_precedes_the_reply_and_has_the_shape_of_adk() -> None:
    """The summary has the shape of ADK's event and precedes the reply; its tokens count for the invocation."""
    log = log_of(user_message("go"), looked_at_pages(1, 2, 3))
    made = summarize(log).model_copy(update={"usage": Usage(prompt_tokens=7, total_tokens=9), "model": "small"})
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


def test_a_failed_summary_leaves_the_prompt_unchanged() -> None:
    """A failed summary is recorded as a note with its cost, and hides no event."""
    log = log_of(user_message("go"), looked_at_pages(1, 2, 3))
    candidate, before = find_compaction(log), prompt_lines(log)
    assert candidate
    made = candidate.compaction(failure="no")
    assert prompt_lines(log, made) == before
    log.append(parse_ref("m4"), 2_000.0, ModelReplied(4, ModelReply(content=SUMMARY, compaction=made)))
    assert log.state.events[-1].custom_metadata == {"compaction_failed": {"trigger": "token_threshold", "reason": "no"}}
    assert prompt_lines(log) == [*before, "model: SUMMARY"]


def test_agents_that_see_only_the_current_turn_see_no_summary() -> None:
    """Agents that see only the current turn see no summary, because their prompts are short without one."""
    log = log_of(user_message("go"), looked_at_pages(1, 2, 3))
    before = prompt.contents(log, current_turn_only=True)
    log.append(parse_ref("m4"), 2_000.0, ModelReplied(4, ModelReply(content=SUMMARY, compaction=summarize(log))))
    assert prompt.contents(log, current_turn_only=True)[: len(before)] == before


def test_the_size_of_a_prompt_is_the_last_count_plus_an_estimate() -> None:
    """Only the events since the last token count are estimated, or all if there is no count."""
    log = log_of(user_message("go"), looked_at_pages(1))
    conversed = ConversationView.of(log, log.state.runs[0])
    assert conversed.tokens(lambda: [{"role": "user", "parts": [{"text": "x" * 40}]}]) == 10
    counted = model_calls("look", id="fc-2")
    assert isinstance(counted, ModelReplied)
    reply = counted.reply.model_copy(update={"usage": Usage(prompt_tokens=100)})
    log.append(parse_ref("m2"), 2_000.0, ModelReplied(2, reply))
    log.append(parse_ref("fc-2"), 2_000.0, tool_returned("fc-2", {"text": "x" * 400}))
    assert 200 <= ConversationView.of(log, log.state.runs[0]).tokens(list) < 210


# Sessions: the events of several invocations.


def turn(number: int, *, answer: str = "fine " * 40) -> list[Event]:
    """Return the events of one invocation: a user's message and the agent's answer."""
    question: JsonObject = {"role": "user", "parts": [{"text": f"question {number}"}]}
    spoken: JsonObject = {"role": "model", "parts": [{"text": answer}]}
    at = float(number)
    return [
        Event(id=f"i{number}/e1", invocation_id=f"i{number}", author="user", timestamp=at, content=question),
        Event(id=f"i{number}/e2", invocation_id=f"i{number}", author="ag", timestamp=at + 0.5, content=spoken),
    ]


def session(*events: list[Event]) -> ConversationView:
    """Return the conversation as of the first model call of the newest invocation."""
    flat = [event for some in events for event in some]
    return ConversationView(flat, "ag", None, flat[-1].invocation_id, lambda _event, _id: False)


def summary_event(id: str, covered: Covered, content: JsonObject) -> Event:
    """Return the event of a summary."""
    compaction = EventCompaction(start_timestamp=1.0, end_timestamp=2.5, compacted_content=content)
    actions = EventActions(compaction=compaction)
    return Event(id=id, invocation_id=id.split("/")[0], author="user", actions=actions, covered=covered)


def test_an_answer_to_an_earlier_invocation_is_not_covered() -> None:
    """A summary does not cover an answer that arrived after it was made."""
    question, answer = turn(3)
    late = turn(1)[1].model_copy(update={"id": "i1/e3"})
    made = summary_event("i3/e3", Covered(first="i1/e1", last="i3/e2", count=6), SUMMARY)
    events = [*turn(1), *turn(2), question, late, answer, made]
    gone = hidden(events, effective_summaries(events, None))
    assert [event.id for index, event in enumerate(events) if index not in gone] == ["i1/e3", "i3/e3"]


def test_a_window_is_due_after_an_interval_of_invocations() -> None:
    """A window is due after an interval that excludes the current invocation. Source: ADK's sliding window."""
    question = turn(3)[:1]
    assert session(turn(1), turn(2)[:1]).due_window(2, 1) is None
    window = session(turn(1), turn(2), question).due_window(2, 1)
    assert window
    assert (window.trigger, window.covered) == ("sliding_window", Covered(first="i1/e1", last="i2/e2", count=4))


def test_windows_overlap() -> None:
    """With an interval of 2 and an overlap of 1, the second summary covers invocations 2 to 4. Source: ADK."""
    first = session(turn(1), turn(2), turn(3)[:1]).due_window(2, 1)
    assert first
    made = summary_event("i3/e2", first.covered, SUMMARY)
    question, answer = turn(3)
    assert session(turn(1), turn(2), [question, made, answer], turn(4)[:1]).due_window(2, 1) is None
    second = session(turn(1), turn(2), [question, made, answer], turn(4), turn(5)[:1]).due_window(2, 1)
    assert second
    assert (second.covered.first, second.covered.last) == ("i2/e1", "i4/e2")
    assert [event.invocation_id for event in second.events] == ["i2", "i2", "i3", "i3", "i4", "i4"]


def test_a_window_that_is_smaller_than_the_last_summary_is_not_summarized() -> None:
    """A window is skipped if its summary would not shorten the prompt. Source: ADK."""
    long: JsonObject = {"role": "model", "parts": [{"text": "x" * 5_000}]}
    made = summary_event("i2/e0", Covered(first="i1/e1", last="i1/e2", count=2), long)
    assert session(turn(1), [made, *turn(2)], turn(3)[:1]).due_window(1, 0) is None


def test_an_answered_call_without_a_response_event_stays_visible() -> None:
    """A call stays visible while its answer is held back by a running tool."""
    log = log_of(
        user_message("go"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(2),
        model_calls("look", id="fc-2"),
        answered("fc-1"),
    )
    assert log.state.calls["fc-1"].closed
    assert find_compaction(log, retention=0) is None


def test_summaries_of_earlier_invocations_are_shown_in_later_ones() -> None:
    """A later summary may replace them and reach into the current invocation."""
    before = log_of(user_message("go"), looked_at_pages(1, 2, 3))
    before.append(parse_ref("m4"), 2_000.0, ModelReplied(4, ModelReply(content=SUMMARY, compaction=summarize(before))))
    earlier = Transcript("s")
    earlier.logs["inv"] = before
    earlier.events.extend(before.state.events)
    log = Log("next")
    for body in (*user_message("and now?"), *looked_at_pages(1, 2)):
        answered_now = ModelReplied(log.state.steps, body.reply) if isinstance(body, ModelReplied) else body
        log.append(parse_ref("m9"), 3_000.0, answered_now)
    conversation = Conversation(log, earlier, len(earlier.events))
    candidate = ConversationView.of(conversation, log.state.runs[0]).over_threshold(2)
    assert candidate
    assert (candidate.covered.first, candidate.covered.last) == ("inv/e1", "next/e3")
    contents = prompt.contents(conversation)
    assert [brief(content["parts"][0]) for content in contents][:2] == ["SUMMARY", "go"]
    made = candidate.compaction(content=SUMMARY).event("next", None)
    contents = prompt.contents(conversation, summary=made)
    assert [brief(content["parts"][0]) for content in contents] == ["SUMMARY", "and now?", "look()", "look={'page': 2}"]
