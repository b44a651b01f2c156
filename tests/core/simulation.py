"""A workflow and its server without either: things arrive in any order, tasks process them, a history is written.

It follows Temporal's rules: what arrives is recorded at once; a workflow task is given messages before results;
commands come after. So the core can be tried on thousands of interleavings a minute.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from waystation.core import approval, ids, projection, prompt, results
from waystation.core.answer import parse_answer
from waystation.core.entry import AnswerCounted, AnswerIgnored, Began, CancelRequested, Ended, Failure, ModelCalled
from waystation.core.errors import AnswerRefused
from waystation.core.log import Log
from waystation.core.model_call import ModelCallInput, ModelReply, Position
from waystation.core.payload import JsonObject
from waystation.core.projection import Fact, Sources, catch_up
from waystation.core.step import CallModel, Cancel, Fail, Finish, Perform, Step, Wait, next_step
from waystation.core.tool_call import ToolOutcome
from waystation.core.wire import InvocationInput, InvocationResult


@dataclass
class Simulation:
    """One invocation. The test decides what arrives and when a task runs."""

    input: InvocationInput
    now: float = 1_000.0
    facts: list[Fact] = field(default_factory=list)
    """The history."""
    prompts: list[tuple[Position, int, list[JsonObject]]] = field(default_factory=list)
    """What the workflow's own log would show the model, at each call, and whose model it is."""
    steps: list[Step] = field(default_factory=list)
    finished: bool = False
    cancel_asked: bool = False

    def __post_init__(self) -> None:
        self.log = Log("inv")
        self.in_flight: dict[str, str] = {}
        """Reference to `model`, `tool` or `child`."""
        self.asked: dict[str, CallModel] = {}
        """Reference of a model activity to what it is asked for."""
        self._messages: list[Fact] = []
        self._updates: list[bytes] = []
        self._results: list[Fact] = []
        self._told = self._signals = self._update_count = self._marks = 0
        self._arrive(projection.Started([self.input.encode()]))

    # What the outside does.

    def reply(self, ref: str, reply: ModelReply) -> None:
        """Have a model activity return."""
        self._arrive(projection.Returned(ref, reply.model_copy(update={"mark": self._mark()}).encode()))

    def tool_returns(self, ref: str, outcome: ToolOutcome) -> None:
        """Have a tool report."""
        marked = outcome.model_copy(update={"mark": self._mark()})
        self._arrive(projection.Returned(ref, marked.encode()))

    def child_returns(self, ref: str, result: InvocationResult) -> None:
        """Have a called agent finish."""
        self._arrive(projection.Returned(ref, result.encode(), child=True))

    def lose(self, ref: str, failure: Failure) -> None:
        """Have an activity fail."""
        self._arrive(projection.Lost(ref, failure))

    def signal(self, name: str, *payloads: bytes) -> None:
        """Send a signal."""
        self._arrive(projection.Signalled(name, payloads))

    def answer(self, **answer: Any) -> None:
        """Answer by signal."""
        self.signal("answer", json.dumps(answer).encode())

    def update(self, **answer: Any) -> None:
        """Answer by update; it is judged when a task runs."""
        self._updates.append(json.dumps(answer).encode())

    def cancel(self) -> None:
        """Ask the invocation to end."""
        self.cancel_asked = True
        self._arrive(projection.CancelAsked())

    def fire_timer(self) -> None:
        """Let the deadline's timer fire, when it is due."""
        deadline = self.log.next_deadline()
        if deadline is not None and deadline <= self.now:
            self._arrive(projection.TimerFired())

    def _arrive(self, fact: Fact) -> None:
        self.facts.append(fact)
        match fact:
            case projection.Signalled():
                self._messages.append(fact)
            case projection.Returned() | projection.Lost():
                self.in_flight.pop(fact.ref)
                self._results.append(fact)
            case _:
                self._results.append(fact)

    def _mark(self) -> str:
        self._marks += 1
        return f"{self._marks:x}"

    # What the workflow does.

    def task(self) -> None:
        """Run one workflow task: apply what arrived, issue commands."""
        self.facts.append(projection.TaskCompleted(self.now))
        for fact in self._messages:
            self._apply(fact)
        for data in self._updates:
            self._apply_update(data)
        for fact in self._results:
            self._apply(fact)
        self._messages, self._updates, self._results = [], [], []
        self._loop()

    def _apply(self, fact: Fact) -> None:
        match fact:
            case projection.Started():
                self.log.record(ids.START, self.now, Began(self.input))
            case projection.Signalled():
                self._signals += 1
                ref = ids.signalled(self._signals)
                self.log.advance(self.now)
                body = approval.decide_signal(self.log, fact.name, fact.payloads, self.now)
                self.log.record(ids.ignored(ref) if isinstance(body, AnswerIgnored) else ref, self.now, body)
            case projection.CancelAsked():
                self.log.record(ids.CANCEL, self.now, CancelRequested())
            case projection.TimerFired():
                self.log.advance(self.now)
            case _:
                result = projection.result_of(fact)  # type: ignore[arg-type]  # only results are left
                self.log.record(results.reference(fact.ref, result), self.now, result)  # type: ignore[union-attr]

    def _apply_update(self, data: bytes) -> None:
        try:
            answer = parse_answer(data)
            call = approval.check(self.log, answer, self.now)
        except AnswerRefused:
            return
        self._update_count += 1
        self.facts.append(projection.UpdateAccepted([data]))
        self.log.record(ids.updated(self._update_count), self.now, AnswerCounted(call.id, answer))

    def _loop(self) -> None:
        while True:
            step = next_step(self.log)
            assert next_step(self.log) == step, "deciding twice gives the same step"
            self.steps.append(step)
            match step:
                case CallModel(turn, phase):
                    self.asked[ids.model_replied(self.log.steps + 1)] = step
                    number = self.log.steps + 1
                    position = self._position()
                    work = self.log.works[turn]
                    shown = prompt.contents(self.log, agent=work.agent, branch=work.branch)
                    self.prompts.append((position, turn, shown))
                    given = ModelCallInput(
                        agent=work.agent,
                        root="ag",
                        number=number,
                        turn=turn,
                        phase=phase,
                        at=position.at,
                        new=position.new,
                    )
                    self.log.record(ids.model_called(number, turn), self.now, ModelCalled(number, turn))
                    self._schedule(ids.model_replied(number), given, "model")
                case Perform(calls):
                    for call_id in calls:
                        call = self.log.calls[call_id]
                        activity_id = ids.performance(call_id, call.run)
                        if activity_id in self.in_flight:
                            continue
                        if call.call.kind == "agent" and not call.run:
                            self.in_flight[activity_id] = "child"
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
        self.facts.append(projection.Scheduled(ref, position.encode(), kind == "model"))

    def _position(self) -> Position:
        start, self._told = self._told, len(self.log.entries)
        return Position(at=start, new=self.log.refs(start))

    def _end(self, status: Any) -> None:
        self.finished = True
        self.facts.append(projection.Closed(status, self.now))
        self.log.record(ids.END, self.now, Ended(status))

    # What readers make of it.

    def view_at(self, wanted: Position) -> Log:
        """Return the log as an activity on another machine sees it, from the history so far."""
        log, sources = Log("inv"), Sources()
        for fact in self.facts:
            sources.learn(fact)
            if isinstance(fact, projection.Scheduled):
                position = projection.position_of(fact)
                assert catch_up(log, position, sources, 0.0)
                if position == wanted:
                    return log
        raise AssertionError("no command has this position")
