"""Scripted models for tests and demos. They are deterministic and run in the worker's process."""

from waystation.core.contract import parts_of, text_of
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest
from waystation.models.function_model import FunctionModel as FunctionModel
from waystation.models.function_model import Reply as Reply
from waystation.models.function_model import calls as calls
from waystation.models.function_model import latest_turn as latest_turn
from waystation.models.function_model import says as says


class ScriptedModel(FunctionModel):
    """A model that returns prepared replies, one per call, and records the requests.

    When no reply is left, it returns a text that says so.
    """

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
    """Return the text of the last content with the role `user` that has text, or an empty string if there is none."""
    messages = [content for content in request.contents if content.get("role") == "user" and text_of(content)]
    return text_of(messages[-1]) if messages else ""


def responses(request: LlmRequest) -> list[tuple[str, JsonObject]]:
    """Return all tool responses in the request as pairs of tool name and response, oldest first."""
    return [
        (part["name"], part["response"])
        for content in request.contents
        for part in parts_of(content, "functionResponse")
    ]
