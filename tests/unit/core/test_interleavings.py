"""In any order of arrivals, the log stays well-formed and every reader builds the same log."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import drawn_examples
from tests.unit.core.drawn import BY_THE_WAY, MAX_TOKENS, Story
from waystation.core import ids
from waystation.core.conversation import prompt
from waystation.core.conversation.compaction import effective_summaries, hidden
from waystation.core.log import AnswerCounted, Log
from waystation.core.payload import JsonObject
from waystation.core.projection import Projection, Started


def observable(log: Log) -> tuple[list[JsonObject], JsonObject, list[JsonObject], tuple[str, ...]]:
    """Return everything that readers see of a log, and the order of its entries."""
    pending = [call.model_dump(mode="json") for call in log.state.pending()]
    return (
        [event.to_json() for event in log.state.events],
        log.state.session.values,
        pending,
        log.refs(log.entries_before),
    )


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_a_reader_of_the_history_builds_the_workflows_log(data: st.DataObject) -> None:
    """Fed at once or in pieces, at the end or halfway, the projection equals the workflow's log."""
    simulation = Story(data).play()
    whole = Projection("inv")
    whole.feed(simulation.facts)
    whole.flush()
    assert observable(whole.log) == observable(simulation.whole)
    pieces = Projection("inv")
    start = 0
    while start < len(simulation.facts):
        size = data.draw(st.integers(1, 10))
        pieces.feed(simulation.facts[start : start + size])
        start += size
    pieces.flush()
    assert observable(pieces.log) == observable(simulation.whole)


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_a_reader_of_the_last_run_alone_builds_the_workflows_log(data: st.DataObject) -> None:
    """The last run carries the effects of earlier runs, in segments if their histories are gone."""
    simulation = Story(data).play()
    facts = simulation.facts[simulation.runs[-1] :]
    last = Projection("inv")
    last.feed(facts)
    last.flush()
    assert observable(last.log) == observable(simulation.log)
    if isinstance(facts[0], Started) and (read := facts[0].carried()):
        log = Log("inv")
        simulation.extend(log, read[1])
        whole = Projection("inv", log)
        whole.feed(facts)
        whole.flush()
        assert observable(whole.log) == observable(simulation.whole)


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_an_activity_on_another_machine_builds_the_prompt_of_the_workflow(data: st.DataObject) -> None:
    """From positions and history alone, each model call sees the conversation as of its scheduling."""
    simulation = Story(data).play()
    for position, turn, contents in simulation.prompts:
        view = simulation.view_at(position)
        work = view.state.runs[turn]
        assert prompt.contents(view, agent=work.agent, branch=work.branch) == contents


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_a_model_never_sees_a_call_without_its_responses(data: st.DataObject) -> None:
    """In every request, each turn of calls is followed by one response per call, in call order."""
    story = Story(data)
    simulation = story.play()
    for contents in [*story.compacted, *(contents for _, _, contents in simulation.prompts)]:
        for content, following in zip(contents, [*contents[1:], None], strict=True):
            names = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
            if names:
                assert following is not None
                answers = [part["functionResponse"] for part in following["parts"] if "functionResponse" in part]
                assert [call.get("id") for call in names] == [answer.get("id") for answer in answers]
    for _, _, contents in simulation.prompts:
        # An agent that ran before, or whose callbacks replied, may have produced the last content itself.
        spoke_before = any(event.content == BY_THE_WAY for event in simulation.whole.state.events)
        assert contents[-1]["role"] == "user" or spoke_before or simulation.log.state.runs.begun > 1


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_every_call_of_an_ended_invocation_has_its_last_response(data: st.DataObject) -> None:
    """Each call is closed exactly once: answered, refused, expired, lost or cancelled."""
    simulation = Story(data).play()
    if not simulation.finished:
        return
    log = simulation.whole
    assert log.state.waiting() == []
    answered = [part["id"] for event in log.state.events for part in event.function_responses()]
    for call in log.state.calls.values():
        assert call.closed
        assert call.id in answered or ids.is_budget(call.id)


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_an_event_lists_its_responses_in_call_order(data: st.DataObject) -> None:
    """Responses are in call order, whichever call finished first."""
    for event in Story(data).play().whole.state.events:
        if event.author == "user":
            continue
        numbers = [int(part["id"].split("-")[-1]) for part in event.function_responses()]
        assert numbers == sorted(numbers)


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_an_answer_counts_at_most_once(data: st.DataObject) -> None:
    """One final answer counts per question, however often and on whichever channel a call is answered."""
    simulation = Story(data).play()
    finals = Counter(
        entry.body.function_call_id
        for entry in simulation.whole.entries
        if isinstance(entry.body, AnswerCounted) and entry.body.answer.action != "progress"
    )
    for call_id, count in finals.items():
        call = simulation.whole.state.calls[call_id]
        # A gated call asks before its first run, and each run may end with another question.
        assert count <= (call.call.confirmation is not None) + call.run + 1


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_a_summary_hides_neither_the_users_message_nor_a_pending_call(data: st.DataObject) -> None:
    """A summary of any number of events hides neither, and every event stays in the log."""
    story = Story(data)
    log = story.play().whole
    for contents in story.compacted:
        assert {"role": "user", "parts": [{"text": "go"}]} in contents
    waiting = {call.id for call in log.state.waiting()}
    for branch in {work.branch for work in log.state.runs.by_index.values()}:
        indices = hidden(log.state.events, effective_summaries(log.state.events, branch))
        gone = {call["id"] for index in indices for call in log.state.events[index].function_calls()}
        assert waiting.isdisjoint(gone)
        stay = [event for index, event in enumerate(log.state.events) if index not in indices]
        assert gone.isdisjoint(response["id"] for event in stay for response in event.function_responses())


@given(st.data())
@settings(max_examples=drawn_examples(150), deadline=None)
def test_spending_exceeds_the_budget_only_by_work_in_flight(data: st.DataObject) -> None:
    """Model calls that were in flight at the limit may finish, and each agent may reply once more; no tool runs."""
    log = Story(data).play().log
    most = MAX_TOKENS * 2 * log.state.runs.begun
    limits = log.state.budget.limits()
    assert log.state.used.spent.total_tokens <= limits.get("max_total_tokens", log.state.used.spent.total_tokens) + most
    assert log.state.used.spent.tool_calls <= limits.get("max_tool_calls", log.state.used.spent.tool_calls)


@given(st.data())
@settings(max_examples=drawn_examples(100), deadline=None)
def test_every_reader_counts_the_same_spending(data: st.DataObject) -> None:
    """Each entry counts once for every reader; a reader that knows no times reports no working time."""
    simulation = Story(data).play()
    projection = Projection("inv")
    projection.feed(simulation.facts)
    projection.flush()
    assert projection.log.state.used.spent == simulation.log.state.used.spent
    untimed = Log("inv", timed=False)
    for entry in simulation.whole.entries:
        untimed.append(entry.ref, 0.0, entry.body)
    assert untimed.state.used.spent == simulation.log.state.used.spent.model_copy(
        update={"working_s": untimed.state.used.spent.working_s}
    )
