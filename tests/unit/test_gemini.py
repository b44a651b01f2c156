"""The Gemini adapter against a fake server, over real HTTP."""

import asyncio
import pathlib
import re
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from waystation.core.budget import Usage
from waystation.core.errors import ModelError, ModelOverloaded, ModelRefused
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest, LlmResponse
from waystation.models import google_llm as adapter
from waystation.models.google_llm import Gemini
from waystation.testing.fake_gemini import FakeGemini

KEY = "secret-key-5f2e"
SIGNATURE = "+/+/AQI="  # Standard base64. The SDK's types would write `-_-_AQI=`.
ASKED: JsonObject = {"role": "user", "parts": [{"text": "Pay the invoice of Meyer & Sons."}]}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all credentials from the environment."""
    for name in ("API_KEY", "GENAI_USE_VERTEXAI", "GENAI_USE_ENTERPRISE", "CLOUD_PROJECT", "CLOUD_LOCATION"):
        monkeypatch.delenv(f"GOOGLE_{name}", raising=False)
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_GEMINI_BASE_URL", raising=False)


@pytest.fixture
async def model(gemini: FakeGemini) -> AsyncIterator[Gemini]:
    model = Gemini(base_url=gemini.url, api_key=KEY)
    yield model
    await model.close()


def asking(*contents: JsonObject, **settings: Any) -> LlmRequest:
    return LlmRequest(model="gemini-3.5-flash", contents=contents or (ASKED,), **settings)


def content(*parts: JsonObject) -> JsonObject:
    return {"role": "model", "parts": list(parts)}


def response(*parts: JsonObject, finish: str | None = "STOP", **more: object) -> JsonObject:
    return {"candidates": [{"content": content(*parts), "finishReason": finish, **more}]}


async def streamed(model: Gemini, request: LlmRequest) -> tuple[LlmResponse, list[str]]:
    pieces: list[str] = []
    return await model.generate(request, on_text=pieces.append), pieces


async def twice(gemini: FakeGemini, model: Gemini, **fields: Any) -> tuple[LlmResponse, LlmResponse, list[str]]:
    """Return the same reply in whole and streamed form."""
    gemini.reply(**fields)
    gemini.reply(**fields)
    return (await model.generate(asking()), *(await streamed(model, asking())))


async def failure(model: Gemini, request: LlmRequest) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await model.generate(request)
    return caught.value


async def test_text_comes_back_with_usage_and_version(gemini: FakeGemini, model: Gemini) -> None:
    """A plain reply keeps its content, finish reason, token counts and model version."""
    counts = {"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 20}
    gemini.reply(text="Paid.", usage={**counts, "cachedContentTokenCount": 4, "totalTokenCount": 30})
    reply = await model.generate(asking())
    assert reply.content == {"role": "model", "parts": [{"text": "Paid."}]}
    assert (reply.finish_reason, reply.error_code, reply.model_version) == ("STOP", None, "fake-gemini")
    counted = Usage(prompt_tokens=7, output_tokens=3, thoughts_tokens=20, cached_tokens=4, total_tokens=30)
    assert reply.usage == counted


async def test_the_request_is_sent_unchanged(gemini: FakeGemini, model: Gemini) -> None:
    """The service receives contents, declarations, instruction and config unchanged."""
    call = {"id": "fc-1", "name": "pay", "args": {"to": None, "a_b": {"c_d": 1.0}}}
    contents: list[JsonObject] = [
        ASKED,
        content({"functionCall": call, "thoughtSignature": SIGNATURE, "futureField": {"snake_case": [None]}}),
        {"role": "user", "parts": [{"functionResponse": {"id": "fc-1", "name": "pay", "response": {}}}]},
    ]
    declaration = {"name": "pay", "description": "Pays.", "parametersJsonSchema": {"x_y": [{"a_b": 1}]}}
    settings = {
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
    }
    numbers = {"temperature": 0.5, "maxOutputTokens": 100, "stopSequences": ["END"]}
    config = {**numbers, **settings, "httpOptions": {"headers": {"x-team": "payments"}}}
    given = asking(*contents, system_instruction="Be brief.", tools=[declaration], config=config)
    gemini.reply(text="Done.")
    await model.generate(given)
    [request] = gemini.requests
    assert request.body == {
        "contents": contents,
        "tools": [{"functionDeclarations": [declaration]}],
        "systemInstruction": {"role": "user", "parts": [{"text": "Be brief."}]},
        "generationConfig": numbers,
        **settings,
    }
    # google-genai 2 uses v1beta, and google-genai 3 uses v1.
    assert re.fullmatch(r"/v1(beta)?/models/gemini-3\.5-flash:generateContent", request.path)
    assert request.headers["x-team"] == "payments"
    assert "x-goog-api-key" not in request.headers


async def test_unknown_fields_and_signatures_survive(gemini: FakeGemini, model: Gemini) -> None:
    """Fields that the SDK does not know, signatures and nulls in arguments come back unchanged."""
    call = {"name": "pay", "args": {"to": None}, "new": 1}
    parts: list[JsonObject] = [
        {"text": "Let me see.", "thought": True},
        {"functionCall": call, "thoughtSignature": SIGNATURE},
        {"futureKind": {"deep": [None, {"x": None}]}},
    ]
    nulls = {"text": None, "functionCall": {**call, "id": None}, "thoughtSignature": SIGNATURE}
    whole, live, _ = await twice(gemini, model, raw=response(parts[0], nulls, parts[2]))
    assert whole.content == live.content == {"role": "model", "parts": parts}


@pytest.mark.parametrize("json_kept", [True, False])
async def test_streamed_text_equals_whole_text(
    gemini: FakeGemini, model: Gemini, monkeypatch: pytest.MonkeyPatch, json_kept: bool
) -> None:
    """The joined pieces exclude thoughts, even if the SDK's internals hide the JSON."""
    if not json_kept:
        monkeypatch.setattr(adapter, "_keep_streamed_json", lambda client: None)
    reply: Any = {"text": "It rains in Bern today.", "thought": "Look up.", "calls": [("log", {"x": None})]}
    whole, live, pieces = await twice(gemini, model, **reply)
    assert pieces == ["It", " rains", " in", " Bern", " today."]
    assert live == whole
    assert live.usage == Usage(prompt_tokens=10, output_tokens=5, total_tokens=15)
    assert gemini.requests[1].streamed


async def test_streamed_parts_other_than_plain_text_are_kept(gemini: FakeGemini, model: Gemini) -> None:
    """An empty part with a signature stays separate, and Unicode line separators count as text."""
    chunks = [response({"text": "a\u2028b\u0085"}, finish=None), response({"text": "\nc"}, finish=None)]
    gemini.reply(raw=[*chunks, response({"text": "", "thoughtSignature": SIGNATURE})])
    live, _ = await streamed(model, asking())
    assert live.content == content({"text": "a\u2028b\u0085\nc"}, {"text": "", "thoughtSignature": SIGNATURE})


async def test_an_interrupted_generation_is_continued(gemini: FakeGemini, model: Gemini) -> None:
    """A continuation token leads to another request, and the usage is summed."""
    first = response({"text": "One, "}, finish="CONTINUATION", continuationToken="dG9rZW4=")
    gemini.reply(raw={**first, "usageMetadata": {"totalTokenCount": 5}})
    gemini.reply(raw={**response({"text": "two."}), "usageMetadata": {"totalTokenCount": 7}})
    live, _ = await streamed(model, asking())
    assert live.content == content({"text": "One, two."})
    assert (live.finish_reason, live.usage) == ("STOP", Usage(total_tokens=12))
    assert gemini.requests[1].body["continuationToken"] == "dG9rZW4="


async def test_concurrent_streams_do_not_mix(gemini: FakeGemini, model: Gemini) -> None:
    """Each of several streams over one client gets its own complete reply."""
    for number in range(8):
        gemini.reply(text=f"{number} " * 20 + "end")
    replies = await asyncio.gather(*(streamed(model, asking()) for _ in range(8)))
    assert {"".join(pieces) for _, pieces in replies} == {f"{n} " * 20 + "end" for n in range(8)}


NOTHING = ("MODEL_RETURNED_NO_CONTENT", "The model returned no content.")
LIMIT = ("MAX_TOKENS", "The model returned no text within max_output_tokens. Increase the limit.")
SAID = {"text": "Once upon"}


@pytest.mark.parametrize(
    ("raw", "parts", "code", "message"),
    [
        ({"promptFeedback": {"blockReason": "OTHER"}}, [], "OTHER", "The prompt was blocked (OTHER)."),
        ({"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": "No."}}, [], "SAFETY", "No."),
        (response(finish="RECITATION"), [], "RECITATION", "The reply was cut off (RECITATION)."),
        (response(finish="NEW_REASON"), [], "NEW_REASON", "The reply was cut off (NEW_REASON)."),
        (response(finish="MALFORMED_FUNCTION_CALL", finishMessage="p("), [], "MALFORMED_FUNCTION_CALL", "p("),
        (response(SAID, finish="SAFETY"), [SAID], "SAFETY", "The reply was cut off (SAFETY)."),
        (response(SAID, finish="MAX_TOKENS"), [SAID], None, None),
        (response(finish="MAX_TOKENS"), [], *LIMIT),
        (response(), [], *NOTHING),
        (response({"text": ""}), [], *NOTHING),
    ],
)
async def test_a_cut_or_empty_reply_has_a_reason(
    gemini: FakeGemini, model: Gemini, raw: JsonObject, parts: list[JsonObject], code: str, message: str
) -> None:
    """Blocked and cut-off replies are outcomes with a code, not exceptions; their text is returned."""
    whole, live, _ = await twice(gemini, model, raw=raw)
    assert whole == live
    assert whole.content == (content(*parts) if parts else None)
    assert (whole.error_code, whole.error_message) == (code, message)


REFUSED, OVERLOADED = (400, 401, 403, 404, 413, 422), (408, 429, 500, 502, 503, 504, 529)


@pytest.mark.parametrize("status", [*REFUSED, *OVERLOADED])
async def test_overload_is_retryable_and_other_4xx_are_not(gemini: FakeGemini, model: Gemini, status: int) -> None:
    """408, 429 and 5xx are retryable, other 4xx are not; the adapter sends one request each."""
    gemini.fault(status=status, message="No such thing.")
    error = await failure(model, asking(config={"httpOptions": {"retryOptions": {"attempts": 3}}}))
    assert type(error) is (ModelRefused if status in REFUSED else ModelOverloaded)
    assert vars(error)["status"] == status
    assert re.fullmatch(f"Gemini answered {status}: [A-Z_]+: No such thing.", str(error))
    assert len(gemini.requests) == 1


HEADERS = {"2": 2.0, "1.5": 1.5, "-5": None, "soon": None, "99999999": 86400.0}
DATES = {"Wed, 21 Oct 2015 07:28:00 GMT": 0.0, "Tue, 01 Jan 2999 00:00:00 GMT": 86400.0}
DELAYS = {(None, "34.5s"): 34.5, ("2", "34.5s"): 34.5, ("60", "34.5s"): 60.0, (None, "?"): None}
WAITS = [*(((header, "?"), seconds) for header, seconds in {**HEADERS, **DATES}.items()), *DELAYS.items()]


@pytest.mark.parametrize(("answer", "seconds"), WAITS)
async def test_the_service_sets_the_delay_of_a_retry(
    gemini: FakeGemini, model: Gemini, answer: tuple[str | None, str], seconds: float | None
) -> None:
    """The delay is the longer of `Retry-After` and RetryInfo, up to a day; invalid values are ignored."""
    details = [7, {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": answer[1]}]
    body = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota.", "details": details}}
    gemini.fault(status=429, retry_after=answer[0], body=body)
    error = await failure(model, asking())
    assert isinstance(error, ModelOverloaded)
    assert error.retry_after_s == seconds


FAULTS: list[JsonObject] = [{"drop": True}, {"malformed": True}, {"body": "<html>", "status": 502}]
SHAPES: list[JsonObject] = [{"candidates": "x"}, {"candidates": [7]}, {"usageMetadata": 1}]
VALUES = [response({"text": 1})]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("answer", [*FAULTS, *({"raw": raw} for raw in [*SHAPES, *VALUES])])
async def test_a_broken_reply_is_retryable(
    gemini: FakeGemini, model: Gemini, answer: dict[str, Any], live: bool
) -> None:
    """Broken connections, invalid bodies and values that cannot be recorded are retryable."""
    (gemini.reply if "raw" in answer else gemini.fault)(**answer)
    gemini.reply(text="Better.")
    with pytest.raises(ModelOverloaded):
        await (streamed(model, asking()) if live else model.generate(asking()))
    assert (await model.generate(asking())).content == content({"text": "Better."})


async def test_an_interrupted_stream_is_not_a_reply(gemini: FakeGemini, model: Gemini) -> None:
    """A stream without a finish reason is incomplete; errors may arrive late."""
    partial = response({"text": "Transfer 9"}, finish=None)
    gemini.reply(raw={})
    gemini.reply(raw=partial)
    gemini.reply(raw=[partial, {"error": {"code": 503, "status": "UNAVAILABLE", "message": "Busy."}}])
    for _ in range(2):
        with pytest.raises(ModelOverloaded, match="ended before the reply was complete"):
            await streamed(model, asking())
    with pytest.raises(ModelOverloaded, match="Gemini answered 503: UNAVAILABLE: Busy"):
        await streamed(model, asking())


async def test_an_unreachable_service_is_retryable(gemini: FakeGemini) -> None:
    """Timeouts and refused connections are retryable, an invalid address is not."""
    gemini.fault(delay_s=30)
    async with FakeGemini() as gone:
        silent = Gemini(base_url=gemini.url, api_key=KEY, timeout=timedelta(milliseconds=50))
        down, wrong = Gemini(base_url=gone.url, api_key=KEY), Gemini(base_url="gemini.local", api_key=KEY)
    errors = [await failure(each, asking()) for each in (silent, down, wrong)]
    assert [type(error) for error in errors] == [ModelOverloaded, ModelOverloaded, ModelRefused]
    for each in (silent, down, wrong):
        await each.close()


async def test_a_mistake_in_the_configuration_is_final(gemini: FakeGemini, model: Gemini) -> None:
    """Missing or unusable credentials and an invalid config are named without their values."""
    broken = Gemini(base_url=gemini.url, api_key="secret\nkey")
    missing, unusable = await failure(Gemini(), asking()), await failure(broken, asking())
    wrong = await failure(model, asking(config={"temprature": "Meyer"}))
    await broken.close()
    assert {type(error) for error in (missing, unusable, wrong)} == {ModelRefused}
    assert "set GOOGLE_API_KEY or GEMINI_API_KEY; for Vertex AI GOOGLE_GENAI_USE_VERTEXAI" in str(missing)
    assert "secret" not in str(unusable)
    assert str(wrong).endswith("config is invalid: temprature: Extra inputs are not permitted")


@pytest.mark.parametrize("variable", ["GOOGLE_API_KEY", "GEMINI_API_KEY"])
async def test_the_environment_sets_key_and_address(
    gemini: FakeGemini, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """An adapter without arguments reads the same variables as google-genai and never shows the key."""
    monkeypatch.setenv(variable, f" {KEY} ")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", gemini.url)
    model = Gemini(model="gemini-3-pro")
    gemini.fault(status=403, message=f"Consumer 'api_key:{KEY}' is suspended.")
    error = await failure(model, asking())
    await model.close()
    assert str(error) == "Gemini answered 403: PERMISSION_DENIED: Consumer 'api_key:[key]' is suspended."
    assert gemini.requests[0].model == "gemini-3-pro"


async def test_vertex_is_chosen_by_the_environment(
    gemini: FakeGemini, model: Gemini, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable `GOOGLE_GENAI_USE_VERTEXAI` selects Vertex's paths; parallel calls keep IDs, order and signature."""
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    calls: Any = [("pay", {"n": 1}), ("pay", {"n": 2})]
    whole, live, _ = await twice(gemini, model, calls=calls, id=["a", "b"], thought_signature=SIGNATURE)
    assert whole == live
    assert whole.content == content(
        {"functionCall": {"id": "a", "name": "pay", "args": {"n": 1}}, "thoughtSignature": SIGNATURE},
        {"functionCall": {"id": "b", "name": "pay", "args": {"n": 2}}},
    )
    path = "/v1beta1/publishers/google/models/gemini-3.5-flash"
    assert [r.path for r in gemini.requests] == [f"{path}:generateContent", f"{path}:streamGenerateContent"]


async def test_errors_show_neither_key_nor_conversation(gemini: FakeGemini, model: Gemini) -> None:
    """Quotes of the service appear neither in the text, nor in the cause, nor in the traceback."""
    field = "Invalid value at 'contents[0].parts[0].text'"
    quoted = f'{field} near "the invoice of Meyer & Sons." with {KEY} and AIzaSyA1234567890abcdefghij '
    gemini.fault(status=400, message=quoted + "x" * 2000)
    gemini.fault(status=400, message=f"{field} (TYPE_STRING), 900123")
    error, typed = await failure(model, asking()), await failure(model, asking())
    text = "".join(traceback.format_exception(error)) + repr(vars(error)) + repr(error.__cause__)
    start = "Gemini answered 400: INVALID_ARGUMENT: "
    assert str(error).startswith(f'{start}{field} near "…" with [key] and [key] xxx')
    assert len(str(error)) <= 500
    assert KEY not in text
    assert "Meyer" not in text
    assert str(typed) == f"{start}{field} (TYPE_STRING)"


async def test_one_client_serves_all_calls_and_is_closed(gemini: FakeGemini, model: Gemini) -> None:
    """Concurrent first calls share a client; a call after `close` opens a new one."""
    for _ in range(4):
        gemini.reply(text="Yes.")
    await asyncio.gather(*(model.generate(asking()) for _ in range(3)))
    client = model._client
    await model.close()
    assert model._client is None
    await model.generate(asking())
    assert model._client is not client


def test_the_sdk_is_imported_by_the_first_call_only() -> None:
    """The SDK is imported by the first call, so workers with other models do not import it."""
    code = "import sys, waystation.models.google_llm as g; g.Gemini(); sys.exit('google.genai' in sys.modules)"
    root = pathlib.Path(adapter.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0


CALL = content({"functionCall": {"name": "pay", "args": {}}})
ANSWER: JsonObject = {"role": "user", "parts": [{"functionResponse": {"name": "pay", "response": {}}}]}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"contents": [ASKED, CALL]}, "number of function response parts"),
        ({"contents": [ASKED, CALL, ASKED, ANSWER]}, "number of function response parts"),
        ({"contents": [ASKED, CALL, {"parts": ANSWER["parts"] * 2}]}, "number of function response parts"),
        ({"contents": [ASKED, ANSWER]}, "function response turn comes immediately after"),
        ({"contents": [CALL, ANSWER]}, "function call turn comes immediately after"),
        ({"contents": [{**ASKED, "role": "assistant"}]}, "valid role"),
        ({"contents": [{"role": "user", "parts": []}]}, "parts must not be empty"),
        ({"contents": [{**ASKED, "name": "x"}]}, 'Unknown name "name"'),
        ({"contents": [ASKED, {**ASKED, "parts": [{"text": ""}]}]}, "empty text parameter"),
        ({"contents": [ASKED], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "without function_decl"),
        ({"contents": [{"parts": [{"text": "x", "thoughtSignature": "%"}]}]}, "Base64 decoding failed"),
        ({"contents": []}, "contents is not specified"),
        ({"contents": [ASKED], "tools": [{"functionDeclarations": [{"name": "a b"}]}]}, "Invalid function"),
        ({"contents": [ASKED], "tool": []}, 'Unknown name "tool"'),
    ],
)
async def test_the_fake_refuses_wrong_prompts(gemini: FakeGemini, body: JsonObject, problem: str) -> None:
    """The fake refuses an invalid prompt with Google's text and uses no scripted reply."""
    gemini.reply(text="never")
    async with httpx2.AsyncClient(base_url=gemini.url, headers={"authorization": "Bearer t"}) as http:
        path = "/v1/projects/p/locations/l/publishers/google/models/m:generateContent"
        answer = await http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["status"], gemini.remaining) == (400, "INVALID_ARGUMENT", 1)
    assert problem in error["message"]
    assert "authorization" not in gemini.requests[0].headers


async def test_the_fake_reports_an_exhausted_script(gemini: FakeGemini, model: Gemini) -> None:
    """A request without a scripted reply fails for good with a clear text."""
    error = await failure(model, asking())
    assert isinstance(error, ModelRefused)
    assert "FakeGemini's script is exhausted at request 1; add a reply." in str(error)
