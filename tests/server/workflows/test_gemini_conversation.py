"""A whole invocation over the real google-genai client, against the fake Gemini server."""

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.server.conftest import Serve
from tests.steps import run
from waystation.agents import Agent
from waystation.models.google_llm import Gemini
from waystation.testing import FakeGemini


def weather(city: str) -> dict[str, str]:
    """Tell the weather.

    Args:
        city: Where.
    """
    return {"weather": f"sunny in {city}"}


async def test_a_conversation_with_gemini_keeps_thought_signatures(serve: Serve) -> None:
    """Two calls of one reply are answered in one turn, and the signature comes back unchanged."""
    async with FakeGemini() as gemini:
        gemini.reply(calls=[("weather", {"city": "Bern"}), ("weather", {"city": "Ulm"})], thought_signature="c2ln")
        gemini.reply(text="Sunny in both.")
        model = Gemini(api_key="key-for-tests", base_url=gemini.url)
        result = await run(
            serve(Agent(name="forecaster", model=model, instruction="Be brief.", tools=[weather])),
            "forecaster",
            "Bern and Ulm?",
        )
        await model.close()
    assert result.text == "Sunny in both."
    first, second = [request.body for request in gemini.requests]
    assert first["systemInstruction"]["parts"][0]["text"].startswith("Be brief.")
    assert first["tools"][0]["functionDeclarations"][0]["name"] == "weather"
    turns = second["contents"]
    assert [turn["role"] for turn in turns] == ["user", "model", "user"]
    assert turns[1]["parts"][0]["thoughtSignature"] == "c2ln"
    assert [part["functionResponse"]["response"] for part in turns[2]["parts"]] == [
        {"weather": "sunny in Bern"},
        {"weather": "sunny in Ulm"},
    ]


async def test_an_overloaded_gemini_is_called_again_when_it_says(serve: Serve) -> None:
    """Retries the call after `Retry-After`, and the invocation succeeds."""
    async with FakeGemini() as gemini:
        gemini.fault(status=429, retry_after=0)
        gemini.reply(text="Here I am.")
        model = Gemini(api_key="key-for-tests", base_url=gemini.url)
        result = await run(serve(Agent(name="patient", model=model)), "patient", "Are you there?")
        await model.close()
    assert result.text == "Here I am."
    assert len(gemini.requests) == 2


async def test_a_refused_key_fails_the_invocation_without_a_retry(serve: Serve) -> None:
    """4xx is final, and the failure contains no key."""
    async with FakeGemini() as gemini:
        gemini.fault(status=403)
        model = Gemini(api_key="key-for-tests", base_url=gemini.url)
        async with serve(Agent(name="locked", model=model)) as env:
            with pytest.raises(WorkflowFailureError) as raised:
                await env.client.run("locked", "Hello?")
        await model.close()
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, "key-for-tests" in str(cause)) == ("ModelFailed", False)
    assert len(gemini.requests) == 1
