"""A `FallbackModel` calls its models in order, and the reply names the one that answered."""

import base64
from collections.abc import AsyncIterator, Callable

import pytest

from waystation.core.errors import ModelOverloaded, ModelRefused, RateLimited
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.models.fallback_model import FallbackModel
from waystation.models.google_llm import Gemini
from waystation.testing import FakeGemini, ScriptedModel, says

REQUEST = LlmRequest(model="first", contents=[{"role": "user", "parts": [{"text": "Hello?"}]}])
BUSY = ModelOverloaded("busy", status=429)
WRONG = ModelRefused("wrong", status=400)


@pytest.fixture
async def gemini() -> AsyncIterator[FakeGemini]:
    """A fake of Gemini's service."""
    async with FakeGemini() as server:
        yield server


class Named(BaseLlm):
    """A scripted model with a name."""

    def __init__(self, name: str, *replies: LlmResponse | Exception, text: str | None = None) -> None:
        self.model, self.script, self.text = name, ScriptedModel(*replies), text

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Stream the text, if there is one, and return the next reply."""
        if self.text and on_text:
            on_text(self.text)
        return await self.script.generate(request)


async def test_the_next_model_answers_and_is_named() -> None:
    """Each model is called once, under its own name."""
    first, second, third = Named("first", BUSY), Named("second", ModelOverloaded("gone")), Named("third", says("Hi."))
    response = await FallbackModel([first, second, third]).generate(REQUEST)
    assert response.model == "third"
    assert [request.model for model in (first, second, third) for request in model.script.requests] == [
        "first",
        "second",
        "third",
    ]


async def test_the_last_error_is_raised_if_no_model_answers() -> None:
    """The error of the last model is raised, so that the engine repeats the call later."""
    with pytest.raises(ModelOverloaded, match="later"):
        await FallbackModel([Named("a", BUSY), Named("b", ModelOverloaded("later"))]).generate(REQUEST)


async def test_waiting_models_are_called_again_after_the_shortest_wait() -> None:
    """Any model may have the shortest wait. A wrapped model is called through its wrapper."""
    soon, late = RateLimited("a", 3.0), RateLimited("b", 50.0)
    model = FallbackModel([Named("a"), Named("b")])
    scripts = iter([Named("a", soon), Named("b", late)])
    with pytest.raises(RateLimited) as raised:
        await model.wrapped(lambda _member: next(scripts)).generate(REQUEST)
    assert raised.value is soon


async def test_an_invalid_request_is_not_sent_to_the_next_model() -> None:
    """An invalid request goes to no other model, which would refuse it, too, unless its status is listed."""
    second = Named("second", says("Hi."))
    with pytest.raises(ModelRefused):
        await FallbackModel([Named("first", WRONG), second]).generate(REQUEST)
    model = FallbackModel([Named("first", WRONG), second], retriable_status_codes={400})
    assert (await model.generate(REQUEST)).model == "second"


async def test_no_model_continues_the_text_of_another() -> None:
    """The text of a failed model is not continued, because another model would not know it."""
    pieces: list[str] = []
    model = FallbackModel([Named("first", BUSY, text="Half of"), Named("second", says("Hi."))])
    with pytest.raises(ModelOverloaded):
        await model.generate(REQUEST, on_text=pieces.append)
    assert pieces == ["Half of"]


async def test_gemini_accepts_the_calls_of_another_model(gemini: FakeGemini) -> None:
    """Gemini 3 requires a signature for the first call of each turn, and other models sign nothing."""
    parts = [{"functionCall": {"id": number, "name": "pay", "args": {}}} for number in "ab"]
    results = [{"functionResponse": {"id": number, "name": "pay", "response": {}}} for number in "ab"]
    turns = [*REQUEST.contents, {"role": "model", "parts": parts}, {"role": "user", "parts": results}]
    gemini.reply(text="Paid.")
    own = Gemini(model="gemini-3.5-flash", base_url=gemini.url, api_key="key-for-tests")
    model = FallbackModel([own, Named("second")])
    await model.generate(LlmRequest(model="gemini-3.5-flash", contents=turns))
    await model.close()
    sent = gemini.requests[0].body["contents"][1]["parts"]
    signature = base64.b64encode(b"skip_thought_signature_validator").decode()
    assert [part.get("thoughtSignature") for part in sent] == [signature, None]
    assert "thoughtSignature" not in parts[0]


@pytest.mark.parametrize(
    ("models", "problem"),
    [([], "FallbackModel has no models"), (["gtp-4o"], "FallbackModel: the model 'gtp-4o' is not a model of Gemini")],
)
def test_an_unknown_model_is_refused_at_once(models: list[str], problem: str) -> None:
    """An unknown model is refused when the agent is created, and not when the first model fails."""
    with pytest.raises(ValueError, match=problem):
        FallbackModel(models)
