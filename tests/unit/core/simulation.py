"""Simulate a workflow and its server: input arrives in any order, tasks process it, and a history is written.

The simulation follows Temporal's rules. What arrives is recorded at once, a workflow task receives messages before
results, and commands come afterward. The core can run thousands of interleavings a minute this way.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from waystation.core.approval import Verification, parse_answer
from waystation.core.contract import (
    InvocationInput,
    InvocationResult,
    ModelCallInput,
    ModelReply,
    Position,
    SegmentRef,
    ToolOutcome,
)
from waystation.core.conversation import prompt
from waystation.core.errors import AnswerRefused
from waystation.core.log import (
    CANCEL,
    END,
    START,
    AnswerVerified,
    Began,
    Body,
    CallModel,
    CallRef,
    Cancel,
    CancelRequested,
    Ended,
    Fail,
    Failure,
    Finish,
    Log,
    MessageRef,
    ModelCalled,
    ModelCallRef,
    ModelReplyRef,
    NoticeReport,
    Perform,
    Step,
    VerificationRef,
    VerificationRequested,
    Wait,
    decision,
    intake,
    latest_notifications,
    next_step,
    question_of,
)
from waystation.core.log.budget_use import model_calls
from waystation.core.payload import JsonObject
from waystation.core.projection import (
    Carried,
    ChildOutcome,
    Fact,
    Snapshot,
    Sources,
    catch_up,
    entries_from_json,
    entries_to_json,
    extend_log,
    facts,
    pack_entries,
    projection,
    with_attempt,
)


@dataclass
class Simulation:
    """A simulated invocation. The test decides what arrives and when a workflow task runs."""

    input: InvocationInput
    now: float = 1_000.0
    facts: list[Fact] = field(default_factory=list)
    """The history of all runs."""
    runs: list[int] = field(default_factory=lambda: [0])
    """The index in `facts` at which each run begins."""
    store: dict[str, bytes] = field(default_factory=dict)
    prompts: list[tuple[Position, int, list[JsonObject]]] = field(default_factory=list)
    """For each model call, its position, its agent run, and the contents that the workflow's own log gives."""
    steps: list[Step] = field(default_factory=list)
    finished: bool = False
    cancel_asked: bool = False
    run_locally: Callable[[list[str]], list[tuple[str, float, ToolOutcome | None]]] = lambda refs: []
    """Runs local activities. Returns them in the order in which they end, with the time since the start of the task and
    the result, or None if it failed."""

    def __post_init__(self) -> None:
        self.log = Log("inv")
        self.in_flight: dict[str, str] = {}
        """Maps each reference to `model`, `tool` or `child`."""
        self.questions: dict[str, int] = {}
        """Maps the reference of each submitted answer to the question that was open, as the activity reads it."""
        self.asked: dict[str, CallModel] = {}
        """Maps the reference of each model activity to its step."""
        self._local: list[str] = []
        self._messages: list[Fact] = []
        self._updates: list[bytes] = []
        self._results: list[Fact] = []
        self.whole = Log("inv")
        """The log that the invocation would have without continue-as-new."""
        self._cut_wanted = self._inline = False
        self._carried: Carried | None = None
        self._told = self._signals = self._update_count = self._marks = 0
        self._arrive(facts.Started([self.input.encode()]))

    # Events from outside the workflow.

    def reply(self, ref: str, reply: ModelReply) -> None:
        """Complete a model activity."""
        self._arrive(facts.Returned(ref, reply.model_copy(update={"mark": self._mark()}).encode()))

    def tool_returns(self, ref: str, outcome: ToolOutcome) -> None:
        """Complete a tool activity."""
        marked = outcome.model_copy(update={"mark": self._mark()})
        self._arrive(facts.Returned(ref, marked.encode()))

    def verification_returns(self, ref: str, verification: Verification) -> None:
        """Complete the verification of an answer."""
        self._arrive(facts.Returned(ref, verification.model_copy(update={"mark": self._mark()}).encode()))

    def notification_returns(self, ref: str, report: NoticeReport) -> None:
        """Complete a notification."""
        self._arrive(facts.Returned(ref, report.model_copy(update={"mark": self._mark()}).encode()))

    def child_returns(self, ref: str, result: InvocationResult) -> None:
        """Complete a called agent."""
        if self._carried and ref in self._carried.children:
            outcome = ChildOutcome(result=result.model_dump(mode="json"))
            self._arrive(facts.Returned(ref, outcome.encode(), followed=True))
        else:
            self._arrive(facts.Returned(ref, result.encode(), child=True))

    def cut(self, *, inline: bool) -> None:
        """Let the next task continue the run as new if it can; the last entries may stay unarchived."""
        self._cut_wanted, self._inline = True, inline

    def lose(self, ref: str, failure: Failure) -> None:
        """Fail an activity."""
        self._arrive(facts.Lost(ref, failure))

    def signal(self, name: str, *payloads: bytes) -> None:
        """Send a signal."""
        self._arrive(facts.Signalled(name, payloads))

    def answer(self, **answer: Any) -> None:
        """Answer by signal."""
        self.signal("answer", json.dumps(answer).encode())

    def update(self, **answer: Any) -> None:
        """Send an answer as an update; the next task accepts or rejects it."""
        self._updates.append(json.dumps(answer).encode())

    def cancel(self) -> None:
        """Request cancellation of the invocation."""
        self.cancel_asked = True
        self._arrive(facts.CancelAsked())

    def fire_timer(self) -> None:
        """Fire the deadline timer if it is due."""
        deadline = self.log.state.next_deadline()
        if deadline is not None and deadline <= self.now:
            self._arrive(facts.TimerFired())

    def _arrive(self, fact: Fact) -> None:
        self.facts.append(fact)
        match fact:
            case facts.Signalled():
                self._messages.append(fact)
            case facts.Returned() | facts.Lost():
                self.in_flight.pop(fact.ref)
                self._results.append(fact)
            case _:
                self._results.append(fact)

    def _mark(self) -> str:
        self._marks += 1
        return f"{self._marks:x}"

    # The workflow itself.

    def task(self) -> None:
        """Run one workflow task: apply what arrived, issue commands."""
        self.facts.append(facts.TaskCompleted(self.now))
        for fact in self._messages:
            self._apply(fact)
        for data in self._updates:
            self._apply_update(data)
        for fact in self._results:
            self._apply(fact)
        self._messages, self._updates, self._results = [], [], []
        self._follow()
        if self._cut_wanted and self._can_be_cut():
            self._cut()
        self._loop()
        self._follow()
        while self._local:
            self._end_local()
            self._loop()
            self._follow()

    def _end_local(self) -> None:
        """Complete the local activities of the task; their results are applied in call order."""
        refs, self._local = self._local, []
        results: dict[str, facts.Returned | None] = {}
        start = self.now
        for ref, after, outcome in self.run_locally(refs):
            marked = outcome and outcome.model_copy(update={"mark": self._mark()})
            results[ref] = facts.Returned(ref, marked.encode()) if marked else None
            self.facts.append(facts.RanLocally(results[ref], start + after, refs.index(ref)))
            self.now = max(self.now, start + after)
        for ref in refs:
            del self.in_flight[ref]
            if result := results[ref]:
                self._apply(result)
            else:
                self._schedule(ref, self._position(), "tool")

    def _follow(self) -> None:
        """Feed new entries to the uncut log, and compare the decisions and the state of both logs."""
        for entry in self.log.since(self.whole.length):
            self.whole.append(entry.ref, entry.time, entry.body)
        if not self.finished:
            assert next_step(self.log) == next_step(self.whole)
        assert self.log.state.result() == self.whole.state.result()
        assert self.log.state.pending() == self.whole.state.pending()
        assert self.log.state.session.values == self.whole.state.session.values
        assert self.log.state.next_deadline() == self.whole.state.next_deadline()
        assert model_calls(self.log.state) == model_calls(self.whole.state)
        assert [event.id for event in self.log.state.events] == [
            e.id for e in self.whole.state.events[self.log.state.events_before :]
        ]

    def _can_be_cut(self) -> bool:
        """Return whether the invocation has not ended and only called agents are in flight."""
        going = all(kind == "child" and ref not in self.log.state.runs.unwanted for ref, kind in self.in_flight.items())
        return going and isinstance(next_step(self.log), CallModel | Perform | Wait)

    def _cut(self) -> None:
        self._cut_wanted = False
        before = self._carried
        at = sum(segment.entries for segment in before.segments) if before else 0
        fresh = [*entries_from_json(before.tail), *self.log.entries] if before else self.log.entries
        segments, tail = before.segments if before else (), fresh
        if not self._inline:
            data = pack_entries(fresh)
            ref = SegmentRef(digest=hashlib.sha256(data).hexdigest(), size=len(data), entries=len(fresh))
            self.store[ref.digest] = data
            segments, tail = (*segments, ref), []
        assert at + len(fresh) == self.log.length
        carried = Carried(
            run_id=f"run-{len(self.runs)}",
            snapshot=Snapshot.of(self.log),
            signals=self._signals,
            updates=self._update_count,
            segments=segments,
            tail=tuple(entries_to_json(tail)),
            children={ref: f"run of {ref}" for ref in self.in_flight},
        )
        assert self.log.state.input is not None
        params = carried.input(self.log.state.input)
        self.facts.append(facts.Closed("continued", self.now))
        self.runs.append(len(self.facts))
        started = facts.Started([params], continues=True)
        self.facts += [started, facts.TaskCompleted(self.now)]
        read = started.carried()
        assert read is not None
        began, self._carried = read
        self.log = self._carried.snapshot.restored("inv", began)
        self._told = self.log.length
        self.in_flight.clear()

    def _apply(self, fact: Fact) -> None:
        match fact:
            case facts.Started():
                self.log.record(START, self.now, Began(self.input))
            case facts.Signalled():
                self._signals += 1
                ref = MessageRef("s", self._signals)
                self.log.advance(self.now)
                body = intake.decide_signal(self.log, fact.name, fact.payloads, self.now)
                self._take(ref, body)
            case facts.CancelAsked():
                self.log.record(CANCEL, self.now, CancelRequested())
            case facts.TimerFired():
                self.log.advance(self.now)
            case _:
                assert isinstance(fact, facts.Returned | facts.Lost)
                activity, result = projection.result_entry(fact)
                if isinstance(result, AnswerVerified):
                    self.log.advance(self.now)
                    result = decision.decide_verified(self.log, result.ref, result.review, self.now)
                self.log.record(with_attempt(activity, result), self.now, result)

    def _apply_update(self, data: bytes) -> None:
        try:
            answer = parse_answer(data)
            body = decision.accept(self.log, answer, self.now)
        except AnswerRefused:
            return
        self._update_count += 1
        self.facts.append(facts.UpdateAccepted([data]))
        self._take(MessageRef("u", self._update_count), body)

    def _take(self, ref: MessageRef, body: Body) -> None:
        self.log.record(decision.ref_with_verdict(ref, body), self.now, body)
        if isinstance(body, VerificationRequested):
            self.questions[str(ref)] = question_of(self.log.state.calls[body.function_call_id])
            self._schedule(str(VerificationRef(ref)), self._position(), "review")

    def _loop(self) -> None:
        while True:
            for due in latest_notifications(self.log.state.approvals.due):
                self._schedule(str(due.ref), self._position(), "notice")
            self.log.state.approvals.due.clear()
            step = next_step(self.log)
            assert next_step(self.log) == step, "deciding twice gives the same step"
            self.steps.append(step)
            match step:
                case CallModel(turn, phase, wrap_up):
                    self.asked[str(ModelReplyRef(self.log.state.steps + 1))] = step
                    number = self.log.state.steps + 1
                    position = self._position()
                    work = self.log.state.runs[turn]
                    self._follow()
                    contents = prompt.contents(self.whole, agent=work.agent, branch=work.branch)
                    self.prompts.append((position, turn, contents))
                    params = ModelCallInput(
                        agent=work.agent,
                        root="ag",
                        number=number,
                        turn=turn,
                        phase=phase,
                        wrap_up=wrap_up,
                        at=position.at,
                        new=position.new,
                    )
                    called = ModelCalled(number, turn, wrap_up is not None)
                    self.log.record(ModelCallRef(number, turn, called.wrap_up), self.now, called)
                    self._schedule(str(ModelReplyRef(number)), params, "model")
                case Perform(calls):
                    for call_id in calls:
                        call = self.log.state.calls[call_id]
                        activity_id = str(CallRef(call_id, call.run))
                        if activity_id in self.in_flight:
                            continue
                        if call.call.kind == "agent" and not call.run:
                            if self._carried and call_id in self._carried.children:
                                self._schedule(activity_id, self._position(), "child")
                            self.in_flight[activity_id] = "child"
                        elif call.call.quick and not call.run:
                            self.in_flight[activity_id] = "local"
                            self._local.append(activity_id)
                        else:
                            self._schedule(activity_id, self._position(), "tool")
                    return
                case Wait():
                    return
                case Finish():
                    return self._end("completed")
                case Fail():
                    return self._end("failed")
                case Cancel():
                    return self._end("cancelled")

    def _schedule(self, ref: str, position: Position, kind: str) -> None:
        self.in_flight[ref] = kind
        self.facts.append(facts.Scheduled(ref, position.encode(), kind == "model"))

    def _position(self) -> Position:
        start, self._told = self._told, self.log.length
        return Position(at=start, new=self.log.refs(start))

    def _end(self, status: Any) -> None:
        self.finished = True
        self.facts.append(facts.Closed(status, self.now))
        self.log.record(END, self.now, Ended(status))

    # Views of readers.

    def view_at(self, wanted: Position) -> Log:
        """Return the log as an activity on another machine sees it, from the history so far."""
        log, sources = Log("inv", timed=False), Sources()
        for fact in self.facts:
            sources.learn(fact)
            if isinstance(fact, facts.Started) and (read := fact.carried()):
                sources.continue_from(read[1])
                log = Log("inv")
                self.extend(log, read[1])
            if isinstance(fact, facts.Scheduled):
                position = projection.position_of(fact)
                assert catch_up(log, position, sources, 0.0)
                if position == wanted:
                    return log
        raise AssertionError("no command has this position")

    def extend(self, log: Log, carried: Carried) -> None:
        """Add the earlier entries to a log, up to a cut."""

        async def fetch(digest: str) -> bytes:
            return self.store[digest]

        with contextlib.suppress(StopIteration):
            extend_log(log, carried, fetch).send(None)
