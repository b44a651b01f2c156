"""Scripted models for tests and demonstrations. They are deterministic and run in process."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from waystation.core import BEGIN, JsonObject, parts_of, text_of
from waystation.models import BaseLlm, LlmRequest, LlmResponse

Reply: TypeAlias = LlmResponse | str | Exception
"""A scripted model's reply: a response, its text, or an error to raise."""


def says(text: str, **fields: Any) -> LlmResponse:
    """Return a response with a text."""
    return LlmResponse(content={"role": "model", "parts": [{"text": text}]}, finish_reason="STOP", **fields)


def calls(*functions: tuple[str, JsonObject], text: str | None = None) -> LlmResponse:
    """Return a response with function calls: `calls(("pay", {"amount": 5}), ("log", {}))`."""
    parts: list[JsonObject] = [{"text": text}] if text else []
    parts.extend({"functionCall": {"name": name, "args": args}} for name, args in functions)
    return LlmResponse(content={"role": "model", "parts": parts}, finish_reason="STOP")


class FunctionModel(BaseLlm):
    """A model whose reply is a function of the request, and so the same in every process."""

    def __init__(self, function: Callable[[LlmRequest], Reply | Awaitable[Reply]], *, pace_s: float = 0.0) -> None:
        """`pace_s` is the time for each word when the text is streamed."""
        self._function, self._pace_s = function, pace_s

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the function's reply; call `on_text` with its text, word by word."""
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


class ScriptedModel(FunctionModel):
    """A model that returns prepared replies, one for each call, and records the requests."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__(self._next_reply)
        self._replies = list(replies)
        self.requests: list[LlmRequest] = []

    def add(self, *replies: Reply) -> None:
        """Add replies to the script."""
        self._replies.extend(replies)

    def _next_reply(self, request: LlmRequest) -> Reply:
        self.requests.append(request)
        return self._replies.pop(0) if self._replies else "(The script has no further reply.)"


def user_text(request: LlmRequest) -> str:
    """Return the user's last message."""
    messages = [content for content in request.contents if content.get("role") == "user" and text_of(content)]
    return text_of(messages[-1]) if messages else ""


def latest_turn(request: LlmRequest) -> tuple[str, list[tuple[str, JsonObject]]]:
    """Return the user's last message, and the tool responses since then, as (tool, response).

    Actions of other agents, which a model receives as quotes in user messages, are skipped.
    """
    message, results = "", list[tuple[str, JsonObject]]()
    for content in request.contents:
        text, parts = text_of(content), parts_of(content, "functionResponse")
        if content.get("role") == "user" and text and not parts and BEGIN not in text:
            message, results = text, []
        results += [(part["name"], part["response"]) for part in parts]
    return message, results


def responses(request: LlmRequest) -> list[tuple[str, JsonObject]]:
    """Return all tool responses in the request, oldest first, as (tool, response)."""
    return [
        (part["name"], part["response"])
        for content in request.contents
        for part in parts_of(content, "functionResponse")
    ]
