"""Convert the errors of model services to a `ModelError` that contains neither credentials nor the conversation."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from waystation.core.errors import ModelError, ModelOverloaded, ModelRefused
from waystation.models.plain_request import LlmRequest
from waystation.models.reply import MAX_MESSAGE

MAX_RETRY_AFTER_S = 86_400.0
MIN_KEY = 8  # Shorter keys are used only in tests, and they also occur in ordinary words.
ECHO = 12  # A run of this many characters that also occurs in the request counts as quoted content.

_KEYS = re.compile(r"\b(?:AIza|AQ\.|sk-)[\w-]{16,}")
"""Matches API keys of Google, OpenAI and Anthropic."""
_REFUSED = {
    **dict.fromkeys(("invalid_request_error", "invalid_argument", "failed_precondition"), 400),
    **dict.fromkeys(("context_length_exceeded", "content_policy_violation"), 400),
    **dict.fromkeys(("authentication_error", "invalid_api_key", "unauthenticated"), 401),
    **dict.fromkeys(("billing_error", "permission_error", "permission_denied"), 403),
    **dict.fromkeys(("not_found_error", "model_not_found", "not_found"), 404),
    "request_too_large": 413,
}
"""The statuses of errors that a retry cannot solve, by their names in bodies."""
_WRONG_ADDRESS = {"InvalidURL", "InvalidUrlClientError", "UnsupportedProtocol"}
_WRONG_KEY = {"LocalProtocolError", "UnicodeEncodeError"}  # Not valid in an HTTP header. These errors quote the key.
_CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2", "aiohttp")
"""Packages whose exceptions are errors of the connection."""


def format_message(title: str, details: str, request: LlmRequest | None, keys: Iterable[str | None]) -> str:
    """Return a message of limited length with `details`, from which API keys, among them `keys`, are removed.

    If `request` is set, quotes from its conversation are removed too.
    """
    details = " ".join(details.split())
    for key in keys:
        if key and len(key.strip()) >= MIN_KEY:
            details = details.replace(key.strip(), "[key]")
    details = _KEYS.sub("[key]", details)
    message = f"{title}: {_without_content(details, request) if request else details}".removesuffix(": ")
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"


def map_status(message: str, status: int | None, retry_after_s: float | None) -> ModelError:
    """Return the error for an HTTP status. Without a status, or with 408, 409, 429 or 5xx, another attempt may succeed.

    An event in a stream can report an error after the status 200, so that counts as no status.
    """
    if status is None or status < 400 or status >= 500 or status in (408, 409, 429):
        return ModelOverloaded(message, status=status, retry_after_s=retry_after_s)
    return ModelRefused(message, status=status)


def find_status(error: Exception) -> int | None:
    """Return the HTTP status that the body of an error contains or names, or None.

    The error is one of a client library that read it from a stream, or an `ErrorInReply`.
    """
    body = getattr(error, "body", next(iter(error.args), None))
    fields = body.get("error", body) if isinstance(body, dict) else None
    names = [str(fields.get(key)) for key in ("code", "status", "type")] if isinstance(fields, dict) else []
    statuses = (int(name) if name.isdecimal() else _REFUSED.get(name.lower()) for name in names)
    return next(filter(None, statuses), None)


def map_connection_error(
    service: str, error: Exception, request: LlmRequest, keys: Iterable[str | None]
) -> ModelError | None:
    """Return the error for a failed connection, or None if `error` has another cause.

    SDKs wrap such errors, so the causes of `error` count, too.
    """
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) and len(chain) < 5:
        chain.append(cause)
    if any(type(cause).__name__ in _WRONG_ADDRESS | _WRONG_KEY for cause in chain):
        name = type(chain[-1]).__name__
        return ModelRefused(f"{service}'s address or API key cannot be used: {name}")
    if any(isinstance(cause, OSError) or type(cause).__module__.split(".")[0] in _CLIENTS for cause in chain):
        details = f"{type(error).__name__}: {error}".removesuffix(": ")
        return ModelOverloaded(format_message(f"{service} was not reached, or did not answer", details, request, keys))
    return None


def _parse_delay(value: str) -> float | None:
    """Convert a number of seconds or an HTTP date to a delay in seconds. Return None if the value is neither."""
    if re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,9})?", value):
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
        return max(0.0, (moment - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):  # Not a date, or a date without a time zone.
        return None


def find_retry_after(error: Exception) -> float | None:
    """Return the delay in seconds that a service requested, at most `MAX_RETRY_AFTER_S`, or None.

    If both the header `Retry-After` and Google's `RetryInfo` contain a delay, return the longer one.
    """
    headers: Any = getattr(error, "litellm_response_headers", None)
    headers = headers or getattr(getattr(error, "response", None), "headers", None) or {}
    delays = [str(headers.get("retry-after", headers.get("Retry-After"))).strip()]
    body = getattr(error, "details", None)
    status = body.get("error") if isinstance(body, dict) else None
    for detail in (status.get("details") if isinstance(status, dict) else None) or ():
        if isinstance(detail, dict) and str(detail.get("@type")).endswith("google.rpc.RetryInfo"):
            delays.append(str(detail.get("retryDelay")).removesuffix("s"))
    waits = [wait for wait in map(_parse_delay, delays) if wait is not None]
    return min(max(waits), MAX_RETRY_AFTER_S) if waits else None


def _without_content(message: str, request: LlmRequest) -> str:
    """Replace quotes from the conversation in an error message by `…`, but keep tool names and quotes that are shorter
    than `ECHO` characters. The validation errors of services contain such quotes.
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
