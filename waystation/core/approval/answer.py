"""Pending calls, the answers to them, and the verification of answers that cannot be decided from the log alone."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import Field

from waystation.core import ids
from waystation.core.actions import ACTIONS, Action, WaitKind
from waystation.core.approval.policy import ApprovalPolicy, Verified
from waystation.core.approval.proof import Request, SignedApproval
from waystation.core.errors import InvalidAnswer
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, Recorded, decode, digest, encode, parse, repeated_key


class Answer(Recorded):
    """An approver's answer, sent as a signal or as an update."""

    function_call_id: str = Field(min_length=1, max_length=200)
    action: Action
    response: JsonObject | None = None
    payload: Any = None
    """For a confirmation: the payload that the tool receives, any JSON value. If it is None, the tool receives
    `response`, or else the payload of its own request."""
    args: JsonObject | None = None
    comment: str | None = None
    by: str | None = None
    """The sender's name. This is an unverified claim."""
    interface: str | None = Field(default=None, max_length=60)
    """The interface through which the person answered, such as `web`. A verified token covers it; otherwise it is a
    claim as well."""
    digest: str | None = None
    question: int | None = Field(default=None, strict=True)
    """Number of the question that is answered, as in the pending call. The answer does not count for another question.
    By default, the question that is open when the answer arrives."""
    run: str | None = None
    """For an answer with a token: ID of the invocation's first run. The answer does not count in another invocation
    with the same ID."""
    answer_id: str | None = None
    wake: bool = True
    """Whether to call the model with the response immediately. False is for `progress`, and for answers to a
    long-running call while another call of the agent waits."""
    token: str | None = Field(default=None, repr=False, exclude=True)
    """Proof of the sender's identity, encrypted for the workers."""
    remember: bool = False
    """For `approve`: whether the approval also covers later identical calls, for as long as the policy allows."""

    @property
    def content_digest(self) -> str:
        """Digest of the answer without its token. It is the same if the same answer is sent again."""
        return digest(self.model_dump(mode="json", exclude_defaults=True))

    @property
    def confirmation_payload(self) -> Any:
        """The payload of the answer to a confirmation, or None if there is none."""
        return self.response if self.payload is None else self.payload


class PendingCall(Recorded):
    """A call that is waiting for an answer, as approvers see it."""

    function_call_id: str
    invocation_id: str
    agent: str
    tool: str
    args: JsonObject
    kind: WaitKind
    digest: str
    question: int | None = None
    """Number of the question that the call asks. It changes when a request is answered and when the tool asks again.
    None if an earlier version published the call."""
    title: str | None = None
    """One line on the effect of the call: the tool's title template, filled in with the arguments. The model chooses
    the arguments, so do not rely on this text alone. None if the tool has no template, or if an argument that the
    template names is missing or empty."""
    hint: str = ""
    payload: Any = None
    """Any JSON value."""
    interim: JsonObject | None = None
    """The latest intermediate response sent to the model, or None if there is none."""
    requested_at: float
    """The time at which the wait started, in seconds since 1970."""
    deadline: float
    """The time in seconds since 1970 after which answers no longer count."""
    user_id: str
    session_id: str | None = None
    requester: str | None = None
    """The person who triggered the invocation, if different from `user_id`. This is an unverified claim."""
    joined_requesters: tuple[str, ...] = ()
    """The senders of messages that joined the invocation, if different from both. This is an unverified claim."""
    verified_requesters: tuple[str, ...] = ()
    """The people who requested the invocation, according to their verified tokens."""
    policy: ApprovalPolicy | None = None
    level: int = 0
    """Number of escalations so far."""
    approved_by: tuple[str, ...] = ()
    """The people who have approved the call so far, while the policy requires more approvals."""
    claimed_by: str | None = None
    response_schema: JsonObject | None = None
    """For a long-running call: the JSON schema that the `response` in an answer must match."""
    tool_origin: str | None = None
    """Where the tool comes from: `declared` by the agent, or `toolset:` and the name of the toolset. None if it was not
    recorded."""
    run: str | None = None
    """ID of the invocation's first run. It does not change when the invocation continues as new or is reset."""
    tenant: str | None = None
    """The tenant that the invocation works for, or None."""
    progress_at: float | None = None
    """If a machine answers the call: when it last reported progress, in seconds since 1970, or None."""
    revoked: int = 0
    """If a machine answers the call: how often an operator has revoked its completion URLs."""

    def to_memo(self, max_bytes: int) -> JsonObject:
        """Return the call as the memo lists it: without its run and without what its reader knows.

        The reader knows the invocation ID, the defaults and ADK's default hint. Values of more than `max_bytes` bytes
        are replaced with their size.
        """
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude={"run", "invocation_id"})
        if self.kind == "confirmation":
            fields["hint"] = self.hint
            if self.hint == default_hint(self.tool):
                del fields["hint"]
        for name in ("args", "interim", "payload", "response_schema"):
            if name in fields and (size := len(encode(fields[name]))) > max_bytes:
                fields[name] = {"omitted_bytes": size}
        return fields

    @classmethod
    def from_memo(cls, fields: JsonObject, invocation_id: str) -> "PendingCall":
        """Parse a call from the memo of an invocation."""
        hint = default_hint(str(fields.get("tool"))) if fields.get("kind") == "confirmation" else ""
        return cls.model_validate({"hint": hint, "invocation_id": invocation_id, **fields})

    @property
    def as_seen(self) -> JsonObject:
        """The fields that make an answer count only for the call as it was read."""
        return {"digest": self.digest, "run": self.run, "question": self.question}

    @property
    def approval_id(self) -> str:
        """The approval ID of the call, which is unique in the namespace."""
        return ids.approval(self.invocation_id, self.function_call_id)

    @property
    def machine(self) -> str | None:
        """The name of the machine that answers the call, or None if people do."""
        return self.policy.machine if self.policy else None

    @property
    def requesters(self) -> tuple[str, ...] | None:
        """The verified and the claimed names of the requesters.

        None if the policy excludes the requester and requires verified identities, but no requester is verified.
        """
        policy = self.policy
        if policy and policy.not_requester and policy.must_verify and not self.verified_requesters:
            return None
        names = *self.verified_requesters, self.requester, self.user_id, *self.joined_requesters
        return tuple(name for name in names if name)


def check_size(data: bytes) -> None:
    """Check that an encoded answer is not too large.

    Raises:
        InvalidAnswer: The answer is too large.
    """
    if len(data) > MAX_VALUE_BYTES:
        # The server accepts larger answers. However, an accepted update is recorded twice, and an activity input would
        # repeat it once more.
        raise InvalidAnswer(f"The answer is {len(data)} bytes; at most {MAX_VALUE_BYTES} can be recorded.")


def parse_answer(data: bytes) -> Answer:
    """Parse an answer from an untrusted sender.

    Raises:
        InvalidAnswer: The data is too large, is not JSON, or does not conform to the contract.
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
        raise InvalidAnswer(f"The answer contains the key {key[:100]!r} twice in the same object. Send it only once.")
    required = ACTIONS[answer.action].requires
    if required and getattr(answer, required) is None:
        # Accounts contain this text, so it has to stay the same for the actions that histories contain.
        article = "an" if required == "args" else "a"
        raise InvalidAnswer(f"The action `{answer.action}` needs {article} `{required}` object.")
    return answer


class Verification(Recorded):
    """The result of verifying an answer."""

    who: Verified | None = None
    """The verified approver, or None if the answer has no valid token."""
    nonce: str | None = None
    """The token's unique value, which ensures that the token is accepted only once."""
    question: int | None = None
    """Number of the question that was open when the answer was submitted. The answer does not count for another one.
    None if an earlier version verified the answer."""
    refused: str | None = None
    """Name of an `AnswerRefused` subclass, or None if the answer is valid."""
    message: str = ""
    """Why the answer was refused. Contains no secrets."""
    args: JsonObject | None = None
    """For `edit`: the arguments in the form the tool receives them, if that differs from what was sent."""
    signed: SignedApproval | None = None
    """For an answer that lets the call run: the worker's proof of it."""
    mark: str = ""
    """A value that distinguishes the attempts at the same verification."""

    def applied_to(self, answer: Answer) -> Answer:
        """Return the answer with its arguments replaced by the validated ones, or unchanged if they do not differ."""
        return answer if self.args is None else answer.model_copy(update={"args": self.args})


IDENTITY_ENV = "WAYSTATION_IDENTITY"
"""Environment variable with the path of the workers' identity file, which determines how tokens are verified."""
CLIENT_IDENTITY_ENV = "WAYSTATION_CLIENT_IDENTITY"
"""Environment variable with the path of the identity file of clients, which determines how tokens are encrypted."""
MAX_TOKEN_CHARS = 32_000
"""Maximum length of an encrypted token. Longer ones are refused."""
TOKEN_LIFETIME_S = 86_400.0
"""How long an encrypted token is valid, in seconds. Tokens that are valid for longer are refused."""
PLAIN_TOKEN = (
    "The token is not encrypted, so anyone with access to the namespace could use it. Revoke it. A client encrypts its "
    "tokens if WAYSTATION_CLIENT_IDENTITY is the path of a file with the workers' public key."
)


class TokenSigner(Protocol):
    """A callable that signs a token for one answer or request, such as `Gateway.signer` of `waystation.approvers`."""

    def __call__(self, *, namespace: str, approval_id: str, answer: Mapping[str, Any] | Request) -> str:
        """Return a signed token. For a request, `approval_id` is the ID of the workflow that receives the request."""


def is_encrypted(token: str) -> bool:
    """Return whether a token has the form of a compact JWE and at most `MAX_TOKEN_CHARS` characters."""
    parts = token.split(".")
    if len(token) > MAX_TOKEN_CHARS or len(parts) != 5:
        return False
    try:
        head = decode(base64.b64decode(parts[0] + "=" * (-len(parts[0]) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        return False
    return isinstance(head, dict) and isinstance(head.get("enc"), str) and all(parts[2:])


def default_hint(tool: str) -> str:
    """Return the question that approvers see by default."""
    # ADK 2.13 sends exactly this text.
    return (
        f"Please approve or reject the tool call {tool}() by responding with a FunctionResponse "
        "with an expected ToolConfirmation payload."
    )
