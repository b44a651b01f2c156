"""Gemini models through google-genai, with an API key or on Vertex AI.

Contents and declarations bypass the SDK's types in both directions. The types drop unknown part fields, re-encode
thought signatures (`+/` becomes `-_`) and warn about new enum values, and the service rejects a conversation with a
missing signature. The SDK handles connections, credentials and the generation config.
"""

import asyncio
import email.utils
import json
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from waystation.core import JsonObject, ModelError, ModelOverloaded, ModelRefused, Usage, decode
from waystation.models.base_llm import BaseLlm, LlmRequest
from waystation.models.llm_response import LlmResponse

if TYPE_CHECKING:  # The import takes 0.8 s, which workers with other models should not pay.
    from google.genai import Client, types
    from google.genai.errors import APIError

NO_CONTENT = "MODEL_RETURNED_NO_CONTENT"
MAX_MESSAGE = 500
MAX_RETRY_AFTER_S = 86_400.0
MIN_KEY = 8  # Shorter keys are used only in tests, and they also occur in ordinary words.
ECHO = 12  # A run of this many characters that also occurs in the request counts as quoted content.

CONTINUE_PROMPT = "Continue as instructed. If there is nothing left to do, say so or summarize."

_NO_CREDENTIALS = (
    "Gemini has no usable credentials (set GOOGLE_API_KEY or GEMINI_API_KEY; for Vertex AI "
    "GOOGLE_GENAI_USE_VERTEXAI=true, GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION)"
)
_WRONG_ADDRESS = {"InvalidURL", "InvalidUrlClientError", "UnsupportedProtocol"}
_WRONG_KEY = {"LocalProtocolError", "UnicodeEncodeError"}  # Not valid in an HTTP header. These errors quote the key.
_COUNTS = {
    "prompt_tokens": "promptTokenCount",
    "output_tokens": "candidatesTokenCount",
    "thoughts_tokens": "thoughtsTokenCount",
    "cached_tokens": "cachedContentTokenCount",
    "total_tokens": "totalTokenCount",
}
_streamed_json: ContextVar[list[str]] = ContextVar("streamed_json")


class Reply:
    """One reply of the model, assembled from the JSON of one or more responses."""

    def __init__(self, *, join: bool) -> None:
        self._join = join
        self._parts: list[JsonObject] = []
        self._usage: Usage | None = None
        self._latest: JsonObject = {}
        """The latest nonempty value of each field. The service sends a field again when its value has changed."""

    def add(self, response: JsonObject) -> str:
        """Add one response and return its text without thoughts.

        Raises:
            ModelOverloaded: The response does not have the expected structure.
        """
        feedback = _object(response, "promptFeedback")
        candidate = next(iter(_objects(response, "candidates")), {})
        content = _object(candidate, "content")
        fields = {
            "block": feedback.get("blockReason"),
            "why": feedback.get("blockReasonMessage") or candidate.get("finishMessage"),
            "finish": candidate.get("finishReason"),
            "continuation": candidate.get("continuationToken"),
            "version": response.get("modelVersion"),
            "counts": _object(response, "usageMetadata"),
            "grounding": _object(candidate, "groundingMetadata"),
            "citations": _object(candidate, "citationMetadata"),
            "role": content.get("role"),
        }
        self._latest |= {name: value for name, value in fields.items() if value}
        parts = [_tidy(part) for part in _objects(content, "parts")]
        if not all(isinstance(part.get("text", ""), str) for part in parts):
            raise ModelOverloaded("Gemini's reply is malformed: a text is not a string.")
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
        """Finish one request. Return the token for requesting the rest of the reply, or None if the reply is complete.

        Raises:
            ModelOverloaded: The stream ended before the reply was complete.
        """
        # Streamed counts are cumulative, so the last ones are the request's totals.
        if counts := self._latest.pop("counts", None):
            spent = {name: counts[key] for name, key in _COUNTS.items() if isinstance(counts.get(key), int)}
            self._usage = (self._usage or Usage()) + Usage(**spent)
        token: str | None = self._latest.pop("continuation", None)
        finish = self._latest.get("finish")
        if finish == "CONTINUATION" and token:
            del self._latest["finish"]
            return token
        if self._join and self._parts and not (finish or self._latest.get("block")):
            raise ModelOverloaded("Gemini's stream ended before the reply was complete.")
        return None

    def response(self) -> LlmResponse:
        """Return the reply. It has an error code if it was blocked, is empty, or was cut off for a reason other than
        `MAX_TOKENS`.
        """
        usable = not all(_is_text(part) and not part["text"] for part in self._parts)
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


class Gemini(BaseLlm):
    """A Gemini model.

    By default, google-genai reads the credentials from the environment. It uses either `GOOGLE_API_KEY` or
    `GEMINI_API_KEY`, or `GOOGLE_GENAI_USE_VERTEXAI=true` with `GOOGLE_CLOUD_PROJECT`, `GOOGLE_CLOUD_LOCATION` and
    application default credentials.
    """

    def __init__(
        self,
        *,
        model: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        """Store the settings. google-genai is imported, and its client created, on the first call.

        Args:
            model: The model name. It overrides the name in the request.
            api_key: The API key. It overrides the key from the environment.
            base_url: The URL of the API, such as a gateway or `FakeGemini.url`.
            timeout: How long to wait for data from the service. There is no limit by default, because the activity
                has its own timeout.

        Raises:
            ValueError: `timeout` is not positive.
        """
        if timeout is not None and timeout <= timedelta(0):
            raise ValueError(f"The Gemini timeout {timeout} is not positive. Use a longer one, or None for no limit.")
        self.model = model
        self._api_key, self._base_url, self._timeout = api_key, base_url, timeout
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the model's response; see `BaseLlm.generate`."""
        reply = Reply(join=on_text is not None)
        try:
            client = await self._connected()
            continuation: str | None = ""
            while continuation is not None:
                async for chunk in self._chunks(client, request, continuation, on_text is not None):
                    text = reply.add(_parsed(chunk))
                    if text and on_text is not None:
                        on_text(text)
                continuation = reply.continuation()
        except ModelError:
            raise
        except Exception as error:  # The SDK's error classes exist only after its import.
            mapped = self._mapped(error, request)
            if mapped is None:
                raise
            # Do not chain the error: histories record causes, and SDK errors quote requests and replies.
            raise mapped from None
        return reply.response()

    async def close(self) -> None:
        """Close the connections. A later call of `generate` opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aio.aclose()
            client.close()

    async def _connected(self) -> "Client":
        async with self._connecting:
            if self._client is None:
                # Connect in a thread: the import is slow, and loading credentials may involve the network.
                self._client = await asyncio.to_thread(self._connect)
            return self._client

    def _connect(self) -> "Client":
        from google.genai import Client, types

        options = types.HttpOptions(
            base_url=self._base_url,
            timeout=math.ceil(self._timeout.total_seconds() * 1000) if self._timeout else None,
            # Make a single attempt because Temporal retries. By default, the SDK retries too if aiohttp is installed.
            retry_options=types.HttpRetryOptions(attempts=1),
        )
        try:
            client = Client(api_key=self._api_key, http_options=options)
        except ValueError as error:
            raise ModelRefused(self._format_message(_NO_CREDENTIALS, str(error), None)) from None
        _keep_streamed_json(client)
        return client

    async def _chunks(
        self, client: "Client", request: LlmRequest, continuation: str, stream: bool
    ) -> AsyncIterator[str]:
        """Yield the JSON of each response. There may be several if the reply is streamed."""
        models, name = client.aio.models, self.model or request.model
        config = _config(request, continuation, stream)
        if not stream:
            whole = await models.generate_content(model=name, contents="-", config=config)
            yield (whole.sdk_http_response.body if whole.sdk_http_response else None) or ""
            return
        bodies: list[str] = []
        _streamed_json.set(bodies)
        async for chunk in await models.generate_content_stream(model=name, contents="-", config=config):
            # The fallback is for SDK versions with different internals. It loses unknown fields.
            yield bodies.pop(0) if bodies else chunk.model_dump_json(by_alias=True, exclude_none=True)

    def _mapped(self, error: Exception, request: LlmRequest) -> ModelError | None:
        """Return `error` as a ModelError, or None if neither the service nor the request caused it."""
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.genai.errors import APIError, UnknownApiResponseError

        if isinstance(error, APIError):
            status: int | None = error.code
            details = ": ".join(str(text) for text in (error.status, error.message) if text)
            message = self._format_message(f"Gemini answered {status}", details, request)
            if status is None or status >= 500 or status in (408, 429):
                return ModelOverloaded(message, status=status, retry_after_s=_retry_after(error))
            return ModelRefused(message, status=status)
        if isinstance(error, ValidationError):
            problems = error.errors(include_url=False, include_input=False, include_context=False)
            where = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems[:5])
            return ModelRefused(self._format_message("The agent's generate_content_config is invalid", where, None))
        if isinstance(error, UnknownApiResponseError | json.JSONDecodeError | UnicodeDecodeError):
            return ModelOverloaded("Gemini's reply is not valid JSON.")
        name, origin = type(error).__name__, type(error).__module__
        details = f"{name}: {error}".removesuffix(": ")
        if isinstance(error, GoogleAuthError):
            kind = ModelOverloaded if isinstance(error, TransportError) or error.retryable else ModelRefused
            return kind(self._format_message(_NO_CREDENTIALS, details, request))
        if name in _WRONG_ADDRESS | _WRONG_KEY:
            return ModelRefused(f"Gemini's address or API key cannot be used: {name}")
        if isinstance(error, OSError) or origin.startswith(("httpx", "httpcore", "aiohttp")):
            return ModelOverloaded(self._format_message("Gemini was not reached, or did not answer", details, request))
        if isinstance(error, ValueError):
            return ModelRefused(self._format_message("google-genai does not send the request", details, request))
        return None

    def _format_message(self, title: str, details: str, request: LlmRequest | None) -> str:
        """Return a message of limited length with `details`, from which API keys are removed.

        If `request` is set, quotes from its conversation are removed too.
        """
        details = " ".join(details.split())
        for key in (self._api_key, os.environ.get("GOOGLE_API_KEY"), os.environ.get("GEMINI_API_KEY")):
            if key and len(key.strip()) >= MIN_KEY:
                details = details.replace(key.strip(), "[key]")
        details = re.sub(r"\b(?:AIza|AQ\.)[\w-]{16,}", "[key]", details)
        message = f"{title}: {_without_content(details, request) if request else details}".removesuffix(": ")
        return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"


def _parsed(text: str) -> JsonObject:
    """Parse one response.

    Raises:
        ModelOverloaded: The response is not a JSON object.
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


def _config(request: LlmRequest, continuation: str, stream: bool) -> "types.GenerateContentConfig":
    from google.genai import types

    config = types.GenerateContentConfig.model_validate(request.config)
    options = config.http_options or types.HttpOptions()
    # These contents replace the "-" that the caller passes only because the SDK requires contents.
    body: JsonObject = {**(options.extra_body or {}), "contents": _in_turns(request.contents)}
    if tools := request.genai_tools():
        body["tools"] = tools
    if continuation:
        body["continuationToken"] = continuation
    return config.model_copy(
        update={
            "system_instruction": request.system_instruction or config.system_instruction,
            "automatic_function_calling": types.AutomaticFunctionCallingConfig(disable=True),
            "automatic_continuation": False,  # It would also reconnect streams, which is a retry.
            "should_return_http_response": None if stream else True,
            "http_options": options.model_copy(update={"extra_body": body, "retry_options": None}),
        }
    )


def _in_turns(contents: Sequence[JsonObject]) -> list[JsonObject]:
    """Return contents that the API accepts, without consecutive model turns and with a user turn at the end.

    Function calls must directly follow a user turn. While an earlier call is pending, the model may produce several
    contents in a row, which are merged. In a loop, the agent's content may come last. In that case, a user turn is
    added, as in ADK 2.13.
    """
    turns: list[JsonObject] = []
    for content in contents:
        if turns and content.get("role") == turns[-1].get("role") == "model":
            parts = [*(turns[-1].get("parts") or ()), *(content.get("parts") or ())]
            turns[-1] = {**turns[-1], "parts": parts}
        else:
            turns.append(content)
    if turns and turns[-1].get("role") != "model":
        return turns
    return [*turns, {"role": "user", "parts": [{"text": CONTINUE_PROMPT}]}]


def _keep_streamed_json(client: "Client") -> None:
    """Capture the JSON of streamed responses, and pass empty ones to the SDK for parsing, which also saves time.

    For a whole response, the SDK option `should_return_http_response` returns the JSON. Streams have no public
    equivalent.
    """
    api: Any = getattr(client, "_api_client", None)
    plain: Any = getattr(api, "async_request_streamed", None)

    async def emptied(responses: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for response in responses:
            _streamed_json.get().append(response.body)
            yield response.model_copy(update={"body": "{}"})

    async def request_streamed(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        return emptied(await plain(*args, **kwargs))

    if plain is not None:
        api.async_request_streamed = request_streamed


def _retry_after(error: "APIError") -> float | None:
    """Return the delay in seconds that the service requested, at most `MAX_RETRY_AFTER_S`, or None.

    If both `Retry-After` and google.rpc.RetryInfo contain a delay, return the longer one.
    """
    headers: Any = getattr(error.response, "headers", {})
    delays = [str(headers.get("retry-after", headers.get("Retry-After"))).strip()]
    status = error.details.get("error") if isinstance(error.details, dict) else None
    for detail in (status.get("details") if isinstance(status, dict) else None) or ():
        if isinstance(detail, dict) and str(detail.get("@type")).endswith("google.rpc.RetryInfo"):
            delays.append(str(detail.get("retryDelay")).removesuffix("s"))
    waits = [wait for wait in map(_seconds, delays) if wait is not None]
    return min(max(waits), MAX_RETRY_AFTER_S) if waits else None


def _seconds(value: str) -> float | None:
    """Convert a number of seconds or an HTTP date to a delay in seconds. Return None if the value is neither."""
    if re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,9})?", value):
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
        return max(0.0, (moment - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):  # Not a date, or a date without a time zone.
        return None


def _without_content(message: str, request: LlmRequest) -> str:
    """Replace quotes from the conversation in an error message by `…`, but keep tool names and quotes that are shorter
    than `ECHO` characters. Google's validation errors contain such quotes.
    """
    message = re.sub(r"(\(TYPE_\w+\)), .*", r"\1", message, flags=re.DOTALL)[:MAX_MESSAGE]
    tools = {tool.get("name") for tool in request.tools}  # Tool names are not secret, and they help locate the problem.
    texts = [request.system_instruction or "", *_texts(list(request.contents))]
    content = "\n".join(text for text in texts if text not in tools)
    quoted: set[int] = set()
    half = ECHO // 2
    # First search for chunks of half the minimum length, because every quote contains at least one whole chunk.
    # Searching megabytes for every substring would take a second.
    for middle in range(0, len(message), half):
        if message[middle : middle + half] in content:
            for start in range(max(0, middle - half), middle + 1):
                if message[start : start + ECHO] in content and start + ECHO <= len(message):
                    quoted.update(range(start, start + ECHO))
    return re.sub("\0+", "…", "".join("\0" if i in quoted else letter for i, letter in enumerate(message)))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
