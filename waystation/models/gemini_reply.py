"""A reply of Gemini, put together from the JSON of the responses that it arrives in.

Not by way of the SDK's types: they drop part fields that they do not know, and recode thought signatures.
"""

from waystation.core.budget import Usage
from waystation.core.errors import ModelOverloaded
from waystation.core.payload import JsonObject, decode
from waystation.models import LlmResponse

NO_CONTENT = "MODEL_RETURNED_NO_CONTENT"
MAX_MESSAGE = 500


class Reply:
    """One reply of the model, put together from the responses that it arrives in."""

    def __init__(self, *, join: bool) -> None:
        self._join = join
        self._role = "model"
        self._parts: list[JsonObject] = []
        self._finish: str | None = None
        self._block: str | None = None
        self._why: str | None = None
        self._token: str | None = None
        self._version: str | None = None
        self._usage: Usage | None = None
        self._counts: JsonObject = {}
        self._grounding: JsonObject = {}
        self._citations: JsonObject = {}

    def add(self, response: JsonObject) -> str:
        """Take in one response and return its visible text."""
        feedback = _object(response, "promptFeedback")
        self._block = feedback.get("blockReason") or self._block
        self._version = response.get("modelVersion") or self._version
        self._counts = _object(response, "usageMetadata") or self._counts
        candidate = next(iter(_objects(response, "candidates")), {})
        self._finish = candidate.get("finishReason") or self._finish
        self._why = feedback.get("blockReasonMessage") or candidate.get("finishMessage") or self._why
        self._token = candidate.get("continuationToken") or self._token
        # The last one counts: the service repeats what it said, with more in it.
        self._grounding = _object(candidate, "groundingMetadata") or self._grounding
        self._citations = _object(candidate, "citationMetadata") or self._citations
        content = _object(candidate, "content")
        self._role = content.get("role") or self._role
        parts = [_tidy(part) for part in _objects(content, "parts")]
        if not all(isinstance(part.get("text", ""), str) for part in parts):
            raise ModelOverloaded("Gemini's reply is malformed: a text is no string.")
        for part in parts:
            self._append(part)
        return "".join(part["text"] for part in parts if part.get("text") and not part.get("thought"))

    def _append(self, part: JsonObject) -> None:
        last = self._parts[-1] if self._parts else {}
        if not (self._join and _is_text(part)):
            self._parts.append(part)
        elif _is_text(last) and last.get("thought") == part.get("thought"):
            self._parts[-1] = {**last, "text": last["text"] + part["text"]}
        elif part["text"]:
            self._parts.append(part)

    def continuation(self) -> str | None:
        """Close the books on one request; return the token with which the service wants another to go on.

        Raises:
            ModelOverloaded: The stream ended before the reply did.
        """
        if self._counts:
            # Streamed counts include the ones before them, so the last ones are the request's.
            self._usage = (self._usage or Usage()) + _usage(self._counts)
        token, self._token, self._counts = self._token, None, {}
        if self._finish == "CONTINUATION" and token:
            self._finish = None
            return token
        if self._join and self._parts and not (self._finish or self._block):
            raise ModelOverloaded("Gemini's stream ended before the reply was complete.")
        return None

    def response(self) -> LlmResponse:
        """Return the reply, with an error code when it is not the model's whole and own answer."""
        usable = not all(_is_text(part) and not part["text"] for part in self._parts)
        code = message = None
        if self._block:
            code, message = self._block, f"The prompt was blocked ({self._block})."
        elif self._finish not in ("STOP", "MAX_TOKENS", "FINISH_REASON_UNSPECIFIED", None):
            code, message = self._finish, f"The reply was cut off ({self._finish})."
        elif not usable and self._finish == "MAX_TOKENS":
            code, message = self._finish, "The model said nothing within max_output_tokens; allow it more."
        elif not usable:
            code, message = NO_CONTENT, "The model returned no content."
        return LlmResponse(
            content={"role": self._role, "parts": self._parts} if usable else None,
            finish_reason=self._finish,
            error_code=code,
            error_message=str(self._why or message)[:MAX_MESSAGE] if code else None,
            usage=self._usage,
            model_version=self._version,
            grounding_metadata=self._grounding or None,
            citation_metadata=self._citations or None,
        )


def parsed(text: str) -> JsonObject:
    """Read one response.

    Raises:
        ModelOverloaded: It is not a JSON object.
    """
    try:
        value = decode(text)
    except ValueError:
        raise ModelOverloaded("Gemini's reply is not valid JSON.") from None
    return _object({"response": value}, "response")


def _object(holder: JsonObject, key: str) -> JsonObject:
    value = holder.get(key) or {}
    if not isinstance(value, dict):
        raise ModelOverloaded(f"Gemini's reply is malformed: its {key} is not an object.")
    return value


def _objects(holder: JsonObject, key: str) -> list[JsonObject]:
    value = holder.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ModelOverloaded(f"Gemini's reply is malformed: its {key} are not a list of objects.")
    return value


def _tidy(part: JsonObject) -> JsonObject:
    """Leave out nulls, but not deep inside: in arguments and results they mean something."""
    return {
        key: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
        for key, value in part.items()
        if value is not None
    }


def _is_text(part: JsonObject) -> bool:
    """Whether the part is nothing but text. A signed one is not: the signature is for this very part."""
    return "text" in part and part.keys() <= {"text", "thought"}


def _usage(counts: JsonObject) -> Usage:
    kinds = {"prompt": "prompt", "output": "candidates", "thoughts": "thoughts", "cached": "cachedContent"}
    found = {f"{ours}_tokens": counts.get(f"{its}TokenCount") for ours, its in kinds.items()}
    found["total_tokens"] = counts.get("totalTokenCount")
    return Usage(**{name: count for name, count in found.items() if isinstance(count, int)})
