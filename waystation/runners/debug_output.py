"""Print events for `Runner.run_debug`, with the same lines as ADK 2.13."""

import sys

from google.genai import types

from waystation.events import Event

ARGS_CHARS, RESULT_CHARS = 50, 100


def print_event(event: Event, *, verbose: bool = False) -> None:
    """Print an event's text and, with `verbose`, its other parts."""
    text = ""
    for part in (event.content and event.content.parts) or ():
        if part.thought and not verbose:
            continue
        if part.text:
            text += part.text
            continue
        _print(event.author, text)
        text = ""
        if verbose:
            _print(event.author, _describe(part))
    _print(event.author, text)


def _print(author: str, text: str) -> None:
    if text:
        sys.stdout.write(f"{author} > {text}\n")


def _describe(part: types.Part) -> str:
    if call := part.function_call:
        return f"[Calling tool: {call.name}({_clip(str(call.args), ARGS_CHARS)})]"
    if response := part.function_response:
        return f"[Tool result: {_clip(str(response.response), RESULT_CHARS)}]"
    if code := part.executable_code:
        return f"[Executing {code.language or 'code'} code...]"
    if result := part.code_execution_result:
        return f"[Code output: {_clip(result.output or 'result', RESULT_CHARS)}]"
    if data := part.inline_data:
        return f"[Inline data: {data.mime_type or 'data'}]"
    if file := part.file_data:
        return f"[File: {file.file_uri or 'file'}]"
    return ""


def _clip(text: str, size: int) -> str:
    return f"{text[:size]}..." if len(text) > size else text
