"""The state of an invocation as plain data.

Only the reducers change it: `agent_runs`, `budget_use`, `function_calls`, `model_replies`, `answers` and `log`. The
state refers to agent runs by index and to calls by ID, so that it can be dumped as a snapshot.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from waystation.core import ids
from waystation.core.approval import Answer, PendingCall, RememberedApproval, SignedRequest
from waystation.core.budget import NO_USAGE, NOTHING, NOTHING_SPENT, Budget, Grant, Spent, Usage, Used
from waystation.core.contract import (
    NO_ACTIONS,
    AgentSpec,
    CallbackResult,
    Event,
    EventActions,
    InvocationInput,
    InvocationResult,
    ModelReply,
    Phase,
    text_of,
)
from waystation.core.log.call import CallState
from waystation.core.log.entry import Endpoints, EndStatus, Failure
from waystation.core.log.notification import DueNotification, EventKind, OutgoingEvent
from waystation.core.payload import JsonObject
from waystation.core.scope_state import TEMPORARY, ScopeDelta, split, writes_scopes

NOBODY = "waystation"
"""Author of an invocation's events if no agent was able to start."""


@dataclass(slots=True)
class AgentRun:
    """One run of an agent within an invocation.

    Runs form a tree. The children of a workflow agent are the agents that it runs. The children of an LLM agent are the
    agents that it transferred to. An agent that runs twice in a loop has two runs.
    """

    index: int
    """Number of the run. Runs are numbered in the order they begin."""
    shape: AgentSpec
    parent: int | None = None
    branch: str | None = None
    entered_at: int = 0
    """Number of events in the invocation when the run began."""
    children: list[int] = field(default_factory=list)
    entered: bool = False
    """Whether the agent's spec is known and the `before_agent` callbacks have run."""
    started: int = 0
    """Number of children that have begun. In a loop, only the current round counts."""
    rounds: int = 0
    """Number of rounds that a loop has begun. A sequence has only one."""
    begun_before_round: int = 0
    """Number of LLM agents that had begun in the invocation when the current round began."""
    escalated: bool = False
    finished: bool = False
    """Whether no more children will begin, because all have begun or one of them escalated."""
    spoken_for: bool = False
    """Whether a `before_agent` callback answered for the agent, so that the agent has nothing to do."""
    left: bool = False
    """Whether the `after_agent` callbacks have run."""
    over: bool = False
    calls_made: int = 0
    batch: list[str] = field(default_factory=list)
    """Function call IDs of the calls in the latest reply, and of earlier calls that run again."""
    open: list[str] = field(default_factory=list)
    """Function call IDs of the calls that are waiting for an answer or can still get one."""
    held: list[tuple[str, list[JsonObject]]] = field(default_factory=list)
    """Author and parts of each response or message that arrived during a model or tool call. They are emitted, in
    order, when no such call is in progress anymore."""
    closing: CallbackResult | None = None
    """The agent's final content, which is emitted once all calls have responses."""
    in_flight: int | None = None
    """Number of the model activity in flight, or None."""
    phase_in_flight: Phase | None = None
    wrapping: bool = False
    """Whether the model activity in flight asks the model to wrap up."""
    wrapped: bool = False
    """Whether the model was asked to wrap up and has replied."""
    unread: bool = False
    """Whether something arrived that the model has not received yet."""
    asked_at: int = 0
    """For a custom agent: number of events in the invocation when its latest activity was scheduled, or 0 if its first
    activity was scheduled before the agent's kind was known."""
    segments: list[tuple[int, int, int, int]] = field(default_factory=list)
    """For a custom agent: the parts of its body that ended with a sub-agent. Each has the number of events in the
    invocation when the part began, before its first event and after its last event, and the sub-agent's run."""

    @property
    def agent(self) -> str:
        """Name of the agent."""
        return self.shape.name

    def asks_model(self, phase: Phase | None, reply: ModelReply | None) -> bool:
        """Return whether an activity in `phase` calls a model. If not, it runs callbacks or enters a workflow agent.

        `reply` is the result of the activity, or None if it is still in flight or was lost.
        """
        spec = (reply.shape if reply else None) or self.shape
        return spec.kind == "llm" and phase != "leave" and not (reply and reply.skipped)


@dataclass(slots=True)
class AgentRuns:
    """The agent runs of an invocation."""

    by_index: dict[int, AgentRun] = field(default_factory=dict)
    """All runs by their index. Snapshots leave out the runs that are over."""
    active: list[int] = field(default_factory=list)
    """Indices of the runs that are not over, in the order they began."""
    begun: int = 0
    llm_begun: int = 0
    spoken_for: int = 0
    """Number of times that a `before_agent` callback answered on behalf of an LLM agent."""
    rounds_alone: int = 0
    """The number of rounds without an LLM agent in loops without `max_iterations`."""
    next_turn: str | None = None
    """The agent that will receive the user's next message, or None if no agent has kept the turn."""
    asked: dict[int, int] = field(default_factory=dict)
    """Maps the number of each model activity in flight to the index of its agent run."""
    unwanted: set[str] = field(default_factory=set)
    """IDs of the activities whose results are no longer needed, because their agents were stopped."""

    def __getitem__(self, index: int) -> AgentRun:
        return self.by_index[index]

    def at_work(self) -> list[AgentRun]:
        """Return the runs that are not over."""
        return [self.by_index[index] for index in self.active]

    def is_over(self, index: int) -> bool:
        """Return whether a run is over. Runs that the snapshot left out are over."""
        return index not in self.by_index or self.by_index[index].over


@dataclass(slots=True)
class SessionState:
    """The state that tools read and write, and how much of it has been delivered to scopes."""

    values: JsonObject = field(default_factory=dict)
    """The current values, including `temp:` keys. The dictionary is replaced, never modified, because running tools may
    still hold an earlier one."""
    changed: dict[str, None] = field(default_factory=dict)
    """Keys that were set or removed since the invocation started, in order."""
    scope_writes: list[int] = field(default_factory=list)
    """Numbers of the events that write `user:` or `app:` state. Event 0 is the start of the invocation."""
    scopes_flushed: int = -1
    """Number of the last event whose writes to `user:` and `app:` state have been delivered."""

    def apply(self, actions: EventActions | None) -> None:
        """Apply the state changes in an event's actions, key by key."""
        if actions is None or not (actions.state_delta or actions.removed_keys):
            return
        self.values = {**self.values, **actions.state_delta}
        for key in actions.removed_keys:
            self.values.pop(key, None)
        self.changed.update(dict.fromkeys((*actions.state_delta, *actions.removed_keys)))

    def underlay(self, stored: JsonObject) -> None:
        """Add stored state. The invocation's own values take precedence, and the stored values do not count as
        changes."""
        self.values = {**stored, **self.values}

    def since_start(self) -> tuple[JsonObject, tuple[str, ...]]:
        """Return the values set and the keys removed since the invocation started, without `temp:` keys."""
        lasting = [key for key in self.changed if not key.startswith(TEMPORARY)]
        return (
            {key: self.values[key] for key in lasting if key in self.values},
            tuple(key for key in lasting if key not in self.values),
        )


@dataclass(slots=True)
class ApprovalState:
    """Answers that are being verified, approvals that cover later calls, and notifications that are due."""

    submitted: dict[str, Answer] = field(default_factory=dict)
    """Answers that are being verified, by the reference to their message."""
    standing: tuple[RememberedApproval, ...] = ()
    """Remembered approvals, including those of called agents."""
    channels: tuple[str, ...] = ()
    """Channels to notify if a policy does not name any."""
    operators: tuple[str, ...] = ()
    """Channels of operators, or empty if operators are notified through `channels`."""
    due: list[DueNotification] = field(default_factory=list)
    """Notifications that have not been scheduled yet."""
    joined_requesters: tuple[str, ...] = ()
    """Requesters of messages that joined the invocation or its callers, except those that its input names."""


class Share(NamedTuple):
    """The part of the remaining budget that a called agent may use."""

    budget: Budget
    since: float = 0.0
    """When the agent could start, in seconds since 1970, or 0 if it has to wait for an answer first."""


@dataclass(slots=True)
class BudgetState:
    """The budget of an invocation: its usage so far, the amounts granted, and requests for more."""

    timed: bool = True
    """Whether entries have the workflow's timestamps. Only wall-clock time depends on them; prompts do not."""
    granted: Grant = NOTHING
    """Amounts granted beyond the budget."""
    asks: int = 0
    """Number of requests for more budget."""
    ask: str | None = None
    """Function call ID of the latest request for more budget."""
    denied: bool = False
    """Whether a request was rejected or expired. In that case, no more requests are made."""
    turned_away: bool = False
    """Whether `max_tool_calls` counts as exhausted, because calls were refused and no budget was granted since."""
    wrapped_up: str | None = None
    """Why agents were asked to wrap up, or None if they were not."""
    spent: Spent = NOTHING_SPENT
    """Usage so far, not including working time."""
    shares: dict[str, Share] = field(default_factory=dict)
    """Budget share of each called agent that is running, by function call ID."""
    working_s: float = 0.0
    """Working time so far: the length of the union of all intervals that were counted."""
    worked: list[tuple[float, float]] = field(default_factory=list)
    """The counted intervals that work in flight may still overlap. They are disjoint."""
    started: dict[str, float] = field(default_factory=dict)
    """When each model call and tool call that is running or due to run could start, by activity ID."""


@dataclass(slots=True)
class OutcomeState:
    """The invocation's result so far, and the reasons why it must end, if any."""

    usage: Usage = NO_USAGE
    output: JsonObject | None = None
    """Structured output of the latest model reply, or None if it had none."""
    last_said: Event | None = None
    """The latest event that contains an agent's content or error."""
    artifact_delta: dict[str, int] = field(default_factory=dict)
    failure: Failure | None = None
    concluded: bool = False
    """Whether a plugin ended the invocation before its agents had finished."""
    cancelled: bool = False
    ended: EndStatus | None = None


@dataclass(slots=True)
class Hold:
    """Work that no worker can do at the moment. Workers keep trying."""

    failure: Failure
    """The failure of the last recorded attempt. `hold` is the reason."""
    since: float
    """When the hold began, in seconds since 1970."""
    function_call_id: str | None = None
    """The held tool call, or None for a model call."""

    def facts(self) -> JsonObject:
        """Return the hold in the form in which the memo and events show it."""
        call = {"function_call_id": self.function_call_id} if self.function_call_id else {}
        return {**call, "reason": self.failure.hold, "message": self.failure.message, "since": self.since}


@dataclass(slots=True)
class InvocationState:
    """The state that results from applying all entries of the log."""

    invocation_id: str = ""
    run: str | None = None
    """ID of the invocation's first run, as the server reports it in each run. Snapshots leave it out."""
    input: InvocationInput | None = None
    session: SessionState = field(default_factory=SessionState)
    runs: AgentRuns = field(default_factory=AgentRuns)
    calls: dict[str, CallState] = field(default_factory=dict)
    approvals: ApprovalState = field(default_factory=ApprovalState)
    budget_use: BudgetState = field(default_factory=BudgetState)
    outcome: OutcomeState = field(default_factory=OutcomeState)
    events: list[Event] = field(default_factory=list)
    """The events, starting at index `events_before`."""
    events_before: int = 0
    """Number of events before those in `events`. 0 unless the state was restored from a snapshot."""
    holds: dict[str, Hold] = field(default_factory=dict)
    """Held model calls and tool calls, by activity ID."""
    unknown: dict[str, int] = field(default_factory=dict)
    """Calls about which operators are asked, because it is unknown whether they took effect: the number of the run by
    function call ID."""
    steps: int = 0
    """Number of model activities scheduled so far."""
    ignored: int = 0
    """Number of ignored answers."""
    signed_request: SignedRequest | None = None
    """The verified requesters, or None if the invocation was started without a token."""
    endpoints: Endpoints = field(default_factory=dict)
    """The endpoints that receive the invocation's events, as the last model activity recorded them."""
    outgoing: list[OutgoingEvent] = field(default_factory=list)
    """Events whose delivery has not been started yet."""
    stores: Mapping[str, str] | None = None
    """The IDs of the stores that a model reply recorded last, by store, or None. Snapshots leave them out."""

    @property
    def agent(self) -> str:
        """Name of the agent that was started, or `waystation` if the invocation has no valid input."""
        return self.input.agent if self.input else NOBODY

    @property
    def root(self) -> str:
        """Name of the root agent, or an empty string if the invocation has no valid input."""
        return (self.input.root or self.input.agent) if self.input else ""

    @property
    def over(self) -> bool:
        """Whether all agent runs are over."""
        return bool(self.runs.begun) and self.runs.is_over(0)

    @property
    def event_count(self) -> int:
        """Number of events, including those before a snapshot."""
        return self.events_before + len(self.events)

    @property
    def budget(self) -> Budget:
        """The budget, including what approvers have granted."""
        return (self.input.budget if self.input else Budget()).raised(self.budget_use.granted)

    @property
    def used(self) -> Used:
        """Usage of the budget, including working time, and the amounts granted."""
        spent = self.budget_use.spent.model_copy(update={"working_s": round(self.budget_use.working_s, 6)})
        return Used(spent=spent, granted=self.budget_use.granted)

    @property
    def models_in_flight(self) -> dict[int, AgentRun]:
        """Maps the number of each model activity in flight to its agent run. Stopped runs are left out."""
        runs = {number: self.runs[index] for number, index in self.runs.asked.items()}
        return {number: run for number, run in runs.items() if not (run.over or self.outcome.ended)}

    def batch(self, run: AgentRun) -> list[CallState]:
        """Return the calls in the latest reply of an agent run, and earlier calls that run again."""
        return [self.calls[function_call_id] for function_call_id in run.batch]

    def open_calls(self) -> list[CallState]:
        """Return the calls that are waiting for an answer or can still get one, ordered by agent run.

        A pending request for more budget comes last.
        """
        runs = self.runs.by_index  # this runs several times for each entry
        calls = [self.calls[function_call_id] for index in self.runs.active for function_call_id in runs[index].open]
        ask = self.calls[self.budget_use.ask] if self.budget_use.ask else None
        return [*calls, ask] if ask and ask.waiting else calls

    def waiting(self) -> list[CallState]:
        """Return the calls that are waiting for an answer, in the same order as `open_calls`."""
        return [call for call in self.open_calls() if call.waiting]

    @property
    def requesters(self) -> tuple[str, ...]:
        """The requesters that the input and joined messages name. Policies with `not_requester` bar them all."""
        return (*self.input.requesters, *self.approvals.joined_requesters) if self.input else ()

    def pending(self) -> list[PendingCall]:
        """Return the pending calls in the form that approvers see."""
        return [self.pending_call(call) for call in self.waiting()] if self.input else []

    def pending_call(self, call: CallState) -> PendingCall:
        """Return a call that is or was pending in the form that approvers see."""
        assert self.input is not None
        joined = self.approvals.joined_requesters
        return call.pending(self.invocation_id, self.input, joined, self.signed_request, self.run)

    def performing(self) -> list[CallState]:
        """Return the calls that are running or due to run, except those on hold until more budget is granted."""
        idle = (run for run in self.runs.at_work() if run.in_flight is None)
        return [call for run in idle for call in self.batch(run) if call.performing and not call.held]

    def next_deadline(self) -> float | None:
        """Return the time of the next reminder, escalation or deadline, if any, in seconds since 1970."""
        dues = (call.due for call in self.open_calls() if not call.held_by)
        return min((due for due in dues if due is not None), default=None)

    def remembered_by_origin(self, origins: Iterable[str]) -> list[RememberedApproval]:
        """Return the remembered approvals that have one of these origins."""
        named = set(origins)
        return [approval for approval in self.approvals.standing if approval.origin in named]

    def result(self, reason: str | None = None) -> InvocationResult:
        """Return the result of the invocation.

        `reason` says why it stopped early. The default is the reason for wrapping up or the last agent's error, if any.
        """
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
        """Return the number of the last event with undelivered writes to `user:` or `app:` state.

        Return None if all writes have been delivered, and for a called agent, which returns its state to its caller.
        """
        writes = self.session.scope_writes
        due = bool(writes) and writes[-1] > self.session.scopes_flushed
        return writes[-1] if due and self.input and self.input.origin is None else None

    def holds_scopes_back(self) -> bool:
        """Return whether a finished call that writes `user:` or `app:` state is waiting for the rest of its batch."""
        calls = (call for run in self.runs.at_work() for call in self.batch(run) if not call.flushed)
        return any(writes_scopes(call.outcome.actions) for call in calls if call.outcome)

    def scope_deltas(self, run_id: str, after: int, last: int) -> list[tuple[str, ScopeDelta]]:
        """Return the writes to scopes by events `after` + 1 through `last`, each with the prefix of its scope.

        `run_id` is the ID of the workflow run that delivers the writes.
        """
        deltas: list[tuple[str, ScopeDelta]] = []
        for number in self.session.scope_writes:
            if after < number <= last:
                actions = self.events[number - 1].actions if number else None
                written = actions.state_delta if actions else (self.input.state if self.input else {})
                removed = actions.removed_keys if actions else ()
                deltas.extend(split(ids.event(self.invocation_id, number), run_id, written, removed))
        return deltas


def announce(
    state: InvocationState, now: float, event: EventKind, key: str, call: CallState | None = None, **facts: str | None
) -> None:
    """Add an event for the endpoints that receive it. The end of a called agent is not an event."""
    started, endpoints = state.input, state.endpoints.get(event)
    if not started or not endpoints or (event == "ended" and started.depth):
        return
    about = {"function_call_id": call.id, "tool": call.name} if call else {}
    about |= started.model_dump(include={"app", "user_id", "tenant", "session_id"}) | facts
    about |= {"invocation_id": state.invocation_id, "agent": state.root}
    state.outgoing.append(OutgoingEvent(event=event, endpoints=endpoints, key=key, time=now, **about))


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
    """Append an event. The default author is the run's agent, or `user` if there is no run."""
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
    # A request for more budget is not an agent's reply.
    asks_for_more = any(map(ids.is_budget, event.long_running_tool_ids or ()))
    if event.author != "user" and (event.content or event.error_code) and not asks_for_more:
        state.outcome.last_said = event
    if writes_scopes(actions):
        state.session.scope_writes.append(state.event_count)
