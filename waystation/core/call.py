"""The life of one function call: asked for, perhaps confirmed, performed, perhaps waiting for a person, closed."""

from dataclasses import dataclass, field
from typing import Literal

from waystation.core.activity_io import Call, Confirmation, ToolOutcome
from waystation.core.approval.answer import Answer, PendingCall
from waystation.core.approval.policy import ApprovalPolicy, Verified, call_digest
from waystation.core.payload import JsonObject

DEFAULT_DEADLINE_S = 30 * 24 * 3600.0
"""Every wait ends; see design D3. 30 days unless the tool says otherwise."""

Gate = Literal["none", "waiting", "passed", "refused"]
Asked = Literal["confirmation", "credential", "budget"]


@dataclass(slots=True)
class CallState:
    """One function call and what became of it so far. Changed only by its log."""

    call: Call
    name: str = ""
    args: JsonObject = field(default_factory=dict)
    agent: str = ""
    reply: int = 0
    """Number of the model reply that made the call."""
    turn: int = 0
    """Index of the agent run whose model made it."""
    gate: Gate = "none"
    asked: Asked | None = None
    """What a person is asked for, or was asked for last; a tool may ask from inside."""
    asks: Confirmation | None = None
    """What the person reads."""
    run: int = 0
    """How often it has returned before the present run."""
    provisional: ToolOutcome | None = None
    """What the earlier run gave, when a further one goes on from there."""
    shown: JsonObject | None = None
    """The arguments as the approver saw them, when the approver then edited them."""
    requested_at: float | None = None
    """When it began to wait for a person."""
    outcome: ToolOutcome | None = None
    """What performing it gave."""
    flushed: bool = False
    """Whether the outcome is part of an event."""
    response: JsonObject | None = None
    """What the model reads, or would read if it were called now."""
    responded: bool = False
    """Whether the model may go on: there is a response that was meant to reach it."""
    closed: bool = False
    """Whether the response is the last one."""
    answer: Answer | None = None
    """The answer that closed it or let it run."""
    answered_at: float | None = None
    expired: bool = False
    held: str | None = None
    """Why the budget has no room for it, while a person is asked for more."""
    answer_ids: dict[str, None] = field(default_factory=dict)
    waits: int = 0
    """How often it began to wait for a person."""
    noticed: int = 0
    """How many of the reminders and escalations of its policy have come, in its present wait."""
    told: int = 0
    """Of how many of its waits people were told."""
    approved_by: dict[str, None] = field(default_factory=dict)
    """Who has approved it so far, while the policy wants more to."""
    claimed_by: str | None = None
    """Who has taken it on: others are told so, and do not answer it meanwhile."""
    viewed_by: dict[str, None] = field(default_factory=dict)
    decided_by: Verified | None = None
    """Who gave the answer, when an identity provider says so."""
    known_digest: str | None = None
    """The digest of a call of which no more than what became of it is kept."""

    @property
    def id(self) -> str:
        """The engine's id of the call."""
        return self.call.id

    @property
    def performing(self) -> bool:
        """Whether it has to be, or is being, carried out."""
        return self.outcome is None and self.call.kind != "answered" and self.gate in ("none", "passed")

    @property
    def waiting(self) -> bool:
        """Whether a person's answer is what it waits for."""
        return self.gate == "waiting" or (
            self.call.kind == "long_running" and self.outcome is not None and not self.closed
        )

    @property
    def answerable(self) -> bool:
        """Whether an answer would count. A long-running call may be answered before its function has returned."""
        return self.gate == "waiting" or (self.call.kind == "long_running" and not self.closed)

    @property
    def deadline(self) -> float | None:
        """When the wait ends, in seconds since 1970; None while nobody is waited for."""
        if self.requested_at is None or not self.waiting:
            return None
        policy = self.policy
        limit = policy.deadline.total_seconds() if policy and policy.deadline else self.call.deadline_s
        return self.requested_at + (limit or DEFAULT_DEADLINE_S)

    @property
    def due(self) -> float | None:
        """When something next happens to the wait, should nobody answer: a notice, or its deadline."""
        if self.requested_at is None or not self.waiting or not self.policy:
            return self.deadline
        pending = self.policy.notices()[self.noticed :]
        return self.requested_at + pending[0].after.total_seconds() if pending else self.deadline

    @property
    def level(self) -> int:
        """How many escalations have taken place in the present wait."""
        return sum(notice.escalates for notice in self.policy.notices()[: self.noticed]) if self.policy else 0

    @property
    def approvals_needed(self) -> int:
        """How many people have to approve it in all."""
        return self.policy.quorum if self.policy else 1

    @property
    def digest(self) -> str:
        """Digest of exactly what an approver approves."""
        if self.known_digest is not None:
            return self.known_digest
        shown = self.args if self.shown is None else self.shown
        return call_digest(self.agent, self.name, shown, declared=self.declared, policy=self.policy)

    @property
    def policy(self) -> ApprovalPolicy | None:
        """Who may answer, when that matters."""
        asking = (self.outcome if self.asked else None) or self.provisional
        return self.call.approval or (asking.approval if asking else None)

    @property
    def declared(self) -> str | None:
        """Digest of the tool's parameters; None for calls from before it was recorded."""
        asking = (self.outcome if self.asked else None) or self.provisional
        return self.call.declared or (asking.declared if asking else None)

    @property
    def answered_by(self) -> str | None:
        """Who gave the answer: verified, or else as the answer says."""
        if self.decided_by:
            return self.decided_by.subject
        return self.answer.by if self.answer else None

    @property
    def approved_digest(self) -> str | None:
        """Digest of what an approver let through, as it then was; None when nobody had to, or for older calls."""
        approved = self.asked == "confirmation" or self.call.standing
        if self.declared is None or self.gate != "passed" or not approved:
            return None
        return call_digest(self.agent, self.name, self.args, declared=self.declared, policy=self.policy)

    def tool_confirmation(self) -> JsonObject | None:
        """Return what the tool finds in `tool_context.tool_confirmation`."""
        if self.gate != "passed" or self.answer is None or self.asked != "confirmation":
            return None
        asks = self.asks or Confirmation()
        payload = asks.payload if self.answer.response is None else self.answer.response
        return {"hint": asks.hint, "confirmed": self.answer.action != "reject", "payload": payload}

    @property
    def ever_waits(self) -> bool:
        """Whether a person was ever asked, or may answer."""
        return self.asked is not None or self.call.kind == "long_running"

    def ask(self, now: float, asked: Asked, asks: Confirmation) -> None:
        """Have it wait for a person."""
        self.gate, self.asked, self.asks = "waiting", asked, asks
        # What an approver edited before is what the next one is shown.
        self.shown = None
        self.wait(now)

    def wait(self, now: float) -> None:
        """Begin to wait for a person."""
        self.requested_at = now
        self.waits += 1
        self.noticed, self.claimed_by = 0, None
        self.approved_by = {}

    def run_again(self) -> None:
        """Have it carried out once more; its present response stands until then."""
        self.provisional, self.outcome = self.outcome, None
        self.run += 1
        self.flushed = self.responded = False

    def close(self, response: JsonObject) -> None:
        """Give the call its last response."""
        self.response, self.responded, self.closed = response, True, True

    def pending(
        self, invocation_id: str, user_id: str, session_id: str | None, requester: str | None = None
    ) -> PendingCall:
        """Return the call as approvers see it."""
        asks = self.asks or Confirmation()
        return PendingCall(
            function_call_id=self.id,
            invocation_id=invocation_id,
            agent=self.agent,
            tool=self.name,
            args=self.args,
            kind=(self.asked or "confirmation") if self.gate == "waiting" else "long_running",
            digest=self.digest,
            hint=asks.hint,
            payload=asks.payload,
            interim=self.response,
            requested_at=self.requested_at or 0.0,
            deadline=self.deadline or 0.0,
            user_id=user_id,
            session_id=session_id,
            requester=requester,
            policy=self.policy,
            level=self.level,
            approved_by=tuple(self.approved_by),
            claimed_by=self.claimed_by,
            response_schema=self.call.response_schema,
        )
