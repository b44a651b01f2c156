"""Inputs and results of the model and tool activities."""

from typing import Any, Literal

from waystation.core.approval.policy import ApprovalPolicy
from waystation.core.budget import Usage
from waystation.core.conversation.event import Compaction, EventActions
from waystation.core.payload import JsonObject, Recorded

AgentKind = Literal["llm", "sequential", "parallel", "loop"]


class AgentSpec(Recorded):
    """The recorded structure of one agent and of the agents that it runs.

    An LLM agent has no children here: its transfer targets are decided, and recorded, with each transfer.
    """

    name: str
    kind: AgentKind = "llm"
    children: tuple["AgentSpec", ...] = ()
    max_iterations: int | None = None
    """For a loop. None: it ends only when an agent escalates."""
    before: bool = False
    """Whether entering it needs an activity for its `before_agent` callbacks. The callbacks of an LLM agent run with
    its first model call."""
    after: bool = False
    """Whether leaving it needs an activity for its `after_agent` callbacks."""
    keeps_turn: bool = True
    """Whether the user's next message may go to it; see adk-semantics 9.1."""


Effect = Literal["read", "repeatable", "once"]
CallKind = Literal["function", "long_running", "agent", "answered"]
Phase = Literal["enter", "turn", "leave"]


class Confirmation(Recorded):
    """The question to an approver before a tool may run."""

    hint: str = ""
    payload: Any = None
    """Any JSON."""


class Call(Recorded):
    """How the workflow runs one function call of a reply. Name and arguments are in the content of the reply."""

    id: str
    """The function call id. The engine generates it; it is the same in every layer."""
    model_id: str | None = None
    """The model's own id, sent back to its provider only."""
    kind: CallKind = "function"
    response: JsonObject | None = None
    """For `answered`: a response known when the reply was read, for example because the tool does not exist."""
    actions: EventActions | None = None
    """For `answered`: actions of the call, for example a transfer."""
    transfer: AgentSpec | None = None
    """For `answered` with a transfer in its `actions`: the agent that continues."""
    confirmation: Confirmation | None = None
    """Present when an approver must agree before the tool runs."""
    agent: str | None = None
    """For `agent`: name of the called agent."""
    args: JsonObject | None = None
    """Arguments after `before_tool` callbacks, for a call that needs an approval. The approver sees these, and the
    tool runs with them."""
    message: str | None = None
    """For `agent`: its message, unless that is the argument `request`."""
    skip_summarization: bool = False
    after: bool = False
    """For `agent`: whether `after_tool` callbacks process the agent's answer, in a separate activity."""
    detached: bool = False
    """For `agent`: whether it keeps running when its caller continues as new."""
    effect: Effect = "repeatable"
    timeout_s: float | None = None
    retries: int = 0
    heartbeat_timeout_s: float | None = None
    task_queue: str | None = None
    deadline_s: float | None = None
    """How long an approver may take to answer, from the moment the call begins to wait."""
    approval: ApprovalPolicy | None = None
    """The policy in force when the call was made."""
    declared: str | None = None
    """Digest of the tool's parameters without descriptions, present when the call may need an approval. Its answers
    are verified where needed, and the activity compares what was approved with what is about to run."""
    standing: str | None = None
    """Origin of the remembered approval that covers the call, although it has a `confirmation`."""
    response_schema: JsonObject | None = None
    """For a long-running call: JSON schema of the `response` in its answer."""


class Position(Recorded):
    """The log at the moment a command was issued: references of new entries, never their content."""

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
    """Index of the agent run."""
    phase: Phase = "turn"
    """`enter`: the agent begins, so its `before_agent` callbacks run first. `leave`: only `after_agent` callbacks
    run."""
    wrap_up: str | None = None
    """Why the agent must answer now without calling tools: the exhausted limit of the budget."""
    standing: tuple[str, ...] = ()
    """Origins of the remembered approvals that have not expired."""


class CallbackResult(Recorded):
    """Content and actions from the callbacks around an agent; a separate event."""

    content: JsonObject | None = None
    actions: EventActions | None = None


class ModelReply(Recorded):
    """A model's reply, annotated with everything needed to run its calls."""

    content: JsonObject | None = None
    """Genai Content as JSON. Function calls have the engine's ids."""
    calls: tuple[Call, ...] = ()
    """One for each function call in the content, in order."""
    finish_reason: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    usage: Usage | None = None
    model_version: str | None = None
    model: str | None = None
    """The model's name in the agent's declaration; recorded when the budget has prices."""
    attempt: int = 0
    """The attempt at the model call that produced the reply; 0 if no model was called."""
    wrap_up: str | None = None
    """Why the model was asked to wrap up."""
    grounding_metadata: JsonObject | None = None
    citation_metadata: JsonObject | None = None
    definition: str = ""
    """Digest of the agent's definition at the time of the reply."""
    search_attributes: bool = False
    """Whether Waystation's search attributes are registered. Upserting unregistered ones blocks the workflow."""
    duration_s: float = 0.0
    actions: EventActions | None = None
    """State written around the model call."""
    shape: AgentSpec | None = None
    """Present when the agent is entered and is more than a model loop: it runs other agents, or has callbacks."""
    before: CallbackResult | None = None
    """Result of the `before_agent` callbacks; its event precedes the model's."""
    skipped: bool = False
    """Whether a `before_agent` callback answered for the agent; its model and its children do not run."""
    closing: CallbackResult | None = None
    """The agent's final content, emitted once the calls of this reply have responses. The model is not called
    again."""
    output: JsonObject | None = None
    """The final text as parsed JSON, if the agent has an `output_schema`."""
    after: CallbackResult | None = None
    """Result of the `after_agent` callbacks, in the phase `leave`."""
    ends_invocation: bool = False
    """Whether a plugin's `before_run` answered for the whole invocation."""
    compaction: Compaction | None = None
    """The attempt to summarize older events before the model call; its event precedes the model's."""
    scopes: JsonObject | None = None
    """`user:` and `app:` state at the start of the invocation, read by its first model activity."""
    mark: str = ""
    """Distinguishes the attempts at one model call."""
    notify: tuple[str, ...] = ()
    """Channels to notify of pending calls, unless a policy names others."""


class ToolCallInput(Position):
    """Input of a tool activity. The tool reads the state at this position."""

    function_call_id: str
    args: JsonObject | None = None
    """The arguments, if small, because people look for them in the Web UI."""
    confirmation: JsonObject | None = None
    """`{confirmed, hint, payload}` after an approval, if small."""
    root: str
    run: int = 0
    """How often the call has returned before. A tool that requested a confirmation or a credential runs again once it
    is there, and callbacks may process the answer of a called agent."""
    effect: Effect = "repeatable"
    timeout_s: float | None = None
    retries: int = 0
    digest: str | None = None
    """Digest of what the approver approved; the activity runs nothing else. See `policy.call_digest`."""


class ToolOutcome(Recorded):
    """The result of one run of a tool and the changes it made."""

    function_call_id: str
    response: JsonObject | None = None
    """Passed to the model unchanged. None: a long-running tool has no response yet."""
    final: bool = True
    """False while the answer of a long-running tool is still to come from outside."""
    error_type: str | None = None
    fatal: bool = False
    """Whether the tool's exception ends the invocation (`on_error="raise"`)."""
    actions: EventActions | None = None
    parts: tuple[JsonObject, ...] = ()
    """Media parts that belong to the response."""
    beside: tuple[JsonObject, ...] = ()
    """Parts next to the response, for readers of the event."""
    transfer: AgentSpec | None = None
    """The agent that `actions.transfer_to_agent` names."""
    approval: ApprovalPolicy | None = None
    """If the tool itself requests a confirmation: the policy that applies, as in `Call.approval`."""
    declared: str | None = None
    """If the tool itself requests a confirmation: see `Call.declared`."""
    args: JsonObject | None = None
    """If the tool itself requests a confirmation and callbacks changed the arguments: the changed arguments."""
    duration_s: float = 0.0
    """Wall time in the activity, queueing excluded."""
    mark: str = ""
    """Distinguishes the attempts at one call."""
