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
"""The last five do not decide: an approver claims, releases or views a call; an operator waives its policy, so that it
runs, or cancels it."""


class Answer(Recorded):
    """The answer of an approver, sent by signal or by update."""

    function_call_id: str = Field(min_length=1, max_length=200)
    action: Action
    response: JsonObject | None = None
    args: JsonObject | None = None
    comment: str | None = None
    by: str | None = None
    """The sender's name; a claim, not a verified identity."""
    digest: str | None = None
    answer_id: str | None = None
    wake: bool = True
    """For `progress`: whether to call the model with it at once."""
    token: str | None = Field(default=None, repr=False, exclude=True)
    """Proof of identity, encrypted for the workers."""
    remember: bool = False
    """For `approve`: whether the approval also covers later identical calls, as long as the policy allows."""


def default_hint(tool: str) -> str:
    """Return the default question to an approver."""
    # ADK's wire literal, see adk-semantics 2.1.
    return (
        f"Please approve or reject the tool call {tool}() by responding with a FunctionResponse "
        "with an expected ToolConfirmation payload."
    )


class PendingCall(Recorded):
    """A call that waits for an answer, as approvers see it."""

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
    """The latest intermediate response to the model."""
    requested_at: float
    """Seconds since 1970."""
    deadline: float
    """Seconds since 1970; later answers do not count."""
    user_id: str
    session_id: str | None = None
    requester: str | None = None
    """Who triggered the invocation, if not `user_id`; an unverified claim."""
    policy: ApprovalPolicy | None = None
    level: int = 0
    """Number of escalations so far."""
    approved_by: tuple[str, ...] = ()
    """Approvers so far, while the policy requires more."""
    claimed_by: str | None = None
    response_schema: JsonObject | None = None
    """JSON schema of the `response` that answers a long-running call."""

    @property
    def approval_id(self) -> str:
        """Id of the call in the whole namespace."""
        return ids.approval(self.invocation_id, self.function_call_id)


def check_size(data: bytes) -> None:
    """Check the size of an answer.

    Raises:
        InvalidAnswer: The answer is too large.
    """
    if len(data) > MAX_VALUE_BYTES:
        # The server accepts more, but an accepted update is recorded twice, and an activity input would repeat it.
        raise InvalidAnswer(f"The answer is {len(data)} bytes; at most {MAX_VALUE_BYTES} can be recorded.")


def parse_answer(data: bytes) -> Answer:
    """Parse an answer.

    Raises:
        InvalidAnswer: It is not JSON, or violates the contract.
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


class VerificationInput(Position):
    """Input of the activity that verifies an answer. It reads the answer from the log."""

    ref: str
    """Reference of the signal or update with the answer."""
    call: str
    """Function call id. Not named as in `ToolCallInput`: a worker without this activity would run the call
    instead."""
    root: str = ""


class Verification(Recorded):
    """Result of a verification."""

    who: Verified | None = None
    """The verified approver, if the answer has a token."""
    nonce: str | None = None
    """Makes the token valid only once."""
    refused: str | None = None
    """Name of an `AnswerRefused` class; None if the answer is valid."""
    message: str = ""
    """Why the answer was refused, without secrets."""
    args: JsonObject | None = None
    """For `edit`: the arguments as the tool receives them, if they differ from the sent ones."""
    mark: str = ""
    """Distinguishes the attempts at one verification."""

    def applied_to(self, answer: Answer) -> Answer:
        """Return the answer with the validated arguments."""
        return answer if self.args is None else answer.model_copy(update={"args": self.args})


IDENTITY_ENV = "WAYSTATION_IDENTITY"
"""Environment variable with the path of the identity configuration: how to encrypt, decrypt and verify tokens."""
MAX_TOKEN_CHARS = 32_000
"""Limit for an encrypted token."""
PLAIN_TOKEN = (
    "The token is not encrypted: anybody with access to the namespace could use it. Revoke it. Clients encrypt tokens "
    "when WAYSTATION_IDENTITY names a file with the workers' public key."
)


class TokenSigner(Protocol):
    """Signs the token for one answer, as `waystation.identity.Gateway.signer` does."""

    def __call__(self, *, namespace: str, approval_id: str, answer: Mapping[str, Any]) -> str:
        """Return a signed token."""


def is_encrypted(token: str) -> bool:
    """Whether a token has the form of a compact JWE within the size limit."""
    parts = token.split(".")
    if len(token) > MAX_TOKEN_CHARS or len(parts) != 5:
        return False
    try:
        head = decode(base64.b64decode(parts[0] + "=" * (-len(parts[0]) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        return False
    return isinstance(head, dict) and isinstance(head.get("enc"), str) and all(parts[2:])
