"""Turn a tool's return value or exception into the outcome to record.

Every outcome can be recorded and read back. If the server rejected an activity's result, it would run the activity
again, and a tool must not run twice because of its result.
"""

import asyncio
import contextlib
import sys
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ValidationError

from waystation.core.contract import NO_ACTIONS, ToolOutcome
from waystation.core.errors import NotJson, WaystationError
from waystation.core.log import HoldReason
from waystation.core.naming import describe_errors
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, decode, encode, repair_json, to_plain_json, with_notes
from waystation.core.secrets import mask
from waystation.tools import ArgumentsRejected, ToolContext

MAX_ERROR_BYTES = 4096
MAX_RESULT_BYTES = 32_000_000
"""Size limit for a tool's result, including media. If a result is larger, the model receives an error instead. Results
larger than `MAX_VALUE_BYTES` are stored outside the history."""
MAX_QUICK_VALUES = 10_000
"""Maximum number of values in a result that is converted on the event loop, which takes about 20 ms."""
_MAX_NAME_BYTES = 200
_CUT = " … (cut)"
_SHOWN_CAUSES = 5
_MAX_DEPTH = 1
"""As in ADK, look for media parts in the returned container and in the containers directly inside it."""


class TooLarge(NotJson):
    """A value that a tool returned or wrote exceeds the size limit.

    Return or store less, or save the data as an artifact.
    """

    def __init__(self, found: str, remedy: str = "return less, or save it as an artifact and return its name") -> None:
        super().__init__("", found, remedy)


async def convert_result(value: object, *, context: ToolContext, long_running: bool = False) -> ToolOutcome:
    """Like `create_outcome`, but convert a large value in a thread, so that it does not delay other activities."""
    if not has_more_values(value, MAX_QUICK_VALUES):
        return create_outcome(value, context=context, long_running=long_running)
    running = asyncio.create_task(asyncio.to_thread(create_outcome, value, context=context, long_running=long_running))
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):  # the tool has run, so its result has to be recorded
            await asyncio.wait((running,))
    return running.result()


def has_more_values(value: object, limit: int, *, except_in: Collection[str] = ()) -> bool:
    """Return whether a value contains more than `limit` values, without those below the keys `except_in`.

    Counting stops at the limit. Only plain containers and fields of models are counted.
    """
    found, waiting = 0, [value]
    while waiting and found <= limit:
        item: Any = waiting.pop()
        item = item.__dict__ if issubclass(type(item), BaseModel) else item
        if type(item) is dict:
            item = [child for key, child in item.items() if key not in except_in]
        if type(item) in (list, tuple):
            found += len(item)
            waiting.extend(item)
    return found > limit


def create_outcome(
    value: object, *, context: ToolContext, long_running: bool = False, duration_s: float = 0.0
) -> ToolOutcome:
    """Return the outcome of a tool that returned `value`.

    Parts of the value that cannot be recorded are replaced, and listed in the response. If nothing of the value can be
    recorded, the outcome is an error response that says that the tool did run.
    """
    try:
        answer = _build_response(value, long_running)
        _check_size(encode([answer.response, answer.parts]), MAX_RESULT_BYTES)
    except NotJson as error:
        answer = _build_ran_error("its result cannot be returned to you", error)
    except Exception as error:  # noqa: BLE001  # a user's object can raise anything when it is read
        answer = _build_ran_error("its result cannot be read", error)
    if forgotten := context.not_awaited():
        answer = _build_ran_error("part of its work was not done", forgotten, answer.response)
    return _make_recordable(answer, context, duration_s)


def create_failure_outcome(error: BaseException, *, context: ToolContext, duration_s: float = 0.0) -> ToolOutcome:
    """Return the outcome of a tool that raised `error`. As in ADK, state written before the error is kept."""
    if isinstance(error, TypeError | AttributeError):  # for instance, a coroutine was used instead of its result
        error = context.not_awaited() or error
    return _make_recordable(_build_error(describe_error(error), error_type_of(error)), context, duration_s)


class OutcomeUnknown(WaystationError, ConnectionError):
    """The connection was lost after the request was sent, so the service may have processed the request.

    Find out whether the service has processed the request before you repeat it.
    """


class CallHeld(Exception):
    """A tool that only reads waits for something outside. Its call is held, so that operators see the reason.

    A tool whose `tool_context.is_held` is true must not raise it, because its call is held already.
    """

    def __init__(self, reason: HoldReason, problem: str) -> None:
        self.reason = reason
        super().__init__(problem)


class FailedAfterEffect(Exception):
    """A tool took effect, but an adapter could not take over its result or its changes. The tool is not run again."""

    def __init__(self, cause: Exception, value: object = None) -> None:
        self.cause, self.value = cause, value
        super().__init__(str(cause))


def create_ran_outcome(
    consequence: str, error: BaseException, result: JsonObject | None, *, context: ToolContext, fatal: bool
) -> ToolOutcome:
    """Return the outcome of a tool that ran, although code that followed it raised `error`.

    `consequence` continues the sentence `The tool ran, but`. State written before the error is kept.
    """
    outcome = _make_recordable(_build_ran_error(consequence, error, result), context, 0.0)
    return outcome.model_copy(update={"fatal": fatal})


def describe_error(error: BaseException) -> str:
    """Return the text to record for an exception. It is never empty and at most 4 KiB long."""
    if isinstance(error, ValidationError):  # its own text has several lines and links
        return _clean_text(f"{error.title}: {describe_errors(error)}.", MAX_ERROR_BYTES)
    if isinstance(error, BaseExceptionGroup):
        causes = "; ".join(describe_error(cause) for cause in error.exceptions[:_SHOWN_CAUSES])
        return _clean_text(f"{_read_text(error)}: {causes}", MAX_ERROR_BYTES)
    return _clean_text(_read_text(error), MAX_ERROR_BYTES) or error_type_of(error)


def error_type_of(error: BaseException) -> str:
    """Return the name of an exception's class, truncated to 200 bytes."""
    return _clean_text(type(error).__name__, _MAX_NAME_BYTES)


def _build_response(value: Any, long_running: bool) -> ToolOutcome:
    """Return an outcome with the response for the model, without checking that it can be recorded."""
    if isinstance(value, ArgumentsRejected):
        # The response is final even for a long-running tool, because the function was not called.
        return ToolOutcome(function_call_id="", response=to_plain_json(dict(value)), error_type="InvalidArguments")
    if isinstance(value, _genai("FunctionResponse")):  # its name and id are ignored
        waits = long_running and value.will_continue is not False
        rest, media = _split_media(value.response or {})
        response, parts = with_notes(*repair_json(rest)), (*map(_dump_json, value.parts or ()), *media)
        silent = waits and not response and not parts
        return ToolOutcome(function_call_id="", response=None if silent else response, final=not waits, parts=parts)
    if long_running and not value:
        return ToolOutcome(function_call_id="", final=False)
    rest, parts = _split_media(value)
    whole_response = isinstance(value, dict) or (parts and not rest)
    form, replaced = repair_json(rest, "" if whole_response else "result")
    response = with_notes(form if whole_response else {"result": form}, replaced)
    return ToolOutcome(function_call_id="", response=response, final=not long_running, parts=parts)


def _make_recordable(answer: ToolOutcome, context: ToolContext, duration_s: float) -> ToolOutcome:
    """Mask secrets in an outcome and add the context's actions, or report an error if they cannot be recorded."""
    secrets = tuple(context.secrets_given())
    if secrets:
        answer = answer.model_copy(
            update={"response": mask(answer.response, secrets), "parts": mask(answer.parts, secrets)}
        )
    about: dict[str, Any] = {"function_call_id": context.function_call_id or "", "duration_s": duration_s}
    try:
        actions = context.recorded_actions()
        if actions is NO_ACTIONS:  # the answer alone is plain JSON, which can always be recorded
            return answer.model_copy(update=about)
        if secrets and mask(written := actions.model_dump(mode="json"), secrets) != written:
            raise NotJson("", "partly a credential", "leave the credential in the credential store")
        _check_size(actions.encode())
        if answer.response is not None:
            replaced = [f"state {note}" for notes in context.state.replaced.values() for note in notes]
            about["response"] = with_notes(answer.response, mask(replaced, secrets))
        outcome = answer.model_copy(update=about | {"actions": None if actions == NO_ACTIONS else actions})
        decode(outcome.encode())
        return outcome
    except Exception as error:  # noqa: BLE001  # a value in the state can raise anything when it is read
        if answer.error_type is None:
            answer = _build_ran_error("none of its state changes and actions were saved", error, answer.response)
        return answer.model_copy(update=about)


def _build_ran_error(consequence: str, error: BaseException, result: JsonObject | None = None) -> ToolOutcome:
    cause = _clean_text(describe_error(error), MAX_ERROR_BYTES - 256)
    stop = "" if cause.endswith((".", "!", "?")) else "."
    text = f"The tool ran, but {consequence}: {cause}{stop} Do not call it again for this reason alone."
    return _build_error(text, error_type_of(error), **({} if result is None else {"result": result}))


def _build_error(text: str, error_type: str, **fields: Any) -> ToolOutcome:
    response = {"error": text, "error_type": error_type, **fields}
    return ToolOutcome(function_call_id="", response=response, error_type=error_type)


def create_not_stored_outcome(outcome: ToolOutcome, error: BaseException) -> ToolOutcome:
    """Return the outcome to record if a large result cannot be stored outside the history."""
    answer = _build_ran_error("its result could not be stored", error)
    return outcome.model_copy(
        update={"response": answer.response, "error_type": answer.error_type, "parts": (), "final": True}
    )


def _check_size(data: bytes, limit: int = MAX_VALUE_BYTES) -> None:
    if len(data) > limit:
        raise TooLarge(f"{len(data):,} bytes of JSON (the limit is {limit:,})")


def _read_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # user code
        return f"(the text of this {type(error).__name__} cannot be read)"


def _clean_text(text: str, limit: int) -> str:
    """Return `text` without lone surrogates, truncated to `limit` bytes of UTF-8."""
    # Use a plain str, because a subclass may override `len`. Cut before encoding, because the text may be very long.
    exact = str.__str__(text)
    data = exact[: limit + 1].encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT


def _split_media(value: Any, depth: int = 0) -> tuple[Any, tuple[JsonObject, ...]]:
    """Split `value` into a copy without media, and the media as parts of a FunctionResponse.

    A container without media is unchanged. A nested container that holds only media is dropped.
    """
    if isinstance(value, _genai("Part")):
        media = _extract_media(value)
        return ({}, (media,)) if media else (_dump_json(value), ())
    if not isinstance(value, dict | list | tuple) or depth > _MAX_DEPTH or not _genai("Part"):
        return value, ()
    kept: dict[Any, Any] = {}
    found: list[JsonObject] = []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        rest, parts = _split_media(item, depth + 1)
        found.extend(parts)
        if not parts or rest:
            kept[key] = rest
    if isinstance(value, dict):
        return kept, tuple(found)
    return (list(kept.values()) or ({} if found else [])), tuple(found)


def _genai(name: str) -> Any:
    """Return a class from `google.genai.types` for `isinstance`, or () if that module is not loaded.

    If the module is not loaded, no value can be an instance of the class. Importing the module takes a second.
    """
    return getattr(sys.modules.get("google.genai.types"), name, ())


def _extract_media(part: Any) -> JsonObject | None:
    blob, file = part.inline_data, part.file_data
    if blob is not None and blob.data is not None and blob.mime_type:
        return {"inlineData": {"mimeType": blob.mime_type, "data": _dump_json(blob)["data"]}}
    if file is not None and file.file_uri and file.mime_type:
        return {"fileData": {"fileUri": file.file_uri, "mimeType": file.mime_type}}
    return None


def _dump_json(value: Any) -> JsonObject:
    dumped: JsonObject = to_plain_json(value.model_dump(mode="json", by_alias=True, exclude_none=True))
    return dumped
