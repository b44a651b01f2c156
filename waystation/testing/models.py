"""Models for tests and demonstrations: deterministic, in process, never presented as intelligence."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from waystation.core import BEGIN, JsonObject, parts_of, text_of
from waystation.models import BaseLlm, LlmRequest, LlmResponse

Reply: TypeAlias = LlmResponse | str | Exception
"""What a scripted model gives: a response, the text of one, or an error to raise."""


def says(text: str, **fields: Any) -> LlmResponse:
    """Return a response that is text."""
    return LlmResponse(content={"role": "model", "parts": [{"text": text}]}, finish_reason="STOP", **fields)


def calls(*wanted: tuple[str, JsonObject], text: str | None = None) -> LlmResponse:
    """Return a response that calls tools: `calls(("pay", {"amount": 5}), ("log", {}))`."""
    parts: list[JsonObject] = [{"text": text}] if text else []
    parts.extend({"functionCall": {"name": name, "args": args}} for name, args in wanted)
    return LlmResponse(content={"role": "model", "parts": parts}, finish_reason="STOP")


class FunctionModel(BaseLlm):
    """A model that is a function of the request; the same conversation gives the same reply in every process."""

    def __init__(self, function: Callable[[LlmRequest], Reply | Awaitable[Reply]], *, pace_s: float = 0.0) -> None:
        """`pace_s` is how long a word takes when somebody reads the growing text."""
        self._function, self._pace_s = function, pace_s

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return what the function returns; `on_text` gets the text word by word."""
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
    """A model that gives prepared replies, one a call, and records the requests."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__(self._next)
        self._replies = list(replies)
        self.requests: list[LlmRequest] = []

    def add(self, *replies: Reply) -> None:
        """Prepare further replies."""
        self._replies.extend(replies)

    def _next(self, request: LlmRequest) -> Reply:
        self.requests.append(request)
        return self._replies.pop(0) if self._replies else "(The script has no further reply.)"


def user_text(request: LlmRequest) -> str:
    """Return what the user said last."""
    said = [content for content in request.contents if content.get("role") == "user" and text_of(content)]
    return text_of(said[-1]) if said else ""


def latest_turn(request: LlmRequest) -> tuple[str, list[tuple[str, JsonObject]]]:
    """Return what the user said last, and the tool responses since then, as (tool, response).

    What other agents did, which a model is told as if the user had quoted it, is neither.
    """
    said, answered = "", list[tuple[str, JsonObject]]()
    for content in request.contents:
        text, answers = text_of(content), parts_of(content, "functionResponse")
        if content.get("role") == "user" and text and not answers and BEGIN not in text:
            said, answered = text, []
        answered += [(answer["name"], answer["response"]) for answer in answers]
    return said, answered


def responses(request: LlmRequest) -> list[tuple[str, JsonObject]]:
    """Return the tool responses the model is shown, oldest first, as (tool, response)."""
    return [
        (part["name"], part["response"])
        for content in request.contents
        for part in parts_of(content, "functionResponse")
    ]
