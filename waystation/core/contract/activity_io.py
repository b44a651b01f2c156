"""Inputs and results of the model and tool activities."""

from typing import Any, Literal

from pydantic import Field

from waystation.core.approval import ApprovalPolicy, Mac, SignedRequest, default_hint
from waystation.core.budget import Price, Usage
from waystation.core.contract.event import Compaction, EventActions, parts_of
from waystation.core.payload import JsonObject, Recorded, encode

AgentKind = Literal["llm", "sequential", "parallel", "loop", "custom"]


class AgentSpec(Recorded):
    """The recorded structure of an agent and of the agents that it runs.

    The children of an LLM agent are not listed here. Its transfer targets are decided and recorded with each transfer.
    """

    name: str
    kind: AgentKind = "llm"
    children: tuple["AgentSpec", ...] = ()
    max_iterations: int | None = None
    """The iteration limit of a loop agent. If None, the loop ends only when an agent escalates."""
    before: bool = False
    """Whether starting this agent takes a separate activity for its `before_agent` callbacks. The callbacks of an LLM
    agent run as part of its first model call instead."""
    after: bool = False
    """Whether finishing this agent takes a separate activity for its `after_agent` callbacks."""
    keeps_turn: bool = True
    """Whether the user's next message may go directly to this agent, as in ADK 2.13."""
    repeats: bool = False
    """Whether each round of a loop agent takes an activity, even if no LLM agent runs. If not, such a round is the
    last. Older versions did not record this."""


Effect = Literal["read", "repeatable", "once"]
CallKind = Literal["function", "long_running", "agent", "answered"]
Phase = Literal["enter", "turn", "leave"]


class Confirmation(Recorded):
    """The question that an approver answers before a tool may run."""

    hint: str = ""
    payload: Any = None
    """Any JSON value."""
    standard: bool = False
    """Whether the hint is ADK's default hint, which is not recorded."""

    def shortened(self, tool: str) -> "Confirmation":
        """Return the question without its hint if that is ADK's default hint for the tool."""
        return self.model_copy(update={"hint": "", "standard": True}) if self.hint == default_hint(tool) else self

    def resolved(self, tool: str) -> "Confirmation":
        """Return the question with its hint."""
        return self.model_copy(update={"hint": default_hint(tool), "standard": False}) if self.standard else self


class Target(Recorded):
    """Existing code that the workflow runs for a call: an activity, a workflow or a Nexus operation of the user."""

    kind: Literal["activity", "workflow", "nexus"] = "activity"
    name: str
    """The type of the activity or workflow, or the name of the operation."""
    parameters: tuple[str, ...] | None = None
    """The names of the arguments, in the order in which they are passed. None if they are passed as one object."""
    check: bool = False
    """Whether a tool activity verifies the call's approval before the target runs."""
    endpoint: str | None = None
    """For a Nexus operation: the name of the endpoint."""
    service: str | None = None
    """For a Nexus operation: the name of the service."""


class Call(Recorded):
    """How the workflow runs one function call of a model reply.

    The call's name and arguments are in the reply's content.
    """

    id: str
    """The function call ID. The engine generates it, and every layer uses the same ID."""
    model_id: str | None = None
    """The call ID that the model assigned. It is only ever sent back to the model provider."""
    kind: CallKind = "function"
    response: JsonObject | None = None
    """For an `answered` call: the response that was already known when the reply was processed, for example because the
    tool does not exist."""
    actions: EventActions | None = None
    """For an `answered` call: the actions of the call, for example a transfer."""
    transfer: AgentSpec | None = None
    """For an `answered` call whose `actions` contain a transfer: the agent that takes over."""
    confirmation: Confirmation | None = None
    """The question to the approver, or None if the tool may run without approval."""
    agent: str | None = None
    """For an `agent` call: the name of the called agent."""
    args: JsonObject | None = None
    """For a call that needs approval: the arguments after the `before_tool` callbacks. The approver sees these
    arguments, and the tool runs with them unless the approver edits them."""
    message: str | None = None
    """For an `agent` call: the message to the called agent, or None if the message is the `request` argument."""
    skip_summarization: bool = False
    target: Target | None = None
    """The code that the workflow runs for the call instead of the tool's activity, or None if it runs that activity."""
    after: bool = False
    """For an `agent` call or a call with a `target`: whether `after_tool` callbacks process the result in a separate
    activity."""
    detached: bool = False
    """For an `agent` call: whether the called agent keeps running when its caller continues as new."""
    effect: Effect = "repeatable"
    timeout_s: float | None = None
    retries: int = 0
    heartbeat_timeout_s: float | None = None
    task_queue: str | None = None
    title: str | None = None
    """The tool's title template, or None if it has none; see `summary.title`."""
    description: str | None = None
    """The beginning of the tool's description, for approvers. It is set if the call has a `title`, is long-running,
    needs confirmation or has an approval policy, and the description is not empty."""
    deadline_s: float | None = None
    """How many seconds an approver has to answer, counted from the moment the call starts to wait. A deadline in the
    approval policy takes precedence. If there is neither, the default is 30 days."""
    approval: ApprovalPolicy | None = None
    """The approval policy in force when the call was made, or None if there was none."""
    shadows: tuple[str, ...] = ()
    """The rules that are only tried and would have asked about this call, by name."""
    declared: str | None = None
    """Digest of the tool's parameters, without titles and descriptions. It is set if the call is long-running, needs
    confirmation or has an approval policy. The tool activity uses it to check that the tool it is about to run is the
    one that was approved."""
    tool_origin: str | None = None
    """Where the tool comes from: `declared`, or `toolset:` and the name of its toolset. It is set if `declared` is, and
    for each call to a tool of a toolset."""
    root: str | None = None
    """Name of the root agent. It is set if an approval of this call may be remembered, because it will cover only calls
    below that agent."""
    standing: str | None = None
    """The origin of the remembered approval that covers this call, so that no approver is asked despite the
    `confirmation`."""
    mac: Mac | None = None
    """Proof that a worker decided whether the call needs an approval; see `proof.call_claims`."""
    response_schema: JsonObject | None = None
    """For a long-running call: the JSON schema that the `response` in an answer must match."""
    machine_policy: ApprovalPolicy | None = None
    """For a long-running call that a machine answers: the policy for its answer, which names only the machine. The
    `approval` then only says who must approve that the tool runs."""
    unknown: bool = False
    """Whether the agent had no tool with this name when its model made the call."""
    quick: bool = False
    """Whether the first run of the call is a local activity: the tool is quick, no approver is asked first, and the
    worker that processed the reply also runs and caches workflows."""


class Position(Recorded):
    """The position in the log at which the workflow issued a command.

    A position refers to the entries applied since the previous command, but does not contain them.
    """

    at: int
    """The length of the log when the previous command was issued."""
    new: tuple[str, ...]
    """References to the entries applied since then, in the order the workflow applied them."""


class ModelCallInput(Position):
    """Input of the model activity."""

    agent: str
    root: str = ""
    """Name of the agent's root agent. Empty if the agent itself is the root."""
    number: int
    turn: int = 0
    """Index of the agent run that the activity belongs to."""
    phase: Phase = "turn"
    """In the phase `enter`, the agent starts, and its `before_agent` callbacks run before the model call. In the phase
    `turn`, the agent continues with a model call. In the phase `leave`, only its `after_agent` callbacks run."""
    wrap_up: str | None = None
    """The exhausted budget limit that forces the agent to answer now without calling tools, or None."""
    standing: tuple[str, ...] = ()
    """Origins of the remembered approvals that have not expired."""
    check_search: bool = False
    """Whether to report if Waystation's search attributes are registered, because the workflow does not know."""


class CallbackResult(Recorded):
    """The content and actions returned by the callbacks around an agent. They become a separate event."""

    content: JsonObject | None = None
    actions: EventActions | None = None


class BodyEvent(CallbackResult):
    """An event that the body of a custom agent yielded."""

    author: str = ""
    """The author that the body set, or empty for the agent."""
    error_code: str | None = None
    error_message: str | None = None
    custom_metadata: JsonObject | None = None


class ModelReply(Recorded):
    """A model's reply, together with everything the workflow needs to run its function calls."""

    content: JsonObject | None = None
    """The reply as a genai `Content` in JSON form. Its function calls have IDs generated by the engine."""
    calls: tuple[Call, ...] = ()
    """One item for each function call in the content, in the same order. Not recorded if none has more than an ID."""
    finish_reason: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    remedy: Literal["report", "retry"] | None = None
    """How to continue although the reply has an error: the model is asked again, after `report` with the reason."""
    usage: Usage | None = None
    model_version: str | None = None
    model: str | None = None
    """The name of the model that answered, if the agent's model chose among several. Otherwise the model name in the
    agent's declaration, or None if the budget neither has prices nor limits the cost."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Prices from the worker's table, by model name. Set if the budget limits the cost but has no price for the
    model."""
    attempt: int = 0
    """Number of the attempt that produced the reply, or 0 if no model was called."""
    wrap_up: str | None = None
    """The reason why the model was asked to wrap up, or None."""
    grounding_metadata: JsonObject | None = None
    citation_metadata: JsonObject | None = None
    custom_metadata: JsonObject | None = None
    """Metadata of the event that the model or its callbacks set."""
    definition: str = ""
    """Digest of the agent's definition, computed when the reply was produced."""
    search_attributes: bool = False
    """Whether Waystation's search attributes are registered, if the workflow asked for it. Upserting unregistered
    attributes would block the workflow."""
    duration_s: float = 0.0
    """How long the attempt that returned the reply ran, by its worker's monotonic clock."""
    measured: bool = False
    """Whether `duration_s` counts as working time; see `core.log.budget_use`. Older versions did not record this."""
    actions: EventActions | None = None
    """State changes made by code that ran around the model call, such as callbacks."""
    shape: AgentSpec | None = None
    """The structure of the agent. Set when the agent starts and is more than a plain LLM agent: it runs other agents or
    has agent callbacks."""
    before: CallbackResult | None = None
    """Result of the `before_agent` callbacks. The event for it precedes the event for the model's reply."""
    skipped: bool = False
    """Whether a `before_agent` callback answered in place of the agent. If so, neither the agent's model nor the
    agent's children run."""
    closing: CallbackResult | None = None
    """The agent's final content, if the model called `set_model_response`. It is emitted once all function calls of the
    reply have responses, and the model is not called again."""
    output: JsonObject | None = None
    """The agent's structured answer, if the agent has an `output_schema` and this reply ends with a valid answer."""
    after: CallbackResult | None = None
    """Result of the `after_agent` callbacks in the phase `leave`."""
    ends_invocation: bool = False
    """Whether a plugin's `before_run` callback answered, so that the invocation ends without running any agent."""
    compaction: Compaction | None = None
    """The attempt to summarize older events before the model call, if there was one. The event for this attempt comes
    before the event for the model's reply."""
    scopes: JsonObject | None = None
    """The `user:` and `app:` state at the start of the invocation, as read by its first model activity."""
    mark: str = ""
    """A value that distinguishes the attempts at the same model call."""
    notify: tuple[str, ...] = ()
    """The channels to notify of pending calls whose policy does not name any channels."""
    notify_operators: tuple[str, ...] = ()
    """The channels to notify of calls whose outcome is unknown, if these are not the channels of `notify`."""
    endpoints: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The endpoints that receive the invocation's events, by event."""
    stores: dict[str, str] | None = None
    """The IDs of the worker's stores by name, or None if earlier replies of the invocation recorded the same IDs."""
    signed_request: SignedRequest | None = None
    """The verified requesters, or None if no messages have arrived since tokens were last verified."""
    yielded: tuple[BodyEvent, ...] = ()
    """For a custom agent: the events that its body yielded since its last sub-agent ended, or since the body began."""
    begins: AgentSpec | None = None
    """For a custom agent: the sub-agent that its body runs next, or None if the body has ended."""

    def encode(self) -> bytes:
        """Return the recorded form. It leaves out usual values, and `calls` if none of them has more than an ID."""
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude=set(_USUAL))
        fields |= {name: value for name, usual in _USUAL.items() if (value := getattr(self, name)) != usual}
        if all(call == Call(id=call.id) for call in self.calls):
            fields.pop("calls", None)
        return encode(fields)

    def restored(self) -> "ModelReply":
        """Return a reply that was parsed from its recorded form, with the values that `encode` leaves out.

        Raises:
            ValueError: Some function calls have no ID, or `calls` was recorded with a different number of items.
        """
        fields: JsonObject = {name: usual for name, usual in _USUAL.items() if name not in self.model_fields_set}
        called = parts_of(self.content, "functionCall")
        if called and not self.calls:
            fields["calls"] = tuple(Call(id=call.get("id", "")) for call in called)
        elif len(called) != len(self.calls):
            raise ValueError("calls without annotation")
        return self.model_copy(update=fields)


_USUAL = {"finish_reason": "STOP", "attempt": 1}
"""The values of a model reply's fields if the recorded reply lacks them."""


class ToolCallInput(Position):
    """Input of a tool activity. The tool sees the state at this position in the log."""

    function_call_id: str
    args: JsonObject | None = None
    """The arguments, repeated here so that they are visible in the Temporal Web UI. None if they are too large; the
    activity then reads them from the log."""
    confirmation: JsonObject | None = None
    """An assumed confirmation, `{confirmed, hint, payload}`, if the call is rerun. Otherwise None, because the log
    contains the approver's confirmation."""
    run: int = 0
    """How many times the call has already returned. A call runs again once the confirmation or credential that its
    tool requested has been provided. For a call to an agent, the second run is the callbacks that process the agent's
    answer."""
    effect: Effect = "repeatable"
    timeout_s: float | None = None
    retries: int = 0
    digest: str | None = None
    """Digest of the approved call; see `policy.call_digest`. The activity refuses to run a call with a different one.
    None if the call needed no approval."""


class ToolOutcome(Recorded):
    """The result of one run of a tool and the changes that the run made."""

    function_call_id: str = ""
    """The function call ID. Empty in the activity's result, because the activity ID contains it."""
    response: JsonObject | None = None
    """The function response, passed to the model unchanged. None if a long-running tool has not responded yet."""
    final: bool = True
    """False if a long-running tool is still waiting for an external answer."""
    error_type: str | None = None
    fatal: bool = False
    """Whether the tool raised an exception that ends the invocation (`on_error="raise"`)."""
    actions: EventActions | None = None
    parts: tuple[JsonObject, ...] = ()
    """Media parts that belong to the response."""
    beside: tuple[JsonObject, ...] = ()
    """Additional parts for readers of the event, placed next to the response."""
    transfer: AgentSpec | None = None
    """The agent named in `actions.transfer_to_agent`, or None if the tool does not transfer."""
    proceed: bool = False
    """Whether the activity only verified the call's approval, so that the workflow now runs the call's `target`."""
    approval: ApprovalPolicy | None = None
    """The policy that applies if the tool itself requests a confirmation, as in `Call.approval`."""
    declared: str | None = None
    """Digest of the tool's parameters if the tool itself requests a confirmation, as in `Call.declared`."""
    tool_origin: str | None = None
    """Where the tool comes from, if the tool itself requests a confirmation, as in `Call.tool_origin`."""
    args: JsonObject | None = None
    """The changed arguments, if callbacks changed them and the tool itself requests a confirmation."""
    duration_s: float = 0.0
    """How long the attempt that returned the result ran, by its worker's monotonic clock."""
    measured: bool = False
    """As in `ModelReply`."""
    mark: str = ""
    """A value that distinguishes the attempts at the same tool call."""
    mac: Mac | None = None
    """Proof that this run of the tool ended with a request for a confirmation or credential, so it may run again."""

    def encode(self) -> bytes:
        """Return the recorded form, without the function call ID."""
        return self.__pydantic_serializer__.to_json(self, exclude_defaults=True, exclude={"function_call_id"})


class SegmentRef(Recorded):
    """Reference to a segment of a log, or of a session's transcript, in the payload store."""

    digest: str
    """Digest of the segment's bytes. It is also their key in the store."""
    size: int
    """In bytes."""
    entries: int
    """Number of entries."""


class VerificationInput(Position):
    """Input of the activity that verifies an answer. The activity reads the answer from the log."""

    ref: str
    """Reference to the signal or update that contains the answer."""
    call: str
    """The function call ID. `ToolCallInput` names this field `function_call_id`. The names differ because a worker that
    does not know this activity would otherwise run the call."""
