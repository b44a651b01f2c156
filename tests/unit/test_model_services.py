"""Models of all services behave the same, tested over the real client libraries and fakes of their wire formats.

`make test` covers Gemini, OpenAI and Anthropic. `make test-full` adds LiteLLM in front of the last two, because its
import takes many seconds.
"""

import importlib.util
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.model_services import SIGNATURE, FakeAnthropic, FakeOpenAI, FakeService
from tests.tiers import FULL
from waystation.agents import Agent
from waystation.core.budget import GENAI_COUNTS, Usage
from waystation.core.budget.budget import MAX_TOKENS
from waystation.core.errors import ModelOverloaded, ModelRefused
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest, LlmResponse, anthropic_llm, chat_completions
from waystation.models.anthropic_llm import AnthropicLlm, Claude
from waystation.models.fallback_model import FallbackModel
from waystation.models.google_llm import Gemini
from waystation.models.lite_llm import LiteLlm
from waystation.models.openai_llm import OpenAICompatible
from waystation.models.reply import Reply
from waystation.models.sendable import make_sendable
from waystation.models.service_model import ServiceModel
from waystation.testing import FakeGemini

# LiteLLM's own code causes these warnings.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_", "ignore:Item 'summary' on TypedDict")
KEY = "sk-key-for-tests-12345678"
PIXEL = "iVBORw0KGgo="
ASKED: JsonObject = {"role": "user", "parts": [{"text": "Pay the invoice of Meyer & Sons."}]}
SCHEMA: JsonObject = {
    "title": "Paid",
    "type": "object",
    "properties": {"amount": {"type": "number"}},
    "required": ["amount"],
}
TOOL: JsonObject = {"name": "pay", "description": "Pays.", "parametersJsonSchema": SCHEMA}


@dataclass
class Service:
    """A model and the fake of its service."""

    name: str
    model: BaseLlm
    fake: Any

    @property
    def wire(self) -> str:
        """Return the wire format of the service."""
        return self.name.rpartition("-")[2]

    @property
    def body(self) -> Any:
        """Return the body of the latest request."""
        return self.fake.requests[-1].body

    async def ask(self, *contents: JsonObject, **settings: Any) -> LlmResponse:
        """Call the model without streaming."""
        return await self.model.generate(LlmRequest(model="some-model", contents=contents or (ASKED,), **settings))

    async def twice(self, *contents: JsonObject, **reply: Any) -> tuple[LlmResponse, LlmResponse, list[str]]:
        """Get the same reply whole and streamed, and return both and the streamed pieces of text."""
        pieces: list[str] = []
        self.fake.reply(**reply)
        self.fake.reply(**reply)
        request = LlmRequest(model="some-model", contents=contents or (ASKED,), tools=[TOOL])
        whole = await self.model.generate(request)
        return whole, await self.model.generate(request, on_text=pieces.append), pieces


def create_model(name: str, url: str) -> BaseLlm:
    """Return the model of a service at a URL."""
    match name:
        case "gemini":
            return Gemini(base_url=url, api_key=KEY)
        case "openai":
            return OpenAICompatible(base_url=f"{url}/v1", api_key=KEY)
        case "anthropic":
            return AnthropicLlm(base_url=url, api_key=KEY)
        case "litellm-openai":
            return LiteLlm(model="openai/some-model", api_base=f"{url}/v1", api_key=KEY)
        case _:
            return LiteLlm(model="anthropic/claude-sonnet-5", api_base=url, api_key=KEY)


SERVICES = ("gemini", "openai", "anthropic", *(("litellm-openai", "litellm-anthropic") if os.environ.get(FULL) else ()))


@pytest.fixture(params=SERVICES)
async def service(request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    """Return each service in turn."""
    name = request.param
    package = name.partition("-")[0]
    if package != "gemini" and importlib.util.find_spec(package) is None:
        pytest.skip(f"the extra {package} is not installed")
    fake: Any = FakeGemini() if name == "gemini" else FakeOpenAI() if name.endswith("openai") else FakeAnthropic()
    async with fake:
        model = create_model(name, fake.url)
        yield Service(name, model, fake)
        await model.close()


def calls_of(response: LlmResponse) -> list[tuple[str, Any]]:
    """Return name and arguments of each call."""
    return [(call["name"], call["args"]) for call in response.get_function_calls()]


def test_a_model_object_without_a_name_is_refused_at_its_declaration() -> None:
    """A model without a name is refused, because its class name would be sent to the service."""
    model = AnthropicLlm(api_key=KEY)
    with pytest.raises(ValueError, match=r"AnthropicLlm has no model name. Pass one: AnthropicLlm\(model=…\)"):
        Agent(name="a", model=model)
    with pytest.raises(ValueError, match="AnthropicLlm has no model name"):
        FallbackModel(["gemini-3.5-flash", model])


def test_a_missing_extra_is_named_when_the_model_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the model, the extra and the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"'qwen3' requires the extra `openai`: pip install 'waystation\[openai\]'"):
        OpenAICompatible("qwen3", base_url="http://localhost:11434/v1")


async def test_text_is_the_same_whole_and_streamed(service: Service) -> None:
    """Both forms have the text, the usage and the version of the model, and the pieces join to the text."""
    whole, live, pieces = await service.twice(text="It rains in Bern today.")
    if service.name.startswith("litellm"):  # LiteLLM does not pass the version of a stream.
        live.model_version = whole.model_version
    assert whole == live
    assert whole.content == {"role": "model", "parts": [{"text": "It rains in Bern today."}]}
    assert len(pieces) > 1
    assert "".join(pieces) == "It rains in Bern today."
    assert (whole.finish_reason, whole.error_code) == ("STOP", None)
    assert whole.model_version == f"fake-{service.wire}"


async def test_usage_counts_cached_and_thinking_tokens_apart(service: Service) -> None:
    """Output tokens do not include thinking tokens, and prompt tokens include cached ones, as in genai."""
    counts = {"promptTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 2}
    gemini = {"usage": {**counts, "cachedContentTokenCount": 4, "totalTokenCount": 15}}
    whole, live, _ = await service.twice(text="Paid.", **(gemini if service.wire == "gemini" else {}))
    expected = Usage(prompt_tokens=10, output_tokens=3, thoughts_tokens=2, cached_tokens=4, total_tokens=15)
    assert whole.usage == live.usage == expected


@pytest.mark.parametrize("number", [-1_000_000, 10**40, float("nan"), 1e308, "12", None])
def test_impossible_usage_is_clamped(number: Any) -> None:
    """Negative tokens count as 0 and do not refill a budget, and huge numbers are capped. Other values count as 0."""
    openai = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), number)
    claude = dict.fromkeys(("input_tokens", "output_tokens", "cache_read_input_tokens"), number)
    gemini = dict.fromkeys(("promptTokenCount", "candidatesTokenCount", "totalTokenCount"), number)
    for counts in (gemini, chat_completions._counts(openai), anthropic_llm._counts(claude)):
        reply = Reply("The service", join=False)
        reply.add({"usageMetadata": counts})
        reply.continuation()
        usage = reply.response().usage or Usage()
        assert all(0 <= count <= MAX_TOKENS for count in usage.model_dump().values())
    adk = Usage.from_genai(SimpleNamespace(**dict.fromkeys(GENAI_COUNTS.values(), number))) or Usage()
    assert all(0 <= count <= MAX_TOKENS for count in (adk + adk).model_dump().values())


async def test_parallel_calls_keep_their_order_and_arguments(service: Service) -> None:
    """A reply may have text and several calls of one tool."""
    made = [("pay", {"amount": 1, "to": {"name": "Zoë"}}), ("pay", {"amount": 2})]
    whole, live, _ = await service.twice(text="Paying.", calls=made)
    assert whole.content is not None
    assert live.content is not None
    assert calls_of(whole) == calls_of(live) == made
    assert whole.content["parts"][0] == live.content["parts"][0] == {"text": "Paying."}
    assert whole.error_code is None


async def test_a_call_without_arguments_has_an_empty_object(service: Service) -> None:
    """A call without arguments is valid and has an empty object."""
    whole, live, _ = await service.twice(calls=[("pay", {})])
    assert calls_of(whole) == calls_of(live) == [("pay", {})]


async def test_results_are_sent_with_their_calls(service: Service) -> None:
    """Results may be in another order, and have IDs of another service or none."""
    ids = [{"id": "x"}, {"id": "y"}] if service.wire == "gemini" else [{}, {"id": "x y"}]
    calls = [{"functionCall": {"name": f"pay{n}", "args": {"n": n}, **ids[n]}} for n in range(2)]
    results = [{"functionResponse": {"name": f"pay{n}", "response": {"paid": n}, **ids[n]}} for n in (1, 0)]
    service.fake.reply(text="Both are paid.")
    response = await service.ask(ASKED, {"role": "model", "parts": calls}, {"role": "user", "parts": results})
    assert response.content == {"role": "model", "parts": [{"text": "Both are paid."}]}
    sent = str(service.body)
    assert sent.index("'paid': 1" if service.wire == "gemini" else '{"paid":1}') > sent.index("pay1")


async def test_instruction_tools_and_settings_are_sent(service: Service) -> None:
    """The instruction, tools and settings have the names of each wire format."""
    service.fake.reply(text="Done.")
    config = {"temperature": 0.5, "maxOutputTokens": 100, "stopSequences": ["END"]}
    if service.name == "litellm-anthropic":
        del config["temperature"]
    await service.ask(system_instruction="Be brief.", tools=[TOOL], config=config)
    body, sent = service.body, str(service.body)
    for text in ("Be brief.", "Pays.", "'amount'", "100", "'END'", "Meyer & Sons"):
        assert text in sent
    settings = body.get("generationConfig", body)
    assert settings.get("temperature") == config.get("temperature")


async def test_an_output_schema_is_sent(service: Service) -> None:
    """The agent's schema is sent, so that the service enforces it."""
    service.fake.reply(text='{"amount": 5}')
    if service.name == "litellm-anthropic":
        pytest.skip("LiteLLM asks older Claude models for structured output by a tool of its own")
    config = {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    response = await service.ask(config=config)
    assert response.content == {"role": "model", "parts": [{"text": '{"amount": 5}'}]}
    strict = {**SCHEMA, "additionalProperties": False}
    match service.wire:
        case "gemini":
            assert service.body["generationConfig"]["responseJsonSchema"] == SCHEMA
        case "openai":
            form = {"name": "Paid", "schema": strict, "strict": True}
            assert service.body["response_format"] == {"type": "json_schema", "json_schema": form}
        case _:
            assert service.body["output_config"]["format"] == {"type": "json_schema", "schema": strict}
    assert "additionalProperties" not in SCHEMA


async def test_thinking_is_a_thought_and_not_text(service: Service) -> None:
    """Thoughts are recorded, but not streamed as text."""
    whole, live, pieces = await service.twice(thought="Look it up.", text="It rains today.")
    for response in (whole, live):
        assert response.content is not None
        first, *rest = response.content["parts"]
        assert (first["text"], first["thought"]) == ("Look it up.", True)
        assert rest == [{"text": "It rains today."}]
    assert "".join(pieces) == "It rains today."


async def test_signed_thoughts_are_sent_to_their_own_service_only(service: Service) -> None:
    """Signed thoughts precede the results of calls to Anthropic; other services reject foreign signatures."""
    signed: JsonObject = {"text": "Hm.", "thought": True, "thoughtSignature": "dGhpbmtpbmc6"}  # "thinking:"
    if service.wire == "anthropic":
        whole, live, _ = await service.twice(thought="Hm.", calls=[("pay", {"amount": 1})])
        assert whole.content is not None
        assert whole.content == (live.content or {})
        signed = whole.content["parts"][0]
    call = {"functionCall": {"id": "a", "name": "pay", "args": {}}}
    result = {"functionResponse": {"id": "a", "name": "pay", "response": {}}}
    service.fake.reply(text="Done.")
    await service.ask(ASKED, {"role": "model", "parts": [signed, call]}, {"role": "user", "parts": [result]})
    if service.wire == "anthropic":
        block = service.body["messages"][1]["content"][0]
        assert block == {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE}
    elif service.name != "litellm-openai":
        assert "Hm." not in str(service.body)


async def test_images_are_sent(service: Service) -> None:
    """An image is sent as data, in standard base64."""
    service.fake.reply(text="A pixel.")
    data = PIXEL.replace("+", "-").replace("/", "_")
    image = {"inlineData": {"mimeType": "image/png", "data": data}}
    await service.ask({"role": "user", "parts": [{"text": "What is it?"}, image]})
    assert PIXEL in str(service.body)
    assert "image/png" in str(service.body)


async def test_an_unsupported_part_is_refused_by_its_type(service: Service) -> None:
    """The error names the type; nothing is sent."""
    if service.wire == "gemini":
        pytest.skip("Gemini decides itself")
    video = {"inlineData": {"mimeType": "video/mp4", "data": PIXEL}}
    with pytest.raises(ModelRefused, match="does not accept 'video/mp4' in a message"):
        await service.ask({"role": "user", "parts": [video]})
    with pytest.raises(ModelRefused, match="has no tool 'googleSearch'; it belongs to Gemini"):
        await service.ask(native_tools=[{"googleSearch": {}}])
    assert service.fake.requests == []


async def test_a_refusal_is_an_outcome_with_a_code(service: Service) -> None:
    """The outcome has a code for the reason, and keeps the text."""
    whole, live, _ = await service.twice(text="I cannot help with this.", finish_reason="SAFETY")
    assert whole.error_code == "SAFETY"
    assert live.error_code == "SAFETY"
    assert whole.content == live.content == {"role": "model", "parts": [{"text": "I cannot help with this."}]}


async def test_a_reply_at_the_limit_of_its_length_is_usable(service: Service) -> None:
    """A reply that reaches the limit is usable, and its finish reason shows that it was cut."""
    whole, live, _ = await service.twice(text="Once upon", finish_reason="MAX_TOKENS")
    assert (whole.finish_reason, whole.error_code) == (live.finish_reason, live.error_code) == ("MAX_TOKENS", None)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_service_sets_the_delay_after_too_many_requests(service: Service, stream: bool) -> None:
    """The adapter sends one request, and returns the delay of `Retry-After` to the engine."""
    service.fake.fault(status=429, retry_after=7)
    request = LlmRequest(model="some-model", contents=[ASKED])
    with pytest.raises(ModelOverloaded) as caught:
        await service.model.generate(request, on_text=(lambda _: None) if stream else None)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 7.0)
    assert len(service.fake.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_connection_is_retryable(service: Service, stream: bool) -> None:
    """A cut connection is retryable, because a partial reply does not count."""
    service.fake.fault(drop=True)
    service.fake.reply(text="Better.")
    request = LlmRequest(model="some-model", contents=[ASKED])
    with pytest.raises(ModelOverloaded):
        await service.model.generate(request, on_text=(lambda _: None) if stream else None)
    assert (await service.ask()).content == {"role": "model", "parts": [{"text": "Better."}]}


async def test_an_unreachable_service_is_retryable(service: Service) -> None:
    """The error names the service."""
    async with FakeService() as gone:
        model = create_model(service.name, gone.url)
    with pytest.raises(ModelOverloaded) as caught:
        await model.generate(LlmRequest(model="some-model", contents=[ASKED]))
    # LiteLLM reports status 500.
    text = "LiteLLM answered 500" if service.name.startswith("litellm") else "was not reached, or did not answer"
    assert text in str(caught.value)
    await model.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_rejected_request_is_not_repeated(service: Service, status: int) -> None:
    """The error quotes neither the conversation nor the key."""
    service.fake.fault(status=status, message=f"Not allowed: the invoice of Meyer & Sons. with {KEY}")
    with pytest.raises(ModelRefused, match=str(status)) as caught:
        await service.ask()
    assert caught.value.status == status
    assert "Not allowed" in str(caught.value)
    assert "Meyer" not in str(caught.value)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("status", [408, 500, 502, 503, 529])
async def test_a_failing_service_is_retryable(service: Service, status: int) -> None:
    """A failing service receives one request, and the error keeps the status."""
    service.fake.fault(status=status)
    with pytest.raises(ModelOverloaded):
        await service.ask()
    assert len(service.fake.requests) == 1


@pytest.mark.parametrize("arguments", ['{"amount": ', "[1]", '"{}"', "{}{}", '{"amount": 1}'])
async def test_arguments_that_are_not_an_object_stay_text(service: Service, arguments: str) -> None:
    """Invalid arguments stay text, which the engine repairs or reports.

    The valid call next to them keeps its arguments.
    """
    if service.wire == "gemini" or service.name == "litellm-anthropic":
        pytest.skip("the arguments are JSON already, or LiteLLM repairs them")
    whole, live, _ = await service.twice(calls=[("pay", arguments), ("log", {"big": 10**30, "half": "\ud83d"})])
    expected: Any = {"amount": 1} if arguments.endswith("1}") else arguments
    assert calls_of(live) == [("pay", expected), ("log", {"big": 10**30, "half": "\ud83d"})]
    assert (live.finish_reason, live.error_code) == ("STOP", None)
    assert service.wire == "anthropic" or calls_of(whole) == calls_of(live)


def piece(arguments: Any, name: str | None = "pay", **more: Any) -> JsonObject:
    return {**more, "function": {"name": name, "arguments": arguments}}


ONE, TWO = '{"amount": 1}', '{"amount": 2}'


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        ([piece(ONE, id="a", index=0), piece(TWO, id="b", index=0)], 2),
        ([piece(ONE, id="a"), piece(TWO, id="b")], 2),
        ([piece(ONE, index=0), piece(TWO, index=0)], 2),
        ([piece(ONE), piece(TWO)], 2),
        ([piece(ONE, id="a", index=0), piece(TWO, id="b", index=1)], 2),
        ([piece("", id="a", index=0), piece("", id="b", index=0), piece(ONE, id="a"), piece(TWO, id="b")], 2),
        ([piece(ONE[:5], id="a", index=0), piece(ONE[5:], id="a", index=0)], 1),
        ([piece(ONE[:5], id="a", index=0), piece(ONE[5:], index=0), piece("", index=0)], 1),
        ([piece(ONE[:5], id="a", index=0), piece(ONE[5:], None, id="fresh", index=0)], 1),
        ([piece("", None, id="a", index=0), piece(ONE, index=0)], 1),
        ([piece(ONE, id="a", index=0), piece(TWO, id="a", index=1)], 2),
        ([piece(ONE, id="a", index=0), piece(" ", id="a", index=0), piece("\n", index=0)], 1),
        ([piece({"amount": 1}, id="a", index=0)], 1),
    ],
)
def test_pieces_of_calls_are_joined_by_id_name_or_index(pieces: list[JsonObject], count: int) -> None:
    """Pieces of calls are joined although services repeat, omit or change the index, the ID or the name."""
    reply = chat_completions.ChatReply()
    for call in pieces:
        reply.convert({"choices": [{"delta": {"tool_calls": [call]}}]})
    parts = reply.convert({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})["candidates"][0]["content"][
        "parts"
    ]
    calls = [(part["functionCall"]["name"], part["functionCall"]["args"]) for part in parts]
    assert calls == [("pay", {"amount": 1}), ("pay", {"amount": 2})][:count]


def test_calls_with_the_same_id_keep_their_own_arguments() -> None:
    """A tool never runs with arguments that the model sent to another one, and null means no arguments."""
    reply = chat_completions.ChatReply()
    for call in (
        piece("", "ping", id="a", index=0),
        piece(ONE[:5], id="a", index=1),
        piece("null", None, id="a", index=0),
        piece(ONE[5:], None, id="a", index=1),
    ):
        reply.convert({"choices": [{"delta": {"tool_calls": [call]}}]})
    content = reply.convert({"choices": [{"delta": {}, "finish_reason": "stop"}]})["candidates"][0]["content"]
    calls = [(part["functionCall"]["name"], part["functionCall"]["args"]) for part in content["parts"]]
    assert calls == [("ping", {}), ("pay", {"amount": 1})]


@pytest.mark.parametrize("field", ["delta", "message"])
def test_content_may_be_a_list_of_parts(field: str) -> None:
    """Texts and thoughts may arrive in lists, as from Mistral."""
    text = {"type": "text", "text": "It rains."}
    content = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, text, "Much."]
    reply = chat_completions.ChatReply().convert({"choices": [{field: {"content": content}, "finish_reason": "stop"}]})
    thought, *texts = reply["candidates"][0]["content"]["parts"]
    assert (thought, texts) == ({"text": "Hm.", "thought": True}, [{"text": "It rains."}, {"text": "Much."}])


ERRORS = [({"code": 502, "message": "Overloaded."}, ModelOverloaded), ({"code": 400, "message": "No."}, ModelRefused)]
ERRORS += [({"type": "overloaded_error", "message": "Busy."}, ModelOverloaded)]
ERRORS += [({"type": "invalid_request_error", "message": f"No. Meyer & Sons. {KEY}"}, ModelRefused)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "kind"), ERRORS)
async def test_an_error_with_the_status_200_is_an_error(
    service: Service, error: JsonObject, kind: type[Exception], stream: bool
) -> None:
    """The error's code or type decides about a retry, and its text has neither the conversation nor the key."""
    if service.name.startswith("litellm") and (stream or service.wire == "anthropic" or "code" not in error):
        pytest.skip("LiteLLM replaces the status")
    if service.wire == "gemini":
        service.fake.reply(raw={"error": {"code": 400 if kind is ModelRefused else 503, **error}})
    else:
        service.fake.report(error)
    request = LlmRequest(model="some-model", contents=[ASKED])
    with pytest.raises(kind) as caught:
        await service.model.generate(request, on_text=(lambda _: None) if stream else None)
    assert error["message"][:3] in str(caught.value)
    assert "Meyer" not in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("reply", [{"text": "It rains today."}, {"calls": [("pay", {"amount": 1})]}])
async def test_a_stream_without_its_end_is_retryable(service: Service, reply: JsonObject) -> None:
    """A stream without its end is retryable, because its calls and text may be incomplete."""
    if service.wire == "gemini":
        service.fake.reply(raw={"candidates": [{"content": {"role": "model", "parts": [{"text": "It"}]}}]})
    else:
        service.fake.reply(**reply)
        service.fake.end_early(3 if service.wire == "openai" else 4)
    with pytest.raises(ModelOverloaded, match="ended before the reply was complete"):
        await service.model.generate(LlmRequest(model="some-model", contents=[ASKED]), on_text=lambda _: None)


def call(name: str, **more: Any) -> JsonObject:
    return {"functionCall": {"name": name, "args": {}, **more}}


def result(name: str, **more: Any) -> JsonObject:
    return {"functionResponse": {"name": name, "response": {"n": 1}, **more}}


def turns(*parts: JsonObject | list[JsonObject]) -> list[JsonObject]:
    """Return turns of the user, the model, the user, and so on, each with one part or several."""
    lists = [part if isinstance(part, list) else [part] for part in parts]
    return [{"role": ("user", "model")[number % 2], "parts": each} for number, each in enumerate(lists)]


HELLO: JsonObject = {"text": "Hello."}
CONVERSATIONS = {
    "nothing": [],
    "blank": turns({"text": " \n"}, HELLO, {"text": ""}, HELLO, [{"text": "\t"}, HELLO]),
    "no parts": [*turns(HELLO), {"role": "model", "parts": []}, {"role": "user"}, {"role": "model"}],
    "model first": turns({"text": ""}, call("pay"), result("pay")),
    "other roles": [{"role": "assistant", "parts": [call("pay")]}, {"role": "function", "parts": [result("pay")]}],
    "only a thought": turns(HELLO, {"text": "Hm.", "thought": True}, HELLO),
    "only a thought of the user": turns(
        HELLO, HELLO, {"text": "Hm.", "thought": True, "thoughtSignature": "YQ=="}, HELLO
    ),
    "no result": turns(HELLO, [call("pay", id="a"), call("pay", id="b")], result("pay", id="b"), HELLO, HELLO),
    "no result at the end": turns(HELLO, [HELLO, call("pay")]),
    "no call": turns(HELLO, HELLO, [result("pay"), HELLO], call("log"), [result("pay"), result("log")]),
    "late result": turns(HELLO, call("pay"), HELLO, HELLO, result("pay")),
    "text before a result": [*turns(HELLO, call("pay"), HELLO), *turns(result("pay"))],
    "repeated IDs": turns(HELLO, [call("a", id="x"), call("b", id="x")], [result("b", id="x"), result("a", id="x")]),
    "names": turns(HELLO, [call(""), call("1st tool"), call("ä" * 99)], [result("ä" * 99), result("1st tool")]),
    "half an emoji": turns({"text": "\ud83d\ude00 \ud83d"}, call("pay", args={"to": "\udc00"}), result("pay")),
}


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("tools", [(), (TOOL,)])
async def test_any_conversation_is_sent_in_a_valid_form(
    service: Service, conversation: list[JsonObject], tools: Sequence[JsonObject]
) -> None:
    """Any conversation of callbacks or older versions is sent in a form that the services, like the fakes, accept."""
    service.fake.reply(text="Done.")
    config = {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}
    request = LlmRequest(model="m", contents=conversation, tools=tools, system_instruction=" ", config=config)
    assert (await service.model.generate(request)).content == {"role": "model", "parts": [{"text": "Done."}]}


NAMES = ["coding.start", "coding:start", "coding_start", f"{'x' * 70}1", f"{'x' * 70}2"]


def test_a_name_that_is_not_text_reaches_the_engine() -> None:
    """A name that is not text reaches the engine, which reports it to the model."""
    _, names = make_sendable(LlmRequest(model="m", contents=turns(HELLO), tools=[TOOL]), ServiceModel.rules)
    odd = LlmResponse(content={"role": "model", "parts": [{"functionCall": {"name": ["pay"]}}]})
    assert names.restore(odd).content == {"role": "model", "parts": [{"functionCall": {"name": ["pay"]}}]}


async def test_names_that_a_service_refuses_are_replaced_in_the_request_only(service: Service) -> None:
    """Each tool has its own name in declarations, choices and earlier calls, and replies have the tool's name."""
    schema = {"anyOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {}}}], "$defs": {"A": {"properties": {"a": {}}}}}
    tools = [{"name": name, "description": "d" * 2000, "parametersJsonSchema": schema} for name in NAMES]
    config = {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": NAMES[:2]}}}
    contents = turns(HELLO, [call(name) for name in NAMES], [result(name) for name in NAMES[::-1]])
    request = LlmRequest(model="m", contents=contents, tools=tools, config=config)
    sent, names = make_sendable(request, Gemini.rules if service.wire == "gemini" else ServiceModel.rules)
    assert len({names.sent[name] for name in NAMES}) == len(NAMES)
    assert names.sent["coding_start"] == "coding_start"
    service.fake.reply(calls=[(names.sent[name], {}) for name in NAMES])
    assert calls_of(await service.model.generate(request)) == [(name, {}) for name in NAMES]
    assert str(sent.contents).count(names.sent[NAMES[3]]) == 2
    assert all(names.sent[name] in str(service.body) for name in NAMES)
    assert "d" * 2000 in str(service.body)


async def test_claude_on_vertex_ai_is_called_in_its_project() -> None:
    """The project and the location are those of the model's resource name, and the URL contains its last part."""
    name = "projects/p1/locations/europe-west1/publishers/anthropic/models/claude-sonnet-5-5"
    async with FakeAnthropic() as fake:
        model = Claude(model=name, base_url=f"{fake.url}/v1", api_key="a Google token")
        fake.reply(text="Paid.")
        response = await model.generate(LlmRequest(model=name, contents=[ASKED]))
        await model.close()
    assert response.content == {"role": "model", "parts": [{"text": "Paid."}]}
    [request] = fake.requests
    assert request.path.startswith(f"/v1/{name}:rawPredict")
    assert request.headers["authorization"] == "Bearer a Google token"


async def test_claude_on_vertex_ai_needs_a_project_and_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error names what to set."""
    for variable in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"):
        monkeypatch.delenv(variable, raising=False)
    request = LlmRequest(model="claude-sonnet-5-5", contents=[ASKED])
    with pytest.raises(ModelRefused, match="Set GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION"):
        await Claude(model="claude-sonnet-5-5").generate(request)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p1")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "global")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    with pytest.raises(ModelRefused, match="no usable credentials"):
        await Claude(model="claude-sonnet-5-5").generate(request)
