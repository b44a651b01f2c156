"""Assemble a model's reply from the responses of its service.

Adapters convert the responses of other services to genai's JSON first, so that joining text, counting tokens and
recognizing blocked or incomplete replies work the same for all of them.
"""

from waystation.core.budget import Usage
from waystation.core.errors import ModelOverloaded
from waystation.core.payload import JsonObject
from waystation.models.llm_response import LlmResponse
from waystation.models.reply_reasons import NO_CONTENT

MAX_MESSAGE = 500

_COUNTS = {
    "prompt_tokens": "promptTokenCount",
    "output_tokens": "candidatesTokenCount",
    "thoughts_tokens": "thoughtsTokenCount",
    "cached_tokens": "cachedContentTokenCount",
    "total_tokens": "totalTokenCount",
}


class ErrorInReply(Exception):
    """A service answered with the status 200 and an error. The argument is the body of the error."""


class Reply:
    """One reply of a model, assembled from one or more responses, each a genai `GenerateContentResponse` as JSON."""

    def __init__(self, service: str, *, join: bool) -> None:
        self._service, self._join = service, join
        self._parts: list[JsonObject] = []
        self._usage: Usage | None = None
        self._latest: JsonObject = {}
        """The latest nonempty value of each field. The service sends a field again when its value has changed."""

    def add(self, response: JsonObject) -> str:
        """Add one response and return its text without thoughts.

        Raises:
            ModelOverloaded: The response does not have the expected structure.
            ErrorInReply: The response reports an error.
        """
        error = response.get("error")
        if any(error.values()) if isinstance(error, dict) else error:
            raise ErrorInReply(error)
        feedback = self._object(response, "promptFeedback")
        candidate = next(iter(self._objects(response, "candidates")), {})
        content = self._object(candidate, "content")
        fields = {
            "block": feedback.get("blockReason"),
            "why": feedback.get("blockReasonMessage") or candidate.get("finishMessage"),
            "finish": candidate.get("finishReason"),
            "continuation": candidate.get("continuationToken"),
            "version": response.get("modelVersion"),
            "counts": self._object(response, "usageMetadata"),
            "grounding": self._object(candidate, "groundingMetadata"),
            "citations": self._object(candidate, "citationMetadata"),
            "role": content.get("role"),
        }
        self._latest |= {name: value for name, value in fields.items() if value}
        parts = [_tidy(part) for part in self._objects(content, "parts")]
        if not all(isinstance(part.get("text", ""), str) for part in parts):
            raise ModelOverloaded(f"{self._service}'s reply is malformed: a text is not a string.")
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

    def _object(self, holder: JsonObject, key: str) -> JsonObject:
        value = holder.get(key) or {}
        if not isinstance(value, dict):
            raise ModelOverloaded(f"{self._service}'s reply is malformed: its {key} is not an object.")
        return value

    def _objects(self, holder: JsonObject, key: str) -> list[JsonObject]:
        value = holder.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise ModelOverloaded(f"{self._service}'s reply is malformed: its {key} are not a list of objects.")
        return value

    def continuation(self) -> str | None:
        """Finish one request. Return the token for requesting the rest of the reply, or None if the reply is complete.

        Raises:
            ModelOverloaded: The stream ended before the reply was complete.
        """
        # Streamed counts are cumulative, so the last ones are the request's totals.
        if counts := self._latest.pop("counts", None):
            self._usage = (self._usage or Usage()) + Usage(**{name: counts.get(key) for name, key in _COUNTS.items()})
        token: str | None = self._latest.pop("continuation", None)
        finish = self._latest.get("finish")
        if finish == "CONTINUATION" and token:
            del self._latest["finish"]
            return token
        if self._join and not (finish or self._latest.get("block")):
            raise ModelOverloaded(f"{self._service}'s stream ended before the reply was complete.")
        return None

    def response(self) -> LlmResponse:
        """Return the reply. It has an error code if it was blocked, is empty, or was cut off for a reason other than
        `MAX_TOKENS`.
        """
        usable = not all(_is_text(part) and not part["text"].strip() for part in self._parts)
        block, finish = self._latest.get("block"), self._latest.get("finish")
        code = message = None
        if block:
            code, message = block, f"The prompt was blocked ({block})."
        elif finish not in ("STOP", "MAX_TOKENS", "FINISH_REASON_UNSPECIFIED", None):
            code, message = finish, f"The reply was cut off ({finish})."
        elif not usable and finish == "MAX_TOKENS":
            code, message = finish, "The model returned no text within max_output_tokens. Increase the limit."
        elif not usable:
            code, message = NO_CONTENT, "The model returned no content."
        return LlmResponse(
            content={"role": self._latest.get("role", "model"), "parts": self._parts} if usable else None,
            finish_reason=finish,
            error_code=code,
            error_message=str(self._latest.get("why") or message)[:MAX_MESSAGE] if code else None,
            usage=self._usage,
            model_version=self._latest.get("version"),
            grounding_metadata=self._latest.get("grounding"),
            citation_metadata=self._latest.get("citations"),
        )


def _tidy(part: JsonObject) -> JsonObject:
    """Remove nulls from a part, except inside arguments and results, where they are significant."""
    return {
        key: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
        for key, value in part.items()
        if value is not None
    }


def _is_text(part: JsonObject) -> bool:
    """Return whether a part is only text, or a thought's text. A part with a signature is not: parts may be joined, but
    a signature covers exactly one part.
    """
    return "text" in part and part.keys() <= {"text", "thought"}
