"""Model classes with ADK's `generate_content_async` are accepted unchanged."""

from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import Any, ClassVar

import pytest
from google.genai import types
from pydantic import Field, PrivateAttr, ValidationError

from waystation.agents import Agent
from waystation.core.budget import Usage
from waystation.core.errors import ModelOverloaded
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.models.base_llm import AdkLlm
from waystation.models.llm_request import EditableRequest

ASKED: JsonObject = {"role": "user", "parts": [{"text": "Hello?"}]}


class Echo(BaseLlm):
    """A model written for ADK, with another import."""

    greeting: str = "Hi"
    seen: Any = None

    async def generate_content_async(
        self, llm_request: EditableRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Echo the last text, streamed in two pieces."""
        self.seen = llm_request
        parts = llm_request.contents[-1].parts or []
        text = f"{self.greeting}, {parts[0].text}"
        for piece in (text[:3], text[3:]) if stream else ():
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=piece)]), partial=True)
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=3, total_token_count=5)
        content = types.Content(role="model", parts=[types.Part(text=text)])
        yield LlmResponse(content=content, usage_metadata=usage, finish_reason="STOP")


class Foreign:
    """A model that derives from no class of Waystation, like google-adk's."""

    model = "foreign-1"

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        """Yield only partial responses."""
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Hm")]), partial=True)


async def test_a_model_written_for_adk_needs_only_another_import() -> None:
    """Fields are arguments of the constructor, and the request has genai's types."""
    model = Echo(model="echo-1", greeting="Hey")
    request = LlmRequest(model="echo-1", contents=[ASKED], system_instruction="Be brief.", tools=[{"name": "pay"}])
    response = await model.generate(request)
    assert response.content == {"role": "model", "parts": [{"text": "Hey, Hello?"}]}
    assert response.usage == Usage(prompt_tokens=3, total_tokens=5)
    assert model.seen.config.system_instruction == "Be brief."
    assert model.seen.config.tools[0].function_declarations[0].name == "pay"


async def test_partial_responses_are_streamed_and_not_recorded() -> None:
    """The last response is the complete one."""
    pieces: list[str] = []
    response = await Echo(model="e").generate(LlmRequest(model="e", contents=[ASKED]), on_text=pieces.append)
    assert pieces == ["Hi,", " Hello?"]
    assert response.content == {"role": "model", "parts": [{"text": "Hi, Hello?"}]}


def response_of(text: str | None, **fields: Any) -> LlmResponse:
    """Return a response of a model with genai's types."""
    return LlmResponse(content=text and types.Content(role="model", parts=[types.Part(text=text)]), **fields)


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        (
            [
                response_of("Hel", partial=True),
                response_of("lo", partial=True),
                response_of(None, finish_reason="STOP"),
            ],
            ["Hello"],
        ),
        ([response_of("Hello"), response_of(None, partial=True)], ["Hello"]),
        ([response_of("Hello"), response_of(None, turn_complete=True)], ["Hello"]),
        ([response_of("One."), response_of("Two.")], ["One.", "Two."]),
        ([response_of("Hel", partial=True), response_of(None, error_code="SAFETY")], []),
        ([response_of("Hel", partial=True), response_of("Hello", partial=False)], ["Hello"]),
    ],
)
async def test_no_complete_response_hides_an_earlier_one(responses: list[LlmResponse], expected: list[str]) -> None:
    """Complete responses are joined. Partial text counts only if they have no content and no error."""

    class Streaming(BaseLlm):
        """A model that yields given responses."""

        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse]:
            """Yield the responses."""
            for response in (*responses, response_of(None, custom_metadata={"k": 1})):
                yield response

    response = await Streaming(model="s").generate(LlmRequest(model="s", contents=[ASKED]))
    assert [part["text"] for part in (response.content or {"parts": []})["parts"]] == expected
    assert (response.finish_reason, response.custom_metadata) == (responses[-1].finish_reason, {"k": 1})


def test_instances_do_not_share_mutable_defaults() -> None:
    """Mutable defaults are copied, and `Field` and `PrivateAttr` work, as with pydantic.

    Attributes of the class stay shared.
    """

    class Keeping(Echo):
        """A model with defaults of all kinds."""

        tags: list[str] = []
        counts: dict[str, int] = defaultdict(int)
        names: dict[str, int] = Field(default_factory=dict)
        shared: ClassVar[list[str]] = []
        _log: list[str] = PrivateAttr(default_factory=list)

        def model_post_init(self, context: Any, /) -> None:
            self._log.append("created")

    one, other = Keeping(model="one"), Keeping(model="other")
    one.names["x"] = len(one.tags + one._log)
    for changed in (one.tags, one.shared, one._log):
        changed.append("x")
    one.counts["x"] += 1
    assert (other.tags, other.names, other.counts, other.shared, other._log) == ([], {}, {}, ["x"], ["created"])


def test_the_request_is_checked_as_by_pydantic() -> None:
    """JSON becomes genai's types, and other values are refused."""
    request = EditableRequest(contents=[ASKED], config={"temperature": 0.5})  # type: ignore[list-item,arg-type]  # JSON
    assert (request.contents, request.config.temperature) == ([types.Content.model_validate(ASKED)], 0.5)
    assert request.model_copy(update={"model": "m"}, deep=True).model == "m"
    with pytest.raises(ValidationError):
        EditableRequest(contents="Hello?")  # type: ignore[arg-type]  # a mistake


async def test_an_agent_takes_any_object_with_the_protocol() -> None:
    """The engine uses the object's name, and calls the model again if it yields no complete response."""
    agent = Agent(name="a", model=Foreign())  # type: ignore[arg-type]
    assert isinstance(agent.model, AdkLlm)
    assert isinstance(agent.model.llm, Foreign)
    assert agent.model.model == "foreign-1"
    with pytest.raises(ModelOverloaded, match="'foreign-1' yielded no complete response"):
        await agent.model.generate(LlmRequest(model="foreign-1", contents=[ASKED]))


class RateLimited(Exception):
    """An error of a client library."""

    status_code = 429
    response = type("Response", (), {"headers": {"retry-after": "7"}})


async def test_the_status_of_an_error_decides_about_a_retry() -> None:
    """The error's message is left out, because it may quote the conversation."""

    class Busy(BaseLlm):
        """A model whose service is busy."""

        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse]:
            """Raise an error."""
            raise RateLimited("Hello?")
            yield

    with pytest.raises(ModelOverloaded, match=r"^The model 'busy-1' answered 429\.$") as caught:
        await Busy(model="busy-1").generate(LlmRequest(model="busy-1", contents=[ASKED]))
    assert caught.value.retry_after_s == 7


def test_a_class_without_either_method_is_refused() -> None:
    """The class is refused when it is defined, not at its first call."""

    class Empty(BaseLlm):
        """A model that defines nothing."""

    with pytest.raises(TypeError, match="Empty has neither `generate` nor `generate_content_async`"):
        Empty()


def test_a_field_that_the_class_does_not_declare_is_refused() -> None:
    """A field that the class does not declare is refused, because a misspelled argument would have no effect."""
    with pytest.raises(TypeError, match="Echo has no field 'greetings'"):
        Echo(model="e", greetings="Hey")
