"""Whatever arrives, in whatever order: the log stays well-formed, and every reader builds the same one."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.simulation import Simulation
from waystation.core import ids, prompt
from waystation.core.budget import Budget, Spent, Usage
from waystation.core.compaction import Compaction, hidden, standing
from waystation.core.compaction_range import Conversed
from waystation.core.entry import AnswerCounted, Failure
from waystation.core.event import EventActions, ToolConfirmation
from waystation.core.facts import Started
from waystation.core.log import Log
from waystation.core.model_call import Call, Confirmation, ModelReply, Said
from waystation.core.payload import JsonObject
from waystation.core.projection import Projection
from waystation.core.shape import AgentShape
from waystation.core.step import CallModel
from waystation.core.tool_call import ToolOutcome
from waystation.core.wire import InvocationInput, InvocationResult
from waystation.core.work import Work

KINDS = ["function", "function", "long_running", "gated", "answered", "agent", "transfer"]
REQUESTS: list[Callable[[str], dict[str, Any]]] = [
    lambda ref: {},
    lambda ref: {},
    lambda ref: {},
    lambda ref: {"requested_tool_confirmations": {ref: ToolConfirmation(hint="sure?")}},
    lambda ref: {"requested_auth_configs": {ref: {"credentialKey": "key"}}},
]


def _composite(children: st.SearchStrategy[AgentShape]) -> st.SearchStrategy[AgentShape]:
    return st.builds(
        AgentShape,
        name=st.sampled_from(["seq", "par", "loop"]),
        kind=st.sampled_from(["sequential", "parallel", "loop"]),
        children=st.lists(children, max_size=3).map(tuple),
        max_iterations=st.sampled_from([0, 1, 2, None]),
        before=st.booleans(),
        after=st.booleans(),
    )


SHAPES = st.recursive(st.builds(AgentShape, name=st.sampled_from("pqr"), after=st.booleans()), _composite, max_leaves=4)
SUMMARY: JsonObject = {"role": "model", "parts": [{"text": "what happened"}]}
BUDGETS = st.builds(
    Budget,
    max_llm_calls=st.sampled_from([3, 6, 500]),
    max_total_tokens=st.sampled_from([None, None, 40]),
    max_tool_calls=st.sampled_from([None, None, 0, 3]),
    max_wall_s=st.sampled_from([None, None, 30.0]),
    on_exhausted=st.sampled_from([None, "stop", "wrap_up", "ask"]),
)
MAX_TOKENS = 20
"""What one reply uses at most."""
BY_THE_WAY: JsonObject = {"role": "model", "parts": [{"text": "by the way"}]}
ACTIONS = ["approve", "reject", "edit", "respond", "progress", "nonsense"]


class Story:
    """Draws what happens, and has it happen."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        budget = self.draw(BUDGETS)
        self.shape = self.draw(st.one_of(st.just(AgentShape(name="ag")), SHAPES))
        self.simulation = Simulation(InvocationInput(agent="ag", message="go", state={"s": 0}, budget=budget))
        self.compacted: list[list[JsonObject]] = []
        """The prompts that the summaries were made for."""

    def play(self) -> Simulation:
        """Play some forty moves, and then answer everything until the invocation ends or truly waits."""
        simulation = self.simulation
        simulation.task()
        for _ in range(self.draw(st.integers(5, 40))):
            if simulation.finished:
                break
            self._move()
        if not simulation.finished:
            simulation.task()
        return simulation

    def _move(self) -> None:
        simulation = self.simulation
        simulation.now += self.draw(st.sampled_from([0.0, 0.1, 40.0]))
        moves = ["task", "task", "answer", "update", "junk", "timer"]
        if simulation.in_flight:
            moves += ["result"] * 4
        if self.draw(st.integers(0, 5)) == 0:
            simulation.cut(inline=self.draw(st.booleans()))
        if self.draw(st.integers(0, 60)) == 0 and not simulation.cancel_asked:
            moves = ["cancel"]
        match self.draw(st.sampled_from(moves)):
            case "task":
                simulation.task()
            case "answer":
                simulation.answer(**self._answer())
            case "update":
                simulation.update(**self._answer())
            case "junk":
                simulation.signal(self.draw(st.sampled_from(["answer", "other"])), self.draw(st.binary(max_size=8)))
            case "timer":
                simulation.fire_timer()
            case "cancel":
                simulation.cancel()
            case "result":
                self._result(self.draw(st.sampled_from(sorted(simulation.in_flight))))

    def _answer(self) -> JsonObject:
        waiting = [call.id for call in self.simulation.log.waiting()]
        known = [*self.simulation.log.calls, *waiting, "fc-99"]
        answer: dict[str, Any] = {
            "function_call_id": self.draw(st.sampled_from(known)),
            "action": self.draw(st.sampled_from(ACTIONS)),
            "response": self.draw(st.sampled_from([{"r": 1}, {"max_total_tokens": 30}, None])),
            "args": {"edited": True},
            "wake": self.draw(st.booleans()),
        }
        if self.draw(st.booleans()):
            answer["answer_id"] = self.draw(st.sampled_from(["a", "b"]))
        if self.draw(st.integers(0, 5)) == 0:
            answer["digest"] = "wrong"
        return answer

    def _result(self, ref: str) -> None:
        simulation = self.simulation
        lost = self.draw(st.integers(0, 12)) == 0
        if simulation.in_flight[ref] == "model":
            if lost:
                simulation.lose(ref, Failure(kind="error", error_type="ModelFailed", message="no"))
            else:
                simulation.reply(ref, self._reply(simulation.asked[ref]))
        elif lost:
            simulation.lose(ref, Failure(kind="heartbeat"))
        elif simulation.in_flight[ref] == "child":
            delta = {self.draw(st.sampled_from("ab")): self.draw(st.integers(0, 9))}
            share = simulation.log.share(ref)
            tokens = self.draw(st.integers(0, min(MAX_TOKENS, share.max_total_tokens or MAX_TOKENS)))
            tools = self.draw(st.integers(0, 2 if share.max_tool_calls is None else share.max_tool_calls))
            spent = Spent(model_calls=1, total_tokens=tokens, tool_calls=tools, working_s=1.0)
            simulation.child_returns(ref, InvocationResult(text="done", state_delta=delta, spent=spent))
        else:
            call_id = ids.performed(ref)[0]
            long_running = simulation.log.calls[call_id].call.kind == "long_running"
            simulation.tool_returns(ref, self._outcome(call_id, long_running))

    def _reply(self, asked: CallModel) -> ModelReply:
        work = self.simulation.log.works[asked.turn]
        said = Said(content=BY_THE_WAY)
        said = said.model_copy(update={"actions": self.draw(st.sampled_from([None, EventActions(escalate=True)]))})
        if asked.phase == "leave":
            return ModelReply(after=self.draw(st.sampled_from([None, said])))
        if asked.phase == "enter":
            shape = self.shape if work.index == 0 else work.shape
            if self.draw(st.integers(0, 9)) == 0:
                return ModelReply(before=said, skipped=True)
            if shape.kind != "llm":
                return ModelReply(shape=shape, before=self.draw(st.sampled_from([None, said])))
            reply = self._said(work)
            return reply.model_copy(update={"shape": self.draw(st.sampled_from([None, AgentShape(name=shape.name)]))})
        return self._said(work)

    def _said(self, work: Work) -> ModelReply:
        kinds = self.draw(st.lists(st.sampled_from(KINDS), max_size=4))
        calls, parts = [], []
        for number, kind in enumerate(kinds, work.calls_made + 1):
            call_id = ids.function_call(number, work.index)
            parts.append({"functionCall": {"id": call_id, "name": "tool", "args": {"n": number}}})
            match kind:
                case "gated":
                    calls.append(Call(id=call_id, confirmation=Confirmation(hint="ok?"), deadline_s=100))
                case "answered":
                    calls.append(Call(id=call_id, kind="answered", response={"error": "unknown"}))
                case "transfer":
                    handed: JsonObject = {
                        "actions": EventActions(transfer_to_agent="other"),
                        "transfer": self.draw(SHAPES),
                    }
                    calls.append(Call(id=call_id, kind="answered", response={"result": None}, **handed))
                case "long_running":
                    calls.append(Call(id=call_id, kind="long_running", deadline_s=100, model_id=f"model-{call_id}"))
                case "agent":
                    calls.append(Call(id=call_id, kind="agent", agent="helper", after=self.draw(st.booleans())))
                case _:
                    calls.append(Call(id=call_id))
        closing = Said(content={"role": "model", "parts": [{"text": "{}"}]}) if kinds == ["answered"] else None
        content: JsonObject = {"role": "model", "parts": parts or [{"text": "hm"}]}
        usage = Usage(total_tokens=self.draw(st.integers(0, MAX_TOKENS)))
        said: dict[str, Any] = {"content": content, "calls": tuple(calls), "closing": closing}
        return ModelReply(**said, compaction=self._compaction(work), usage=usage, attempt=1)

    def _compaction(self, work: Work) -> Compaction | None:
        """Summarise as the activity does, before the model is asked; the log may have grown meanwhile."""
        log = self.simulation.whole
        retention = self.draw(st.sampled_from([None, 0, 1, 3]))
        chosen = None if retention is None else Conversed.of(log, work).over_threshold(retention)
        if chosen is None:
            return None
        made = chosen.compaction(content=SUMMARY)
        summary = made.event("inv", work.branch)
        self.compacted.append(prompt.contents(log, agent=work.agent, branch=work.branch, summary=summary))
        return made

    def _outcome(self, ref: str, long_running: bool) -> ToolOutcome:
        value = self.draw(st.integers(0, 9))
        actions = EventActions(
            state_delta={self.draw(st.sampled_from("ab")): value},
            removed_keys=self.draw(st.sampled_from([(), ("s",)])),
            skip_summarization=self.draw(st.sampled_from([None, None, True])),
            escalate=self.draw(st.sampled_from([None, None, None, True])),
            transfer_to_agent=self.draw(st.sampled_from([None] * 7 + ["other"])),
            **self.draw(st.sampled_from(REQUESTS))(ref),
        )
        if long_running:
            response = self.draw(st.sampled_from([None, {"status": "pending"}]))
            return ToolOutcome(function_call_id=ref, response=response, final=False, actions=actions)
        return ToolOutcome(function_call_id=ref, response={"v": value}, actions=actions)


def shown(log: Log) -> tuple[list[JsonObject], JsonObject, list[JsonObject], tuple[str, ...]]:
    """Return all that readers see of a log, and the order of its entries."""
    pending = [call.model_dump(mode="json") for call in log.pending()]
    return [event.to_json() for event in log.events], log.state, pending, log.refs(log.entries_before)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_reader_of_the_history_builds_the_log_that_the_workflow_holds(data: st.DataObject) -> None:
    """In one go or in pieces, at the end or on the way: the projection equals the workflow's log."""
    simulation = Story(data).play()
    whole = Projection("inv")
    whole.feed(simulation.facts)
    whole.flush()
    assert shown(whole.log) == shown(simulation.whole)
    pieces = Projection("inv")
    start = 0
    while start < len(simulation.facts):
        size = data.draw(st.integers(1, 10))
        pieces.feed(simulation.facts[start : start + size])
        start += size
    pieces.flush()
    assert shown(pieces.log) == shown(simulation.whole)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_reader_of_the_last_run_alone_builds_what_the_workflow_still_holds(data: st.DataObject) -> None:
    """What earlier runs did is in what the last one carries; in segments, when their histories are gone."""
    simulation = Story(data).play()
    facts = simulation.facts[simulation.runs[-1] :]
    last = Projection("inv")
    last.feed(facts)
    last.flush()
    assert shown(last.log) == shown(simulation.log)
    if isinstance(facts[0], Started) and (read := facts[0].carried()):
        log = Log("inv")
        simulation.extend(log, read[1])
        whole = Projection("inv", log)
        whole.feed(facts)
        whole.flush()
        assert shown(whole.log) == shown(simulation.whole)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_an_activity_on_another_machine_builds_the_prompt_that_the_workflow_means(data: st.DataObject) -> None:
    """From positions and history alone, each model call sees the conversation as it was when it was scheduled."""
    simulation = Story(data).play()
    for position, turn, contents in simulation.prompts:
        view = simulation.view_at(position)
        work = view.works[turn]
        assert prompt.contents(view, agent=work.agent, branch=work.branch) == contents


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_model_never_sees_a_call_without_its_responses(data: st.DataObject) -> None:
    """In every request each turn of calls is followed at once by one response to each of them, in their order."""
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
        # An agent that works twice, or whose callbacks spoke first, may have had the last word itself.
        spoke_before = any(event.content == BY_THE_WAY for event in simulation.whole.events)
        assert contents[-1]["role"] == "user" or spoke_before or len(simulation.log.works) > 1


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_call_of_an_ended_invocation_has_its_last_response(data: st.DataObject) -> None:
    """Nothing stays open: answered, refused, expired, lost or sealed, each call is closed exactly once."""
    simulation = Story(data).play()
    if not simulation.finished:
        return
    log = simulation.whole
    assert log.waiting() == []
    answered = [part["id"] for event in log.events for part in event.function_responses()]
    for call in log.calls.values():
        assert call.closed
        assert call.id in answered or ids.is_budget(call.id)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_an_event_lists_its_responses_in_call_order(data: st.DataObject) -> None:
    """Whatever finished first."""
    for event in Story(data).play().whole.events:
        if event.author == "user":
            continue
        numbers = [int(part["id"].split("-")[-1]) for part in event.function_responses()]
        assert numbers == sorted(numbers)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_an_answer_counts_at_most_once(data: st.DataObject) -> None:
    """However often and on whichever channel a call is answered, one final answer counts for each time that it asks."""
    simulation = Story(data).play()
    finals = Counter(
        entry.body.function_call_id
        for entry in simulation.whole.entries
        if isinstance(entry.body, AnswerCounted) and entry.body.answer.action != "progress"
    )
    for call_id, count in finals.items():
        call = simulation.whole.calls[call_id]
        # It asks before it first runs when it is gated, and each run may end with asking.
        assert count <= (call.call.confirmation is not None) + call.run + 1


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_summary_hides_neither_the_users_message_nor_a_call_that_waits(data: st.DataObject) -> None:
    """However many events it stands for; and every event stays in the log."""
    story = Story(data)
    log = story.play().whole
    for contents in story.compacted:
        assert {"role": "user", "parts": [{"text": "go"}]} in contents
    waiting = {call.id for call in log.waiting()}
    for branch in {work.branch for work in log.works}:
        indices = hidden(log.events, standing(log.events, branch))
        gone = {call["id"] for index in indices for call in log.events[index].function_calls()}
        assert waiting.isdisjoint(gone)
        stay = [event for index, event in enumerate(log.events) if index not in indices]
        assert gone.isdisjoint(response["id"] for event in stay for response in event.function_responses())


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_nothing_is_spent_beyond_the_budget_but_what_was_in_flight(data: st.DataObject) -> None:
    """A limit is passed by what each agent had begun when it was reached, and by one last reply each; no tool runs."""
    log = Story(data).play().log
    most = MAX_TOKENS * 2 * len(log.works)
    limits = log.budget.limits()
    assert log.spent.total_tokens <= limits.get("max_total_tokens", log.spent.total_tokens) + most
    assert log.spent.tool_calls <= limits.get("max_tool_calls", log.spent.tool_calls)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_reader_counts_the_same_spending(data: st.DataObject) -> None:
    """Each entry counts once, on whatever way it is read; only who knows the times knows the time worked."""
    simulation = Story(data).play()
    projection = Projection("inv")
    projection.feed(simulation.facts)
    projection.flush()
    assert projection.log.spent == simulation.log.spent
    untimed = Log("inv", timed=False)
    for entry in simulation.whole.entries:
        untimed.append(entry.ref, 0.0, entry.body)
    assert untimed.spent == simulation.log.spent.model_copy(update={"working_s": untimed.spent.working_s})
