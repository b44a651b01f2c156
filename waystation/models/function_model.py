"""A model whose replies a function computes, and functions for writing such a function."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from waystation.core.contract import parts_of, text_of
from waystation.core.conversation import BEGIN_QUOTE
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest
from waystation.models.llm_response import LlmResponse

Reply: TypeAlias = LlmResponse | str | Exception
"""A scripted reply: a response, the text of a response, or an error to raise."""


def says(text: str, **fields: Any) -> LlmResponse:
    """Return a response that contains only text."""
    return LlmResponse(content={"role": "model", "parts": [{"text": text}]}, finish_reason="STOP", **fields)


def calls(*functions: tuple[str, JsonObject], text: str | None = None) -> LlmResponse:
    """Return a response with function calls after an optional text: `calls(("pay", {"amount": 5}), ("log", {}))`."""
    parts: list[JsonObject] = [{"text": text}] if text else []
    parts.extend({"functionCall": {"name": name, "args": args}} for name, args in functions)
    return LlmResponse(content={"role": "model", "parts": parts}, finish_reason="STOP")


class FunctionModel(BaseLlm):
    """A model whose replies are computed by a function of the request.

    If the function is deterministic, the reply is the same in every process.
    """

    def __init__(self, function: Callable[[LlmRequest], Reply | Awaitable[Reply]], *, pace_s: float = 0.0) -> None:
        """Set the function that computes replies. `pace_s` is the delay after each streamed word, in seconds."""
        self._function, self._pace_s = function, pace_s

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the function's reply. If `on_text` is set, call it with each word of the text."""
        reply = self._function(request)
        if inspect.isawaitable(reply):
            reply = await reply
        if isinstance(reply, Exception):
            raise reply
        response = says(reply) if isinstance(reply, str) else reply
        if on_text is not None:
            for word in re.findall(r"\s*\S+\s*$|\s*\S+|\s+", text_of(response.content)):
                on_text(word)
                await asyncio.sleep(self._pace_s)
        return response


def latest_turn(request: LlmRequest) -> tuple[str, list[tuple[str, JsonObject]]]:
    """Return the text of the user's last message, and all later tool responses as pairs of tool name and response.

    User messages that quote the actions of other agents are skipped.
    """
    message, results = "", list[tuple[str, JsonObject]]()
    for content in request.contents:
        text, parts = text_of(content), parts_of(content, "functionResponse")
        if content.get("role") == "user" and text and not parts and BEGIN_QUOTE not in text:
            message, results = text, []
        results += [(part["name"], part["response"]) for part in parts]
    return message, results
