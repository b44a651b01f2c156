"""The state of one function call, from the model's request to its last response."""

from dataclasses import dataclass, field
from typing import Literal

from waystation.core import summary
from waystation.core.approval import (
    Answer,
    ApprovalPolicy,
    PendingCall,
    SignedApproval,
    SignedRequest,
    Verified,
    call_digest,
)
from waystation.core.contract import Call, Confirmation, InvocationInput, ToolOutcome
from waystation.core.payload import JsonObject, encode

DEFAULT_DEADLINE_S = 30 * 24 * 3600.0
"""The deadline if neither the tool nor its policy sets one: 30 days. No call may wait forever."""

Gate = Literal["none", "waiting", "passed", "refused"]
Asked = Literal["confirmation", "credential", "budget", "unknown"]
Stage = Literal["tool", "check", "target", "after"]
"""The current run of a call is the tool, the verification of an approval, a called agent or the call's `target`,
or the callbacks that process the result of one of the last two."""


@dataclass(slots=True)
class CallState:
    """One function call and its progress. Only the reducers in `core.log` modify it."""

    call: Call
    name: str = ""
    args: JsonObject = field(default_factory=dict)
    agent: str = ""
    reply: int = 0
    """Number of the model reply that made the call."""
    turn: int = 0
    """Index of the agent run whose model made the call."""
    gate: Gate = "none"
    asked: Asked | None = None
    """The kind of the latest request to an approver. The request comes from the policy, the budget or the running
    tool."""
    asks: Confirmation | None = None
    """The hint and payload of the latest request."""
    run: int = 0
    """How many times the call had returned before the current run."""
    provisional: ToolOutcome | None = None
    """The outcome of the previous run, if the call is running again."""
    shown: JsonObject | None = None
    """The arguments that the approver saw, if the approver then edited them. Otherwise None."""
    requested: JsonObject | None = None
    """The arguments before approvers edited them, or None if they did not."""
    edited_by: dict[str, None] = field(default_factory=dict)
    """The approvers who edited the arguments and gave a name."""
    comments: list[tuple[str, str]] = field(default_factory=list)
    """The approvers' comments for the model, each after the author's name, which may be empty."""
    fields: JsonObject = field(default_factory=dict)
    """The fields that approvers add to the response."""
    requested_at: float | None = None
    """The time at which the call started to wait for an approver, in seconds since 1970."""
    outcome: ToolOutcome | None = None
    """The result of the current run."""
    flushed: bool = False
    """Whether an event contains the outcome."""
    response: JsonObject | None = None
    """The response that the model receives in its next prompt."""
    responded: bool = False
    """Whether the call has a response that is ready for the next model call."""
    closed: bool = False
    """Whether the response is final."""
    answer: Answer | None = None
    """The answer that closed the call or allowed it to run."""
    answered_at: float | None = None
    expired: bool = False
    held: str | None = None
    """Why the call does not fit into the budget. Set while an approver is being asked for more budget."""
    answer_ids: dict[str, None] = field(default_factory=dict)
    receipts: dict[str, tuple[str, str | None, JsonObject]] = field(default_factory=dict)
    """For each answer that counted and has an ID: the digest of its content, its verified author, and its receipt."""
    held_by: dict[str, None] = field(default_factory=dict)
    """Answers that arrived before the deadline and are being verified, by reference. They keep the call open."""
    waits: int = 0
    """How many times the call has started to wait for an approver."""
    noticed: int = 0
    """Number of reminders and escalations that have come due during the current wait."""
    told: int = 0
    """Number of the latest wait that approvers were notified about, counted from 1, or 0 if there is none."""
    approved_by: dict[str, bool | None] = field(default_factory=dict)
    """The people who have approved the call so far, while the policy requires more approvals."""
    signed: list[SignedApproval] = field(default_factory=list)
    """The verified answers that let the call run."""
    claimed_by: str | None = None
    """The approver who claimed the call. Until the call is released, others can only view, release, waive or cancel
    it."""
    viewed_by: dict[str, None] = field(default_factory=dict)
    decided_by: Verified | None = None
    """The verified identity of the approver who decided the call, or None if there is none."""
    progress_at: float | None = None
    """When the machine that answers the call last reported progress, in seconds since 1970."""
    revoked: int = 0
    """How often an operator has revoked the call's completion URLs."""
    known_digest: str | None = None
    """The digest of a closed call whose arguments have been discarded. None for any other call."""

    @property
    def id(self) -> str:
        """The function call ID."""
        return self.call.id

    @property
    def performing(self) -> bool:
        """Whether the call is running or due to run."""
        return self.outcome is None and self.call.kind != "answered" and self.gate in ("none", "passed")

    @property
    def waiting(self) -> bool:
        """Whether the call is waiting for an answer."""
        return self.gate == "waiting" or (
            self.call.kind == "long_running" and self.outcome is not None and not self.closed
        )

    @property
    def answerable(self) -> bool:
        """Whether the call accepts answers. A long-running call does so even before its function has returned."""
        return self.gate == "waiting" or (self.call.kind == "long_running" and not self.closed)

    @property
    def deadline(self) -> float | None:
        """The time at which the wait ends, in seconds since 1970, or None if the call is not waiting."""
        if self.requested_at is None or not self.waiting:
            return None
        policy = self.policy
        limit = policy.deadline.total_seconds() if policy and policy.deadline else self.call.deadline_s
        return self.requested_at + (limit or DEFAULT_DEADLINE_S)

    @property
    def due(self) -> float | None:
        """Time of the next reminder, escalation or deadline in seconds since 1970, or None if there is none."""
        if self.requested_at is None or not self.waiting or not self.policy:
            return self.deadline
        pending = self.policy.notices()[self.noticed :]
        return self.requested_at + pending[0].after.total_seconds() if pending else self.deadline

    @property
    def level(self) -> int:
        """Number of escalations that have come due during the current wait."""
        return sum(notice.escalates for notice in self.policy.notices()[: self.noticed]) if self.policy else 0

    @property
    def approvals_needed(self) -> int:
        """Number of approvals that the policy requires, or 1 if the call has no policy."""
        return self.policy.quorum if self.policy else 1

    @property
    def digest(self) -> str:
        """Digest of what an approver sees: the arguments before any edit, the tool and the policy."""
        if self.known_digest is not None:
            return self.known_digest
        return digest_with(self, self.args if self.shown is None else self.shown)

    @property
    def policy(self) -> ApprovalPolicy | None:
        """The policy for the current answer. None if there is no policy; then anyone may answer."""
        machine_policy = None if self.gate == "waiting" else self.call.machine_policy
        return machine_policy or approval_of(self)

    @property
    def declared(self) -> str | None:
        """Digest of the tool's parameters, or None if it was not recorded."""
        asking = _find_asking(self)
        return self.call.declared or (asking.declared if asking else None)

    @property
    def answered_by(self) -> str | None:
        """The person who decided: the verified subject, or else the answer's unverified `by` field. None if unknown."""
        if self.decided_by:
            return self.decided_by.subject
        return self.answer.by if self.answer else None

    @property
    def approved_digest(self) -> str | None:
        """Digest of what was approved, including edited arguments.

        None if the call has not been approved, needed no approval, or the tool's parameters were not recorded.
        """
        approved = self.asked == "confirmation" or self.call.standing
        if self.declared is None or self.gate != "passed" or not approved:
            return None
        return digest_with(self, self.args)

    def tool_confirmation(self) -> JsonObject | None:
        """Return the value of `tool_context.tool_confirmation` for the tool's next run.

        None unless an approver has answered a confirmation request.
        """
        if self.gate != "passed" or self.answer is None or self.asked != "confirmation":
            return None
        asks = self.asks or Confirmation()
        payload = self.answer.confirmation_payload
        payload = asks.payload if payload is None else payload
        return {"hint": asks.hint, "confirmed": self.answer.action != "reject", "payload": payload}

    @property
    def ever_waits(self) -> bool:
        """Whether an approver has been asked about this call or can answer it."""
        return self.asked is not None or self.call.kind == "long_running"

    def ask(self, now: float, asked: Asked, asks: Confirmation) -> None:
        """Request an answer from an approver."""
        self.gate, self.asked, self.asks = "waiting", asked, asks
        # If the previous approver edited the arguments, the next one sees the edited version.
        self.shown = None
        self.claimed_by, self.approved_by = None, {}
        self.wait(now)

    def wait(self, now: float) -> None:
        """Start waiting for an approver. Existing approvals, which only a long-running call can have, still count."""
        self.requested_at = now
        self.waits += 1
        self.noticed = 0

    def run_again(self) -> None:
        """Prepare another run of the call. The current response stays in place until that run returns."""
        self.provisional, self.outcome = self.outcome, None
        self.run += 1
        self.flushed = self.responded = False

    def close(self, response: JsonObject) -> None:
        """Set the final response."""
        self.response, self.responded, self.closed = response, True, True

    def pending(
        self,
        invocation_id: str,
        started: InvocationInput,
        joined_requesters: tuple[str, ...],
        signed_request: SignedRequest | None,
        run: str | None,
    ) -> PendingCall:
        """Return the call in the form that approvers see."""
        asks = self.asks or Confirmation()
        return PendingCall(
            function_call_id=self.id,
            invocation_id=invocation_id,
            agent=self.agent,
            tool=self.name,
            args=self.args,
            kind=(self.asked or "confirmation") if self.gate == "waiting" else "long_running",
            digest=self.digest,
            question=question_of(self),
            title=summary.title(self.call.title, self.args),
            hint=asks.hint,
            payload=asks.payload,
            interim=self.response,
            requested_at=self.requested_at or 0.0,
            deadline=self.deadline or 0.0,
            user_id=started.user_id,
            session_id=started.session_id,
            requester=started.requester,
            joined_requesters=joined_requesters,
            verified_requesters=signed_request.subjects if signed_request else (),
            policy=self.policy,
            level=self.level,
            approved_by=tuple(self.approved_by),
            claimed_by=self.claimed_by,
            response_schema=self.call.response_schema,
            tool_origin=origin_of(self),
            run=run,
            tenant=started.tenant,
            progress_at=self.progress_at,
            revoked=self.revoked,
        )


def origin_of(call: CallState) -> str | None:
    """Return where the call's tool comes from, or None if it was not recorded; see `Call.tool_origin`."""
    asking = _find_asking(call)
    return call.call.tool_origin or (asking.tool_origin if asking else None)


def approval_of(call: CallState) -> ApprovalPolicy | None:
    """Return the policy by which people approve a call. It stays the same if a machine answers the call afterward."""
    asking = _find_asking(call)
    return call.call.approval or (asking.approval if asking else None)


def digest_with(call: CallState, args: JsonObject) -> str:
    """Return the digest that a call would have with other arguments."""
    about = {"declared": call.declared, "origin": origin_of(call)}
    return call_digest(call.agent, call.name, args, policy=approval_of(call), **about)


def _find_asking(call: CallState) -> ToolOutcome | None:
    """Return the outcome of the run that asked an approver, if the tool itself asked."""
    return (call.outcome if call.asked else None) or call.provisional


def stage_of(call: CallState) -> Stage:
    """Return the stage of the call's current run."""
    target = call.call.target
    if target is None and call.call.kind != "agent":
        return "tool"
    checks = int(target is not None and target.check)
    return "check" if call.run < checks else "target" if call.run == checks else "after"


def count_requests(call: CallState) -> int:
    """Return how many confirmations, credentials or budget grants have been requested for a call."""
    # A long-running call also starts to wait once its function has returned without a request.
    has_returned = call.call.kind == "long_running" and call.gate != "waiting" and call.outcome is not None
    return call.waits - has_returned


def question_of(call: CallState) -> int:
    """Return the number of the question that an answer now answers: odd for a request, even for the call itself.

    It changes when a request is made and when one is answered, and at no other time.
    """
    return 2 * count_requests(call) - (call.gate == "waiting")


def count_missing_approvals(call: CallState) -> int:
    """Return the number of approvals that are still needed."""
    return call.approvals_needed - len(call.approved_by)


def find_changes(call: CallState) -> JsonObject:
    """Return the arguments that approvers changed, each with the requested value `from` and the new value `to`.

    An argument that they added has no `from`, and one that they removed has no `to`.
    """
    if call.requested is None:
        return {}
    sides = ("from", call.requested), ("to", call.args)
    names = {**call.requested, **call.args}
    pairs = {name: {side: args[name] for side, args in sides if name in args} for name in names}
    # Compare as JSON, because in Python, 1 == 1.0 == True.
    return {name: pair for name, pair in pairs.items() if len(pair) == 1 or len({*map(encode, pair.values())}) > 1}
