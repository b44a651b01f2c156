"""What a tool activity is told and what it reports."""

from waystation.core.event import EventActions
from waystation.core.model_call import Effect, Position
from waystation.core.payload import JsonObject, Recorded
from waystation.core.policy import ApprovalPolicy
from waystation.core.shape import AgentShape


class ToolCallInput(Position):
    """Input of a tool activity; the tool sees the state at that position."""

    function_call_id: str
    args: JsonObject | None = None
    """The arguments when small, because people look for them in the Web UI; or edited ones."""
    confirmation: JsonObject | None = None
    """`{confirmed, hint, payload}` once a person has agreed, when small."""
    root: str
    run: int = 0
    """How often the call has returned before: a tool that asked for a confirmation or a credential runs once more when
    it is there, and a called agent's answer may pass through callbacks."""
    effect: Effect = "repeatable"
    timeout_s: float | None = None
    retries: int = 0
    digest: str | None = None
    """Of exactly what a person approved; the activity runs nothing else. See `policy.call_digest`."""


class ToolOutcome(Recorded):
    """What one run of a tool answered and changed."""

    function_call_id: str
    response: JsonObject | None = None
    """Given to the model as it stands. None: a long-running tool has nothing to say yet."""
    final: bool = True
    """False when a long-running tool's answer is still to come from outside."""
    error_type: str | None = None
    fatal: bool = False
    """Whether the tool's exception ends the invocation (`on_error="raise"`)."""
    actions: EventActions | None = None
    parts: tuple[JsonObject, ...] = ()
    """Media parts that belong to the response."""
    beside: tuple[JsonObject, ...] = ()
    """Parts that stand beside the response, for readers of the event."""
    transfer: AgentShape | None = None
    """The agent that `actions.transfer_to_agent` names."""
    approval: ApprovalPolicy | None = None
    """When the tool asks for a person from inside: the policy that then holds, as for `Call.approval`."""
    declared: str | None = None
    """Then, too; see `Call.declared`."""
    args: JsonObject | None = None
    """Then, too, when callbacks changed the arguments: those with which it ran, and is to run again."""
    duration_s: float = 0.0
    """Wall time in the activity, queueing excluded."""
    mark: str = ""
    """Tells the attempts of one call apart."""
