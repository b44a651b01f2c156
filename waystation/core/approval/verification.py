"""The look at an answer that needs more than the log: whose token it carries, whether its values fit the tool."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Protocol

from waystation.core.activity_io import Position
from waystation.core.approval.answer import Answer
from waystation.core.approval.policy import Verified
from waystation.core.payload import JsonObject, Recorded, decode


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
