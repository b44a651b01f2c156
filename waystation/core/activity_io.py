"""What a tool activity is told and what it reports."""

from typing import Any, Literal

from waystation.core.approval.policy import ApprovalPolicy
from waystation.core.budget import Usage
from waystation.core.conversation.event import Compaction, EventActions
from waystation.core.payload import JsonObject, Recorded

AgentKind = Literal["llm", "sequential", "parallel", "loop"]


class AgentShape(Recorded):
    """One agent, and those that it runs.

    An LLM agent has no children here: to whom it may transfer is decided, and recorded, with each transfer.
    """

    name: str
    kind: AgentKind = "llm"
    children: tuple["AgentShape", ...] = ()
    max_iterations: int | None = None
    """For a loop; None: until somebody escalates."""
    before: bool = False
    """Whether entering it needs an activity, for its `before_agent` callbacks. An LLM agent's run with its first model
    call."""
    after: bool = False
    """Whether leaving it needs an activity, for its `after_agent` callbacks."""
    keeps_turn: bool = True
    """Whether the user's next message may go to it; see adk-semantics 9.1."""


Effect = Literal["read", "repeatable", "once"]
CallKind = Literal["function", "long_running", "agent", "answered"]
Phase = Literal["enter", "turn", "leave"]


class Confirmation(Recorded):
    """What a person is asked before a tool may run."""

    hint: str = ""
    payload: Any = None
    """Any JSON."""


class Call(Recorded):
    """What the workflow must know to carry out one function call of a reply; name and arguments are in the content."""

    id: str
    """Minted by the engine; the same everywhere."""
    model_id: str | None = None
    """The model's own id, kept only to be echoed to its provider."""
    kind: CallKind = "function"
    response: JsonObject | None = None
    """For `answered`: the response that was already clear when the reply was read, such as for an unknown tool."""
    actions: EventActions | None = None
    """For `answered`: what the call does all the same, such as a transfer."""
    transfer: AgentShape | None = None
    """For `answered` with a transfer in its `actions`: the agent that continues."""
    confirmation: Confirmation | None = None
    """Present when a person has to agree before the tool runs."""
    agent: str | None = None
    """For `agent`: the name of the agent that is called."""
    args: JsonObject | None = None
    """What `before_tool` callbacks made of the arguments of a call that a person is asked about: what is shown, and
    what runs."""
    message: str | None = None
    """For `agent`: what it is told, when that is not the argument `request`."""
    skip_summarization: bool = False
    after: bool = False
    """For `agent`: whether the agent's answer passes through `after_tool` callbacks, in an activity of its own."""
    detached: bool = False
    """For `agent`: whether it goes on while the run that called it is continued by another; see `continued`."""
    effect: Effect = "repeatable"
    timeout_s: float | None = None
    retries: int = 0
    heartbeat_timeout_s: float | None = None
    task_queue: str | None = None
    deadline_s: float | None = None
    """How long a person may take to answer, from the moment the call waits."""
    approval: ApprovalPolicy | None = None
    """The policy in force when the call was made."""
    declared: str | None = None
    """Digest of the tool's parameters, without descriptions; present when a person is, or may be, asked. Answers to
    such a call are reviewed where need be, and what was approved is compared with what is about to run."""
    standing: str | None = None
    """Origin of the standing approval under which it runs unasked, although it has a `confirmation`."""
    response_schema: JsonObject | None = None
    """For a long-running call: JSON schema of the `response` with which it is answered."""


class Position(Recorded):
    """How far the log had grown when a command was issued: which entries are new, never what they say."""

    at: int
    """Length of the log when the previous command was issued."""
    new: tuple[str, ...]
    """References of the entries applied since then, in the order in which the workflow applied them."""


class ModelCallInput(Position):
    """Input of the model activity."""

    agent: str
    root: str
    number: int
    turn: int = 0
    """Which of the agents at work in this invocation is meant; they are numbered as they begin."""
    phase: Phase = "turn"
    """`enter`: the agent begins, so its `before_agent` callbacks run first. `leave`: only `after_agent` ones run."""
    wrap_up: str | None = None
    """Why the agent has to answer now, without calling anything: what of the budget is used up."""
    standing: tuple[str, ...] = ()
    """Origins of the standing approvals of the log that are in force."""


class Said(Recorded):
    """What callbacks around an agent said or changed; an event of its own."""

    content: JsonObject | None = None
    actions: EventActions | None = None


class ModelReply(Recorded):
    """What a model answered, annotated with all that is needed to carry it out."""

    content: JsonObject | None = None
    """Genai Content as JSON; function calls carry the engine's ids."""
    calls: tuple[Call, ...] = ()
    """One for each function call in the content, in order."""
    finish_reason: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    usage: Usage | None = None
    model_version: str | None = None
    model: str | None = None
    """The model's name as the agent states it, when there is a table of prices."""
    attempt: int = 0
    """Which attempt at the model call gave this; 0 where no model was called."""
    wrap_up: str | None = None
    """Why the model was told to wrap up."""
    grounding_metadata: JsonObject | None = None
    citation_metadata: JsonObject | None = None
    definition: str = ""
    """Digest of the agent's definition that made this reply."""
    search_attributes: bool = False
    """Whether Waystation's search attributes are registered; an upsert of others would stick the workflow."""
    duration_s: float = 0.0
    actions: EventActions | None = None
    """State written around the model call."""
    shape: AgentShape | None = None
    """What the agent is, when it is entered and more than a model loop: agents that it runs, callbacks on leaving."""
    before: Said | None = None
    """What `before_agent` callbacks said; the event precedes the model's."""
    skipped: bool = False
    """Whether `before_agent` spoke for the agent, so that neither its model nor its children are asked."""
    closing: Said | None = None
    """What the agent says once the calls of this reply have responses; the agent is then done, and the model is not
    called again."""
    output: JsonObject | None = None
    """What the final text says, parsed, when the agent has an `output_schema`."""
    after: Said | None = None
    """What `after_agent` callbacks said, in the phase `leave`."""
    ends_invocation: bool = False
    """Whether a plugin's `before_run` spoke for the whole invocation."""
    compaction: Compaction | None = None
    """The summary that was made before the model was asked; its event precedes the model's."""
    scopes: JsonObject | None = None
    """What `user:` and `app:` state held when the invocation began; it was read with its first model activity."""
    mark: str = ""
    """Tells the attempts of one model call apart."""
    notify: tuple[str, ...] = ()
    """Names of the channels that workers tell of whatever waits, unless a policy names others."""


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
