"""The wire contract: names and payloads that other programs depend on.

They change only by gaining optional fields, or with a new name beside the old.
"""

from typing import Any, Literal

from pydantic import Field, ValidationError

from waystation.core import message
from waystation.core.errors import InvalidAnswer, InvalidInput, NotJson
from waystation.core.event import EventActions
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, Recorded, decode_foreign
from waystation.core.shape import AgentShape

TASK_QUEUE = "waystation"
WORKFLOW = "AgentInvocation"
ANSWER_SIGNAL = "answer"
ANSWER_UPDATE = "submit_answer"
MODEL_ACTIVITY = "call_model"

SEARCH_AGENT = "WaystationAgent"
SEARCH_SESSION = "WaystationSession"
SEARCH_USER = "WaystationUser"
SEARCH_STATUS = "WaystationStatus"
SEARCH_PENDING = "WaystationPending"
SEARCH_ATTRIBUTES = {
    SEARCH_AGENT: "Keyword",
    SEARCH_SESSION: "Keyword",
    SEARCH_USER: "Keyword",
    SEARCH_STATUS: "Keyword",
    SEARCH_PENDING: "KeywordList",
}
MEMO_PENDING = "waystation_pending"

DEFAULT_APP = "waystation"
DEFAULT_USER = "user"
MAX_NAME_CHARS = 1_000
"""As for workflow ids. Names are repeated in memos and in the input of each activity, which must not grow over 2 MB."""
MAX_MODEL_CALLS = 500
"""ADK's default of `max_llm_calls`."""

Action = Literal["approve", "reject", "edit", "respond", "progress"]
Effect = Literal["read", "repeatable", "once"]
CallKind = Literal["function", "long_running", "agent", "answered"]
Phase = Literal["enter", "turn", "leave"]


class Budget(Recorded):
    """How much one invocation may use before it stops."""

    max_llm_calls: int = MAX_MODEL_CALLS


class InvocationInput(Recorded):
    """How an invocation is started: the one argument of the workflow."""

    agent: str = Field(max_length=MAX_NAME_CHARS)
    message: str | JsonObject
    """Text, or a genai Content as JSON."""
    state: JsonObject = {}
    user_id: str = Field(default=DEFAULT_USER, max_length=MAX_NAME_CHARS)
    session_id: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    app: str = Field(default=DEFAULT_APP, max_length=MAX_NAME_CHARS)
    budget: Budget = Budget()
    metadata: JsonObject = {}
    root: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """Name of the root agent in whose tree `agent` is found; set for agents that other agents call."""
    depth: int = 0
    """How many agents call one another above this invocation."""
    origin: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """Id of the invocation at the top, for agents that other agents call; they share its artifacts."""


class Usage(Recorded):
    """Tokens, as the provider counts them."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    thoughts_tokens: int = 0
    cached_tokens: int = 0
    total_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})


NO_USAGE = Usage()


class InvocationResult(Recorded):
    """What an invocation returns to whoever started it."""

    status: Literal["completed", "stopped"] = "completed"
    reason: str | None = None
    """Why it stopped."""
    text: str = ""
    content: JsonObject | None = None
    state_delta: JsonObject = {}
    removed_keys: tuple[str, ...] = ()
    usage: Usage = NO_USAGE
    invocation_id: str = ""
    output: JsonObject | None = None
    """What the final text says, parsed, when the agent has an `output_schema`."""
    artifact_delta: dict[str, int] = {}
    """Artifacts that were saved, with their latest versions."""
    next_agent: str | None = None
    """Who would get the user's next message, when that is not the agent that was started; see adk-semantics 9.1."""
    omitted: tuple[str, ...] = ()
    """Fields left out because the result would not have fitted into a payload."""

    def encode(self) -> bytes:
        """Return the result as JSON with every contract field present, so that readers need no defaults."""
        return self.__pydantic_serializer__.to_json(self)

    def fitted(self) -> "InvocationResult":
        """Return the result without what would exceed a payload; the history still has all of it."""
        result = self
        for name, empty in (("content", None), ("state_delta", {}), ("output", None), ("text", "")):
            if len(result.encode()) <= MAX_VALUE_BYTES:
                break
            result = result.model_copy(update={name: empty, "omitted": (*result.omitted, name)})
        return result


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
    message: str | None = None
    """For `agent`: what it is told, when that is not the argument `request`."""
    skip_summarization: bool = False
    after: bool = False
    """For `agent`: whether the agent's answer passes through `after_tool` callbacks, in an activity of its own."""
    effect: Effect = "repeatable"
    timeout_s: float | None = None
    retries: int = 0
    heartbeat_timeout_s: float | None = None
    task_queue: str | None = None
    deadline_s: float | None = None
    """How long a person may take to answer, from the moment the call waits."""


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
    mark: str = ""
    """Tells the attempts of one model call apart."""


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
    duration_s: float = 0.0
    """Wall time in the activity, queueing excluded."""
    mark: str = ""
    """Tells the attempts of one call apart."""


class Answer(Recorded):
    """What an approver sends, by signal or by update."""

    function_call_id: str = Field(min_length=1, max_length=200)
    action: Action
    response: JsonObject | None = None
    args: JsonObject | None = None
    comment: str | None = None
    by: str | None = None
    """Who says to have answered; a claim, not a verified identity."""
    digest: str | None = None
    answer_id: str | None = None
    wake: bool = True
    """For `progress`: whether the model is called with it at once."""
    token: str | None = Field(default=None, repr=False, exclude=True)


class PendingCall(Recorded):
    """One call that waits for a person, as seen from outside."""

    function_call_id: str
    invocation_id: str
    agent: str
    tool: str
    args: JsonObject
    kind: Literal["confirmation", "credential", "long_running"]
    digest: str
    hint: str = ""
    payload: Any = None
    """Any JSON."""
    interim: JsonObject | None = None
    """The latest intermediate response, which the model has seen."""
    requested_at: float
    """Seconds since 1970."""
    deadline: float
    """Seconds since 1970; an answer after it does not count."""
    user_id: str
    session_id: str | None = None


def parse_input(data: bytes) -> InvocationInput:
    """Read the input of an invocation.

    Raises:
        InvalidInput: It is not JSON, or lacks what the contract requires. The message repeats no content.
    """
    try:
        parsed = InvocationInput.model_validate(decode_foreign(data))
    except ValidationError as error:
        raise InvalidInput(f"The input of {WORKFLOW} is invalid: {_where(error)}.") from None
    except NotJson as error:
        raise InvalidInput(f"The input of {WORKFLOW} cannot be recorded: it has {error.found}.") from None
    except ValueError:
        raise InvalidInput(
            f"The input of {WORKFLOW} is not JSON; send one object with `agent` and `message`."
        ) from None
    if isinstance(parsed.message, dict):
        problem = message.problem_of(parsed.message)
        if problem:
            raise InvalidInput(f"The message of {WORKFLOW} is invalid: {problem}")
    return parsed


def parse_answer(data: bytes) -> Answer:
    """Read an answer.

    Raises:
        InvalidAnswer: It is not JSON, or lacks what the contract requires.
    """
    if len(data) > MAX_VALUE_BYTES:
        # The server takes more, but accepting an update repeats it, and so would sending it on to an activity.
        raise InvalidAnswer(f"The answer is {len(data)} bytes; at most {MAX_VALUE_BYTES} can be recorded.")
    try:
        answer = Answer.model_validate(decode_foreign(data))
    except ValidationError as error:
        raise InvalidAnswer(f"The answer is invalid: {_where(error)}.") from None
    except NotJson as error:
        raise InvalidAnswer(f"The answer cannot be recorded: it has {error.found}.") from None
    except ValueError:
        raise InvalidAnswer(
            'The answer is not JSON; send one object such as {"function_call_id": "fc-1", "action": "approve"}.'
        ) from None
    if answer.action == "respond" and answer.response is None:
        raise InvalidAnswer("The action `respond` needs a `response` object.")
    if answer.action == "progress" and answer.response is None:
        raise InvalidAnswer("The action `progress` needs a `response` object.")
    if answer.action == "edit" and answer.args is None:
        raise InvalidAnswer("The action `edit` needs an `args` object.")
    return answer


def _where(error: ValidationError) -> str:
    """Return which fields are wrong and why, without their values."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, p['loc'])) or 'value'}: {p['msg']}" for p in problems[:5])
