"""Pending calls, the answers to them, and the verification of an answer that needs more than the log."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from pydantic import Field

from waystation.core import ids
from waystation.core.activity_io import Position
from waystation.core.approval.policy import ApprovalPolicy, Verified
from waystation.core.errors import InvalidAnswer
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, Recorded, decode, parse, repeated_key

Action = Literal["approve", "reject", "edit", "respond", "progress", "claim", "release", "view", "waive", "cancel"]
"""The last five do not decide: somebody takes a call on, or gives it back; looks at it; an operator has it run without
the approval that its policy asks for, or closes it."""


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
    """Proof of who answers, encrypted for the workers."""
    remember: bool = False
    """For `approve`: whether calls like this one are to run unasked for a while, as the policy allows."""


def usual_hint(tool: str) -> str:
    """Return what a person is asked who is to confirm a call, when its author says nothing else."""
    # ADK's wire literal, see adk-semantics 2.1.
    return (
        f"Please approve or reject the tool call {tool}() by responding with a FunctionResponse "
        "with an expected ToolConfirmation payload."
    )


class PendingCall(Recorded):
    """One call that waits for a person, as seen from outside."""

    function_call_id: str
    invocation_id: str
    agent: str
    tool: str
    args: JsonObject
    kind: Literal["confirmation", "credential", "long_running", "budget"]
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
    requester: str | None = None
    """Who triggered the invocation, when that is not `user_id`; a claim of whoever did."""
    policy: ApprovalPolicy | None = None
    level: int = 0
    """How many escalations have taken place."""
    approved_by: tuple[str, ...] = ()
    """Who has approved so far, while more have to."""
    claimed_by: str | None = None
    response_schema: JsonObject | None = None
    """JSON schema of the `response` with which a long-running call is answered."""

    @property
    def approval_id(self) -> str:
        """What names the call in the whole namespace."""
        return ids.approval(self.invocation_id, self.function_call_id)


def check_size(data: bytes) -> None:
    """Look whether an answer fits.

    Raises:
        InvalidAnswer: It does not.
    """
    if len(data) > MAX_VALUE_BYTES:
        # The server takes more, but accepting an update repeats it, and so would sending it on to an activity.
        raise InvalidAnswer(f"The answer is {len(data)} bytes; at most {MAX_VALUE_BYTES} can be recorded.")


def parse_answer(data: bytes) -> Answer:
    """Read an answer.

    Raises:
        InvalidAnswer: It is not JSON, or lacks what the contract requires.
    """
    check_size(data)
    answer = parse(
        Answer,
        data,
        InvalidAnswer,
        what="The answer",
        send='such as {"function_call_id": "fc-1", "action": "approve"}',
    )
    if (key := repeated_key(data)) is not None:
        raise InvalidAnswer(f"The answer has the key {key[:100]!r} twice in one object. Send it once.")
    if answer.action in ("respond", "progress") and answer.response is None:
        raise InvalidAnswer(f"The action `{answer.action}` needs a `response` object.")
    if answer.action == "edit" and answer.args is None:
        raise InvalidAnswer("The action `edit` needs an `args` object.")
    return answer


class ReviewInput(Position):
    """Input of the activity that looks at an answer. The answer is read from the log."""

    ref: str
    """Of the signal or update that brought it."""
    call: str
    """Id of the function call. Not under the name that the input of a tool's activity has for it: a worker that knows
    no reviews would carry out the call instead."""
    root: str = ""


class Review(Recorded):
    """What was found."""

    who: Verified | None = None
    """Who answered, when the answer carried a token."""
    nonce: str | None = None
    """What makes the token usable once."""
    refused: str | None = None
    """Name of an `AnswerRefused` class; None when nothing speaks against the answer."""
    message: str = ""
    """Why it was refused; nothing secret."""
    args: JsonObject | None = None
    """For `edit`: the arguments as the tool will take them, when that is not what was sent."""
    mark: str = ""
    """Tells the attempts of one review apart."""

    def applied_to(self, answer: Answer) -> Answer:
        """Return an answer as it counts."""
        return answer if self.args is None else answer.model_copy(update={"args": self.args})


IDENTITY_ENV = "WAYSTATION_IDENTITY"
"""Name of the variable that names the file which says how tokens are sealed, or opened and verified."""
MAX_TOKEN_CHARS = 32_000
"""Of a sealed token."""
PLAIN_TOKEN = (
    "The token is not encrypted; whoever may read the namespace could use it, so revoke it. Clients encrypt tokens "
    "when WAYSTATION_IDENTITY names a file with the workers' public key."
)


class Signs(Protocol):
    """Makes the token for one answer, as `waystation.identity.Gateway.signer` does."""

    def __call__(self, *, namespace: str, approval_id: str, answer: Mapping[str, Any]) -> str:
        """Return a signed token."""


def is_sealed(token: str) -> bool:
    """Whether a token has the form of a compact JWE, and is not too large for one that holds a token."""
    parts = token.split(".")
    if len(token) > MAX_TOKEN_CHARS or len(parts) != 5:
        return False
    try:
        head = decode(base64.b64decode(parts[0] + "=" * (-len(parts[0]) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        return False
    return isinstance(head, dict) and isinstance(head.get("enc"), str) and all(parts[2:])
