"""Everything that decisions about an invocation depend on, as plain data.

Only the reducers change it: `agent_runs`, `budget_use`, `function_calls`, `model_replies`, `answers` and `log`. It
refers to agent runs by index and to calls by id, so a snapshot is its dump.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from waystation.core import ids
from waystation.core.activity_io import AgentShape, ModelReply, Phase, Said
from waystation.core.approval.answer import Answer, PendingCall
from waystation.core.approval.notification import Due
from waystation.core.approval.policy import StandingApproval
from waystation.core.budget import NO_USAGE, NOTHING, NOTHING_SPENT, Budget, Grant, Spent, Usage, Used
from waystation.core.call import CallState
from waystation.core.conversation.event import NO_ACTIONS, Event, EventActions, text_of
from waystation.core.log.entry import EndStatus, Failure
from waystation.core.payload import JsonObject
from waystation.core.scope import ScopeDelta, split, writes_scopes
from waystation.core.wire import InvocationInput, InvocationResult

NOBODY = "waystation"
"""Author of the events of an invocation that no agent could begin."""
TEMPORARY = "temp:"
"""Keys with this prefix live for one invocation, pauses included, and never leave it."""


@dataclass(slots=True)
class AgentRun:
    """One agent at work inside an invocation.

    Runs form a tree: the children of a workflow agent are the agents that it runs, those of an LLM agent the agents it
    transferred to. An agent that runs twice, in a loop, has two runs.
    """

    index: int
    """Runs are numbered as they begin."""
    shape: AgentShape
    parent: int | None = None
    branch: str | None = None
    entered_at: int = 0
    """Number of events when it began."""
    children: list[int] = field(default_factory=list)
    entered: bool = False
    """Its shape is known and its `before_agent` callbacks have run."""
    started: int = 0
    """How many of the shape's children were begun; in a loop, in the current round."""
    rounds: int = 0
    """How many rounds of a loop were begun."""
    begun_before_round: int = 0
    """How many LLM agents had begun in the invocation when the current round did."""
    escalated: bool = False
    finished: bool = False
    """It begins no further child."""
    spoken_for: bool = False
    """`before_agent` callbacks answered for it, so it has nothing to do."""
    left: bool = False
    """Its `after_agent` callbacks have run."""
    over: bool = False
    calls_made: int = 0
    batch: list[str] = field(default_factory=list)
    """Ids of the calls of the latest reply, and of earlier calls that run again."""
    open: list[str] = field(default_factory=list)
    """Ids of the calls that wait for a person or may still be answered by one."""
    held: list[tuple[str, list[JsonObject]]] = field(default_factory=list)
    """Responses (author, parts) that arrived while the model or a tool was busy; they follow in order."""
    closing: Said | None = None
    """What it says once its calls have responses; then it is done."""
    in_flight: int | None = None
    """Number of the activity in flight for it: a model call, or callbacks around it."""
    phase_in_flight: Phase | None = None
    wrapping: bool = False
    """Its model is being asked to wrap up."""
    wrapped: bool = False
    """It has been asked to."""
    unread: bool = False
    """Something arrived that its model has not seen."""

    @property
    def agent(self) -> str:
        """Name of the agent."""
        return self.shape.name

    def asks_model(self, phase: Phase | None, reply: ModelReply | None) -> bool:
        """Whether an activity in `phase` asks a model, rather than running callbacks or entering a workflow agent.

        `reply` is its result; None while it is in flight, or when it was lost.
        """
        shape = (reply.shape if reply else None) or self.shape
        return shape.kind == "llm" and phase != "leave" and not (reply and reply.skipped)


@dataclass(slots=True)
class AgentRuns:
    """The agent runs of an invocation."""

    by_index: dict[int, AgentRun] = field(default_factory=dict)
    """A snapshot keeps those that are not over."""
    active: list[int] = field(default_factory=list)
    """Those that are not over, in the order in which they began."""
    begun: int = 0
    llm_begun: int = 0
    spoken_for: int = 0
    """How often callbacks answered for an agent, so that its model was not called."""
    next_turn: str | None = None
    """The agent that the user's next message goes to."""
    asked: dict[int, int] = field(default_factory=dict)
    """For each model activity in flight, by number: the agent run."""
    unwanted: set[str] = field(default_factory=set)
    """Ids of activities whose results no agent waits for any more."""

    def __getitem__(self, index: int) -> AgentRun:
        return self.by_index[index]

    def at_work(self) -> list[AgentRun]:
        """Return the active runs."""
        return [self.by_index[index] for index in self.active]

    def is_over(self, index: int) -> bool:
        """Whether a run is over."""
        return index not in self.by_index or self.by_index[index].over


@dataclass(slots=True)
class SessionState:
    """The state that tools read and write, and which of it was stored elsewhere."""

    values: JsonObject = field(default_factory=dict)
    """`temp:` keys included. Replaced, never modified: running tools hold earlier values."""
    changed: dict[str, None] = field(default_factory=dict)
    """Keys set or removed since the start."""
    scope_writes: list[int] = field(default_factory=list)
    """Numbers of the events that wrote to `user:` or `app:` state; event 0 is the start."""
    scopes_flushed: int = -1
    """Number of the last event whose writes were delivered to `user:` and `app:` state."""

    def apply(self, actions: EventActions | None) -> None:
        """Apply a delta, key by key."""
        if actions is None or not (actions.state_delta or actions.removed_keys):
            return
        self.values = {**self.values, **actions.state_delta}
        for key in actions.removed_keys:
            self.values.pop(key, None)
        self.changed.update(dict.fromkeys((*actions.state_delta, *actions.removed_keys)))

    def underlay(self, stored: JsonObject) -> None:
        """Put stored state below what the invocation was started with; it is not a change."""
        self.values = {**stored, **self.values}

    def since_start(self) -> tuple[JsonObject, tuple[str, ...]]:
        """Return the values set and the keys removed, `temp:` keys left out."""
        lasting = [key for key in self.changed if not key.startswith(TEMPORARY)]
        return (
            {key: self.values[key] for key in lasting if key in self.values},
            tuple(key for key in lasting if key not in self.values),
        )


@dataclass(slots=True)
class ApprovalState:
    """Answers in verification, approvals that cover later calls, and due notifications."""

    submitted: dict[str, Answer] = field(default_factory=dict)
    """Answers in verification, by the reference of their message."""
    standing: tuple[StandingApproval, ...] = ()
    """Remembered approvals, including those of called agents."""
    channels: tuple[str, ...] = ()
    """Channels that are notified when a policy names none."""
    due: list[Due] = field(default_factory=list)
    """Notifications that nobody has scheduled yet."""


class Share(NamedTuple):
    """What a called agent may use of the remaining budget."""

    budget: Budget
    working_s: float
    """Working time of the caller when the agent was called."""


@dataclass(slots=True)
class BudgetState:
    """What the invocation has used, and what was done about it."""

    timed: bool = True
    """Entries carry the workflow's times. Only wall time depends on them; nothing a model sees does."""
    granted: Grant = NOTHING
    """What people allowed beyond the budget."""
    asks: int = 0
    """How often a person was asked for more."""
    ask: str | None = None
    """Id of the latest such question."""
    denied: bool = False
    """A person refused more, or did not answer."""
    turned_away: bool = False
    """A call was refused because there were too many."""
    wrapped_up: str | None = None
    """Why agents were asked to wrap up."""
    spent: Spent = NOTHING_SPENT
    """Without working time."""
    shares: dict[str, Share] = field(default_factory=dict)
    """For each called agent at work, by function call id."""
    working_s: float = 0.0
    working_since: float | None = None


@dataclass(slots=True)
class OutcomeState:
    """The result so far, and whether the invocation ends."""

    usage: Usage = NO_USAGE
    output: JsonObject | None = None
    """The latest structured answer."""
    last_said: Event | None = None
    """The latest event in which an agent says something or fails."""
    artifact_delta: dict[str, int] = field(default_factory=dict)
    failure: Failure | None = None
    concluded: bool = False
    """The invocation ends although agents are at work."""
    cancelled: bool = False
    ended: EndStatus | None = None


@dataclass(slots=True)
class InvocationState:
    """The fold of an invocation's log."""

    invocation_id: str = ""
    input: InvocationInput | None = None
    session: SessionState = field(default_factory=SessionState)
    runs: AgentRuns = field(default_factory=AgentRuns)
    calls: dict[str, CallState] = field(default_factory=dict)
    approvals: ApprovalState = field(default_factory=ApprovalState)
    budget_use: BudgetState = field(default_factory=BudgetState)
    outcome: OutcomeState = field(default_factory=OutcomeState)
    events: list[Event] = field(default_factory=list)
    """Those since `events_before`."""
    events_before: int = 0
    """How many events precede them; none, unless the state was restored from a snapshot."""
    steps: int = 0
    """How many model activities were scheduled."""
    ignored: int = 0
    """How many answers were ignored."""

    @property
    def agent(self) -> str:
        """Name of the agent that was started."""
        return self.input.agent if self.input else NOBODY

    @property
    def root(self) -> str:
        """Name of the root agent in whose tree the agents at work are found."""
        return (self.input.root or self.input.agent) if self.input else ""

    @property
    def over(self) -> bool:
        """Whether every agent is done."""
        return bool(self.runs.begun) and self.runs.is_over(0)

    @property
    def event_count(self) -> int:
        """How many events there are."""
        return self.events_before + len(self.events)

    @property
    def budget(self) -> Budget:
        """What the invocation may use, with what people granted."""
        return (self.input.budget if self.input else Budget()).raised(self.budget_use.granted)

    @property
    def used(self) -> Used:
        """What the invocation has used and was granted."""
        spent = self.budget_use.spent.model_copy(update={"working_s": round(self.budget_use.working_s, 6)})
        return Used(spent=spent, granted=self.budget_use.granted)

    @property
    def models_at_work(self) -> dict[int, AgentRun]:
        """The agent runs whose models are at work, by number of the model call; stopped agents left out."""
        found = {number: self.runs[index] for number, index in self.runs.asked.items()}
        return {number: run for number, run in found.items() if not (run.over or self.outcome.ended)}

    def batch(self, run: AgentRun) -> list[CallState]:
        """Return the calls of an agent's latest reply, and earlier ones that run again."""
        return [self.calls[call_id] for call_id in run.batch]

    def open_calls(self) -> list[CallState]:
        """Return the calls that wait for a person or may still be answered by one, in the order of the agents."""
        found = [self.calls[call_id] for run in self.runs.at_work() for call_id in run.open]
        ask = self.calls[self.budget_use.ask] if self.budget_use.ask else None
        return [*found, ask] if ask and ask.waiting else found

    def waiting(self) -> list[CallState]:
        """Return the calls that wait for a person, in the order in which they were made."""
        return [call for call in self.open_calls() if call.waiting]

    def pending(self) -> list[PendingCall]:
        """Return the calls that wait for a person, as approvers see them."""
        if self.input is None:
            return []
        started = self.input
        return [
            call.pending(self.invocation_id, started.user_id, started.session_id, started.requester)
            for call in self.waiting()
        ]

    def performing(self) -> list[CallState]:
        """Return the calls that have to be, or are being, carried out."""
        idle = (run for run in self.runs.at_work() if run.in_flight is None)
        return [call for run in idle for call in self.batch(run) if call.performing and not call.held]

    def next_deadline(self) -> float | None:
        """Return when, at the earliest, time changes a pending call, in seconds since 1970."""
        return min((call.due for call in self.open_calls() if call.due is not None), default=None)

    def standing_of(self, origins: Iterable[str]) -> list[StandingApproval]:
        """Return the remembered approvals of these origins."""
        named = set(origins)
        return [approval for approval in self.approvals.standing if approval.origin in named]

    def result(self, reason: str | None = None) -> InvocationResult:
        """Return the result for the caller; `reason` when the invocation stopped early."""
        outcome, last, use = self.outcome, self.outcome.last_said, self.used
        error = last.error_message or last.error_code if last and last.error_code else None
        reason = reason or self.budget_use.wrapped_up or error
        delta, removed = self.session.since_start()
        return InvocationResult(
            status="stopped" if reason else "completed",
            reason=reason,
            text=text_of(last.content) if last else "",
            content=last.content if last else None,
            state_delta=delta,
            removed_keys=removed,
            usage=outcome.usage,
            spent=use.spent,
            granted=use.granted if use.granted != NOTHING else None,
            invocation_id=self.invocation_id,
            output=outcome.output,
            artifact_delta=dict(outcome.artifact_delta),
            standing=self.approvals.standing,
            next_agent=self.runs.next_turn if self.runs.next_turn != self.agent else None,
        )

    def unflushed(self) -> int | None:
        """Return the number of the last event with writes to `user:` or `app:` state that were not delivered.

        None when there is none, and for a called agent, which returns its state to its caller.
        """
        writes = self.session.scope_writes
        due = bool(writes) and writes[-1] > self.session.scopes_flushed
        return writes[-1] if due and self.input and self.input.origin is None else None

    def holds_scopes_back(self) -> bool:
        """Whether a call wrote to `user:` or `app:` state and waits for the other calls of its batch."""
        calls = (call for run in self.runs.at_work() for call in self.batch(run) if not call.flushed)
        return any(writes_scopes(call.outcome.actions) for call in calls if call.outcome)

    def scope_deltas(self, run_id: str, after: int, last: int) -> list[tuple[str, ScopeDelta]]:
        """Return the writes to scopes of the events after number `after`, up to `last`, with the prefix of the scope.

        `run_id` is the workflow run that delivers them.
        """
        deltas: list[tuple[str, ScopeDelta]] = []
        for number in self.session.scope_writes:
            if after < number <= last:
                actions = self.events[number - 1].actions if number else None
                written = actions.state_delta if actions else (self.input.state if self.input else {})
                removed = actions.removed_keys if actions else ()
                deltas.extend(split(ids.event(self.invocation_id, number), run_id, written, removed))
        return deltas


def emit(
    state: InvocationState,
    now: float,
    run: AgentRun | None,
    content: JsonObject | None,
    actions: EventActions | None = None,
    *,
    author: str | None = None,
    **fields: Any,
) -> None:
    """Append an event, by the run's agent unless another author is given."""
    actions = actions or NO_ACTIONS
    event = Event(
        id=ids.event(state.invocation_id, state.event_count + 1),
        invocation_id=state.invocation_id,
        author=author or (run.agent if run else "user"),
        timestamp=now,
        branch=run.branch if run else None,
        content=content,
        actions=actions,
        **fields,
    )
    state.events.append(event)
    state.outcome.artifact_delta.update(actions.artifact_delta)
    # A question for more budget is not something an agent says.
    asks_for_more = any(map(ids.is_budget, event.long_running_tool_ids or ()))
    if event.author != "user" and (event.content or event.error_code) and not asks_for_more:
        state.outcome.last_said = event
    if writes_scopes(actions):
        state.session.scope_writes.append(state.event_count)
