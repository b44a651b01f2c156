"""A model of google-adk for scenarios. The modules that replace imports must be imported before this one."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types
from pydantic import PrivateAttr, TypeAdapter

from verification.differential.scenario import Json, Problem, Refusal, Reply, content_of


class Scripted(BaseLlm):  # type: ignore[misc]  # google-adk is not in the environment that is checked
    """A model that returns the replies of a script, and records its requests."""

    _replies: list[Reply] = PrivateAttr()
    _asked: list[Json] = PrivateAttr()
    _error: type[Exception] = PrivateAttr()

    def __init__(
        self, name: str, replies: Sequence[Reply], asked: list[Json], error: type[Exception] = ValueError
    ) -> None:
        """`asked` receives the requests. `error` is raised for a `Refusal`."""
        super().__init__(model=name)
        self._replies, self._asked, self._error = list(replies), asked, error

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the next reply."""
        self._asked.append(request_of(llm_request))
        reply = self._replies.pop(0) if self._replies else "(The script has no further reply.)"
        if isinstance(reply, Refusal):
            raise self._error(reply.message)
        if isinstance(reply, Problem):
            yield LlmResponse(error_code=reply.code, error_message=reply.message)
        else:
            yield LlmResponse(content=types.Content.model_validate(content_of(reply)))


def dumped(value: Any) -> Any:
    """Return ADK's JSON form."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def request_of(request: LlmRequest) -> Json:
    """Return the compared fields of a model request."""
    asked = request.config
    schema = asked.response_schema
    if isinstance(schema, type):  # a class has no JSON form, but the schema that providers derive from it has
        asked = asked.model_copy(update={"response_schema": None})
    config = dumped(asked)
    if isinstance(schema, type):
        config["responseSchema"] = TypeAdapter(schema).json_schema()
    tools = [declared for tool in config.pop("tools", []) for declared in tool.get("functionDeclarations") or [tool]]
    return {
        "contents": [dumped(content) for content in request.contents],
        "systemInstruction": config.pop("systemInstruction", None),
        "tools": tools,
        "config": config,
    }
