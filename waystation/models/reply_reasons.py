"""The table of everything that can be wrong with a model's reply, with the decision for each.

`docs/reference/replies.md` explains it.
"""

from typing import Literal, TypeAlias

Decision: TypeAlias = Literal["repair", "report", "retry", "stop"]
"""With `repair`, an equivalent value is used instead. With `report`, the model learns what is wrong, and may reply
again. With `retry`, the model is asked the same again. With `stop`, the invocation ends."""

MAX_REMEDIES = 2
"""Maximum number of times in a row that a model is asked again because its reply has an error code."""
NO_CONTENT = "MODEL_RETURNED_NO_CONTENT"

DECISIONS: dict[str, Decision] = {
    # Values.
    "half of a surrogate pair": "repair",
    "integer beyond 64 bits": "repair",
    "arguments as text within JSON": "repair",
    "white space only": "repair",
    # Single calls. Such a call gets an error as its response, and the other calls of the reply run.
    "unknown, invalid or empty name": "report",
    "arguments that are not a JSON object": "report",
    "arguments with NaN, Infinity or more than 64 levels": "report",
    "more than 500 calls": "report",
    # Error codes of replies. Other codes, such as those of callbacks, stop the invocation.
    "MALFORMED_FUNCTION_CALL": "report",
    "UNEXPECTED_TOOL_CALL": "report",
    "TOO_MANY_TOOL_CALLS": "report",
    "MALFORMED_RESPONSE": "report",
    "OUTPUT_SCHEMA": "report",
    "MODEL_REPLY_NOT_JSON": "report",
    "MODEL_REPLY_NOT_CONTENT": "report",
    NO_CONTENT: "retry",
    "NO_IMAGE": "retry",
    "IMAGE_OTHER": "retry",
    "OTHER": "retry",
    "MAX_TOKENS": "stop",
    "MISSING_THOUGHT_SIGNATURE": "stop",
    "SAFETY": "stop",
    "RECITATION": "stop",
    "LANGUAGE": "stop",
    "BLOCKLIST": "stop",
    "PROHIBITED_CONTENT": "stop",
    "SPII": "stop",
    "JAILBREAK": "stop",
    "MODEL_ARMOR": "stop",
    "IMAGE_SAFETY": "stop",
    "IMAGE_PROHIBITED_CONTENT": "stop",
    "IMAGE_RECITATION": "stop",
    "ESCALATION": "stop",
    "PUP_LIMITED_DISABLED": "stop",
    # Types of errors of model calls that failed. Temporal repeats the call, and then it is held.
    "RateLimited": "retry",
    "ModelUnavailable": "retry",
    "ModelFailed": "stop",
}


def find_remedy(code: str, earlier: int) -> Literal["report", "retry"] | None:
    """Return how to continue after a reply with this error code, or None if the invocation stops.

    `earlier` is the number of unusable replies directly before it.
    """
    decision = DECISIONS.get(code, "stop")
    return decision if earlier < MAX_REMEDIES and decision in ("report", "retry") else None
