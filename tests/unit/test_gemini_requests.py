"""Gemini requests have native tools and a valid order of turns, over real HTTP."""

from collections.abc import AsyncIterator

import pytest

from waystation.agents.readonly_context import ReadonlyContext
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest
from waystation.models.google_llm import Gemini
from waystation.models.sendable import CONTINUE_PROMPT
from waystation.testing.fake_gemini import FakeGemini
from waystation.tools.google_search_tool import google_search
from waystation.tools.url_context_tool import url_context

ASKED: JsonObject = {"role": "user", "parts": [{"text": "Who won?"}]}
GROUNDED: JsonObject = {
    "webSearchQueries": ["who won"],
    "groundingChunks": [{"web": {"uri": "https://example.org", "title": "Results"}}],
    "newField": {"kept": True},
}
CITED: JsonObject = {"citationSources": [{"startIndex": 0, "endIndex": 3, "uri": "https://example.org"}]}


@pytest.fixture
async def model(gemini: FakeGemini) -> AsyncIterator[Gemini]:
    model = Gemini(base_url=gemini.url, api_key="test")
    yield model
    await model.close()


def chunk(text: str, **more: object) -> JsonObject:
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, **more}]}


async def test_a_request_ends_with_a_user_turn(gemini: FakeGemini, model: Gemini) -> None:
    """A user turn is added if the last content is the model's, as in a loop."""
    gemini.reply(text="ok")
    model_content: JsonObject = {"role": "model", "parts": [{"text": "One."}]}
    await model.generate(LlmRequest(model="gemini-3.5-flash", contents=(ASKED, model_content)))
    assert gemini.requests[-1].body["contents"] == [
        ASKED,
        model_content,
        {"role": "user", "parts": [{"text": CONTINUE_PROMPT}]},
    ]


class Uncopied(dict[str, object]):
    """A content that cannot be copied."""

    def __deepcopy__(self, memo: object) -> "Uncopied":
        raise AssertionError("the content was copied")


async def test_the_sdk_does_not_copy_the_conversation(gemini: FakeGemini, model: Gemini) -> None:
    """The conversation is not copied, because copying takes twice as long as sending it."""
    gemini.reply(text="ok")
    await model.generate(LlmRequest(model="gemini-3.5-flash", contents=[Uncopied(ASKED)]))
    assert gemini.requests[-1].body["contents"] == [ASKED]


async def test_consecutive_model_turns_are_merged(gemini: FakeGemini, model: Gemini) -> None:
    """Consecutive model turns are merged, because the API refuses several in a row."""
    gemini.reply(text="ok")
    waits: JsonObject = {"role": "model", "parts": [{"text": "I asked.", "thoughtSignature": "c2ln"}]}
    call: JsonObject = {"role": "model", "parts": [{"functionCall": {"name": "pay", "args": {}}}]}
    answer: JsonObject = {"role": "user", "parts": [{"functionResponse": {"name": "pay", "response": {}}}]}
    contents = (ASKED, call, answer, waits, call, answer)
    await model.generate(LlmRequest(model="gemini-3.5-flash", contents=contents))
    joined = {"role": "model", "parts": [*waits["parts"], *call["parts"]]}
    assert gemini.requests[-1].body["contents"] == [ASKED, call, answer, joined, answer]
    assert len(waits["parts"]) == len(call["parts"]) == 1


async def test_native_tools_are_sent_next_to_the_declarations(gemini: FakeGemini, model: Gemini) -> None:
    """Every native tool is a separate Tool after the one with all declarations."""
    gemini.reply(text="Nobody.")
    native = [tool.native_tool("gemini-3-flash", ReadonlyContext()) for tool in (google_search, url_context)]
    await model.generate(
        LlmRequest(model="gemini-3-flash", contents=[ASKED], tools=[{"name": "pay"}], native_tools=native)
    )
    assert gemini.requests[0].body["tools"] == [
        {"functionDeclarations": [{"name": "pay"}]},
        {"googleSearch": {}},
        {"urlContext": {}},
    ]


async def test_grounding_and_citations_are_kept(gemini: FakeGemini, model: Gemini) -> None:
    """Grounding and citations come back unchanged."""
    gemini.reply(raw=chunk("Ann.", finishReason="STOP", groundingMetadata=GROUNDED, citationMetadata=CITED))
    reply = await model.generate(LlmRequest(model="gemini-3-flash", contents=[ASKED]))
    assert (reply.grounding_metadata, reply.citation_metadata) == (GROUNDED, CITED)


async def test_the_last_grounding_of_a_stream_counts(gemini: FakeGemini, model: Gemini) -> None:
    """The last grounding counts, because the service repeats it while it grows, and may omit it at the end."""
    early: JsonObject = {"webSearchQueries": ["who"]}
    gemini.reply(
        raw=[
            chunk("A", groundingMetadata=early),
            chunk("nn", groundingMetadata=GROUNDED),
            chunk(".", finishReason="STOP"),
        ]
    )
    pieces: list[str] = []
    reply = await model.generate(LlmRequest(model="gemini-3-flash", contents=[ASKED]), on_text=pieces.append)
    assert ("".join(pieces), reply.grounding_metadata, reply.citation_metadata) == ("Ann.", GROUNDED, None)


async def test_a_reply_without_grounding_has_no_such_field(gemini: FakeGemini, model: Gemini) -> None:
    """The fields for grounding and citations are absent, as in most replies."""
    gemini.reply(text="Ann.")
    reply = await model.generate(LlmRequest(model="gemini-3-flash", contents=[ASKED]))
    assert (reply.grounding_metadata, reply.citation_metadata) == (None, None)
