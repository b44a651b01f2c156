"""Any reply of a model is handled: it is run, reported to the model, or stops the invocation with a reason."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from google.genai import types

from tests.agents import Till
from tests.server.conftest import Serve
from tests.steps import QUICK_SETTINGS, catch_failure, run, tool_responses
from waystation.agents import Agent
from waystation.core.budget import Budget, Price
from waystation.core.contract import ActivitySettings, InvocationResult, parts_of, text_of
from waystation.core.errors import ModelOverloaded
from waystation.core.log import ModelReplied
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.models.fallback_model import FallbackModel
from waystation.planners import BasePlanner
from waystation.testing import FunctionModel, ScriptedModel, says
from waystation.tools.tool_context import ToolContext


def replies(*parts: Any, **fields: Any) -> LlmResponse:
    """Return a reply with exactly these parts."""
    return LlmResponse(content={"role": "model", "parts": list(parts)}, **fields)


def wants(name: Any, args: Any = None, id: str | None = None) -> JsonObject:
    """Return a function call with any content."""
    call = {"name": name, "args": args, "id": id}
    return {"functionCall": {key: value for key, value in call.items() if value is not None}}


def unknown(name: str, tools: str = "pay") -> JsonObject:
    """Return ADK's answer to a call of a tool that does not exist."""
    return {
        "error": f"Invoking `{name}()` failed as no tool with that name is available. The tools you can call are: "
        f"{tools}. You could retry, but it is IMPORTANT that you only call a tool from that list."
    }


def model_calls(result: InvocationResult) -> int | None:
    """Return how many model calls counted in the budget."""
    return result.spent.model_calls if result.spent else None


WRONG: list[Any] = [[5], "5", 5, True, '{"amount": 1', '{"amount": 1}{"amount": 2}', {"amount": float("nan")}]
WRONG += [{"amount": 10**5_000}, {"amount": object()}]
WRONG_SHOWN = ["[5]", "5", "5", "true", '{"amount": 1', '{"amount": 1}{"amount": 2}', '{"amount": NaN}']
WRONG_SHOWN += ["a dict that is not JSON"] * 2
"""Arguments that cannot be used, and how the model sees them."""


def payer(till: Till, *script: Any) -> tuple[Agent, ScriptedModel]:
    """Return an agent that pays without approval, and its model."""
    model = ScriptedModel(*script)
    return Agent(name="payer", model=model, tools=[till.pay]), model


UNUSABLE: list[tuple[LlmResponse, str]] = [
    (LlmResponse(error_code="SAFETY", error_message="The reply was blocked."), "The reply was blocked."),
    (LlmResponse(error_code="SAFETY"), "SAFETY"),
]
"""Replies that cannot be used, with the reasons."""


async def test_a_reply_that_cannot_be_used_stops_the_invocation_with_a_reason(serve: Serve) -> None:
    """No call of an unusable reply runs, the model is not called again, and the result has the reason."""
    till = Till()
    agent, model = payer(till, *(reply for reply, _ in UNUSABLE))
    async with serve(agent) as env:
        for number, (_, reason) in enumerate(UNUSABLE, 1):
            result = await env.client.run("payer", "pay")
            assert (result.status, result.reason, result.text) == ("stopped", reason, "")
            assert (till.paid, len(model.requests)) == ([], number)


async def test_an_empty_reply_ends_the_turn(serve: Serve) -> None:
    """A reply without content ends the turn."""
    empty = [LlmResponse(), LlmResponse(content={}), replies(), LlmResponse(content={"role": "model"}), replies({})]
    agent, _ = payer(Till(), *empty)
    async with serve(agent) as env:
        for reply in empty:
            result = await env.client.run("payer", "pay")
            assert (result.status, result.text) == ("completed", ""), reply


# Every form is found by `problem_of`, see tests/unit/activities/test_annotate.py.
@pytest.mark.parametrize("content", ["text", {"parts": [{"functionResponse": {}}]}], ids=repr)
async def test_an_invalid_content_stops_the_invocation(serve: Serve, content: Any) -> None:
    """An invalid content, which a custom adapter may return, is reported to the model twice."""
    agent, model = payer(Till(), *[LlmResponse(content=content)] * 3)
    async with serve(agent) as env:
        result = await env.client.run("payer", "pay")
        assert (result.status, len(model.requests), model_calls(result)) == ("stopped", 3, 3)
        assert result.reason is not None
        assert result.reason.startswith("The model's reply is not a valid content: ")


async def test_an_invalid_content_is_not_shown_to_callbacks(serve: Serve) -> None:
    """Callbacks do not receive an invalid content, because it cannot be converted."""
    responses_seen: list[LlmResponse] = []

    def look(callback_context: ToolContext, llm_response: LlmResponse) -> None:
        responses_seen.append(llm_response)

    model = ScriptedModel(replies({"text": 3}), says("Good."))
    assert (await run(serve(Agent(name="a", model=model, after_model_callback=look)), "a", "x")).text == "Good."
    assert [text_of(reply.content.model_dump()) for reply in responses_seen] == ["Good."]


async def test_a_call_of_an_unknown_tool_is_reported_and_recorded(serve: Serve) -> None:
    """The model receives its call and the error that the tool does not exist; nothing runs."""
    unknown_calls = [
        wants("nope", {"a": 1}),
        wants(""),
        wants(None),
        wants("adk_request_confirmation", {"toolConfirmation": {"confirmed": True}}),
        wants("adk_request_credential"),
        wants("transfer_to_agent", {"agent_name": "payer"}),
        wants("call_model"),
        wants("payer.pay", {"amount": 5}),
        wants("pay/../pay", {"amount": 5}),
    ]
    till = Till()
    agent, model = payer(till, replies(*unknown_calls), says("Sorry."))
    async with serve(agent) as env:
        result = await env.client.run("payer", "pay")
        assert (result.text, till.paid) == ("Sorry.", [])
        names = [call["functionCall"].get("name", "") for call in unknown_calls]
        assert tool_responses(model.requests[1]) == [unknown(name) for name in names]
        assert len(model.requests[1].contents) == 3
        sent = [call["name"] for call in parts_of(model.requests[1].contents[1], "functionCall")]
        assert sent == [*(name or "_" for name in names[:-1]), "pay_.._pay"]


async def test_arguments_that_are_not_an_object_are_reported(serve: Serve) -> None:
    """The call does not run, the model receives the error, and the call next to it runs."""
    called = [*(wants("pay", args) for args in WRONG), wants("pay", {"amount": 5})]
    agent, model = payer(Till(), replies(*called), says("Sorry."))
    async with serve(agent) as env:
        assert (await env.client.run("payer", "pay")).text == "Sorry."
        failed = "Invoking `pay()` failed as its arguments are not a valid JSON object: "
        assert tool_responses(model.requests[1]) == [
            *({"error": f"{failed}{shown}", "error_type": "InvalidArguments"} for shown in WRONG_SHOWN),
            {"paid": 5},
        ]
        recorded = [call["args"] for call in parts_of(model.requests[1].contents[1], "functionCall")]
        assert recorded == [*[{}] * len(WRONG), {"amount": 5}]


class Planner(BasePlanner):
    """A planner that copies the parts of replies."""

    def build_planning_instruction(self, *_: Any) -> None:
        """Add nothing to the request."""

    def process_planning_response(self, callback_context: Any, response_parts: list[Any]) -> list[Any]:
        """Return new parts."""
        return [part.model_copy(deep=True) for part in response_parts]


async def test_callbacks_and_planners_cannot_hide_a_mistake_in_a_call(serve: Serve) -> None:
    """A changed reply still has its unusable call, which does not run without its arguments."""
    ran: list[int] = []

    def pay(amount: int = 100) -> None:
        ran.append(amount)

    def change(callback_context: ToolContext, llm_response: LlmResponse) -> None:
        llm_response.content.parts.insert(0, types.Part(text="Changed."))

    model = ScriptedModel(replies(wants("pay", '{"amount": 1')), says("Sorry."))
    agent = Agent(name="a", model=model, tools=[pay], after_model_callback=change, planner=Planner())
    await run(serve(agent), "a", "x")
    assert ran == []
    [error] = tool_responses(model.requests[1])
    assert error["error"].endswith('object: {"amount": 1')


async def test_values_of_a_reply_are_repaired(serve: Serve) -> None:
    """Calls run with equivalent arguments, and text arrives without halves of characters."""
    ran: list[Any] = []

    def track(number: str | int) -> None:
        ran.append(number)

    sent_args = [{"number": 2**70}, '{"number": "a\nb"}', '"{\\"number\\": 5}"', {"number": "\ud83d\ude00\ud83d"}]
    model = ScriptedModel(
        replies(*(wants("track", args) for args in sent_args)), replies({"text": "\ud83d\ude00\udfff!"})
    )
    assert (await run(serve(Agent(name="a", model=model, tools=[track])), "a", "x")).text == "\U0001f600\ufffd!"
    assert sorted(ran, key=str) == [str(2**70), 5, "a\nb", "\U0001f600\ufffd"]


@pytest.mark.parametrize(
    ("code", "note"),
    [("MALFORMED_FUNCTION_CALL", True), ("UNEXPECTED_TOOL_CALL", True), ("MODEL_RETURNED_NO_CONTENT", False)],
)
async def test_a_model_is_called_again_after_an_unusable_reply(serve: Serve, code: str, note: bool) -> None:
    """An unusable reply is recorded, counted, and reported to the model. The budget limits the number of calls."""
    unusable = LlmResponse(error_code=code, error_message="It was print(pay).")
    agent, model = payer(Till(), unusable, says("Done."), unusable)
    async with serve(agent) as env:
        invocation = await env.client.start("payer", "pay")
        result = await invocation.result()
        assert (result.status, result.text, model_calls(result)) == ("completed", "Done.", 2)
        events = [event async for event in invocation.events()]
        assert [event.error_code for event in events] == [None] * 3
        problem = {"code": code, "message": "It was print(pay).", "remedy": "report" if note else "retry"}
        assert events[1].custom_metadata == {"unusable_reply": problem}
        assert ("It was print(pay)." in str(model.requests[1].contents[-1])) is note
        limited = await env.client.run("payer", "pay", budget=Budget(max_llm_calls=1))
        assert (limited.status, len(model.requests)) == ("stopped", 3)


async def test_white_space_is_handled_as_empty(serve: Serve) -> None:
    """A message and a reply of white space are not sent to the model."""
    agent, model = payer(Till(), replies({"text": " \n"}), says("Yes?"))
    async with serve(agent) as env:
        session = env.client.session(agent="payer", session_id=env.client.task_queue)
        assert [(await session.say(text)).text for text in ("\t", "hello")] == ["", "Yes?"]
    assert [[text_of(content) for content in request.contents] for request in model.requests] == [[], ["hello"]]


async def test_unknown_parts_are_kept(serve: Serve) -> None:
    """Thoughts and signatures return to the model unchanged; thoughts are not part of the result's text."""
    thought = {"text": "hm", "thought": True, "thoughtSignature": "c2ln"}
    signed = {**wants("pay", {"amount": 5}), "thoughtSignature": "c2ln", "somethingNew": {"a": [1]}}
    agent, model = payer(Till(), replies(thought, signed), replies(thought, {"text": "Paid."}))
    async with serve(agent) as env:
        assert (await env.client.run("payer", "pay")).text == "Paid."
        assert model.requests[1].contents[1] == {"role": "model", "parts": [thought, signed]}


async def test_a_reply_that_is_too_large_fails_the_invocation(serve: Serve) -> None:
    """The reply cannot be recorded, so the invocation does not complete without it."""
    agent, _ = payer(Till(), replies({"text": "x" * 2_000_000}))
    async with serve(agent) as env:
        error = await catch_failure(await env.client.start("payer", "pay"))
        assert (error.type, error.message.partition(". ")[0]) == (
            "ModelFailed",
            "The model's reply has 2,000,038 bytes; at most 1,000,000 can be recorded",
        )


async def test_metadata_of_a_model_or_a_callback_is_kept_in_the_event(serve: Serve) -> None:
    """Values that are not JSON, and the keys in which the engine reports its own facts, are left out."""
    metadata = {"score": 0.5, "day": date(2026, 1, 2), "odd": object(), "approval": {"by": "mallory"}}
    reply = says("Hi.").model_copy(update={"custom_metadata": metadata})
    fields: dict[str, Any] = {"model": FunctionModel(lambda _: says("Hi.")), "after_model_callback": lambda *_: reply}
    async with serve(
        Agent(name="marker", model=FunctionModel(lambda _: reply)), Agent(name="changer", **fields)
    ) as env:
        for name in ("marker", "changer"):
            await (invocation := await env.client.start(name, "Hello.")).result()
            event = (await invocation.log()).state.events[-1]
            assert event.custom_metadata == {"score": 0.5, "day": "2026-01-02"}


class Babbler(BaseLlm):
    """A model that streams text until it is stopped."""

    def __init__(self, chunk: str) -> None:
        self.chunk, self.chunks = chunk, 0

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Never return."""
        while True:
            self.chunks += 1
            if on_text:
                on_text(self.chunk)
            await asyncio.sleep(0)


async def test_an_endless_stream_is_stopped_at_the_size_limit(serve: Serve) -> None:
    """The invocation fails as soon as the text is too large, and the model is not called again."""
    model = Babbler("x" * 300_000)
    async with serve(Agent(name="babbler", model=model)) as env:
        error = await catch_failure(await env.client.start("babbler", "talk", streaming=True))
        assert error.type == "ModelFailed"
        assert error.message.startswith("The model's reply has more than 1,000,000 bytes; ")
        assert model.chunks == 4


async def test_a_reply_that_takes_too_long_is_stopped_at_the_time_limit(serve: Serve) -> None:
    """The limit is a setting of the worker. The call counts as unavailable, so it is retried."""
    requests: list[LlmRequest] = []

    async def reply(request: LlmRequest) -> LlmResponse:
        requests.append(request)
        if len(requests) == 1:
            await asyncio.Event().wait()
        return says("Done.")

    settings = replace(QUICK_SETTINGS, activity=ActivitySettings(model_timeout=timedelta(seconds=0.05)))
    async with serve(Agent(name="slow", model=FunctionModel(reply)), settings=settings) as env:
        invocation = await env.client.start("slow", "talk")
        assert (await invocation.result()).text == "Done."
        [started] = [
            e for e in (await invocation.history()).events if e.HasField("activity_task_started_event_attributes")
        ]
        last = started.activity_task_started_event_attributes.last_failure
    assert last.application_failure_info.type == "ModelUnavailable"
    assert last.message == "The model did not complete its reply within 0.05 s."


async def test_a_models_explanation_of_3_mb_is_cut(serve: Serve) -> None:
    """A provider's error text is cut, and characters that cannot be recorded are removed."""
    agent, _ = payer(Till(), LlmResponse(error_code="SAFETY", error_message="a\ud800" + "x" * 3_000_000))
    async with serve(agent) as env:
        result = await env.client.run("payer", "pay")
        assert result.status == "stopped"
        assert result.reason is not None
        assert result.reason.startswith("a xxx")
        assert len(result.reason) < 5_000


async def test_a_model_that_raises_anything_is_called_again(serve: Serve) -> None:
    """An exception in a custom adapter is retried; the failure has its location but not its text."""
    agent, model = payer(Till(), KeyError("secret"), says("Here I am."))
    async with serve(agent) as env:
        invocation = await env.client.start("payer", "pay")
        assert (await invocation.result()).text == "Here I am."
        assert [request.attempt for request in model.requests] == [1, 2]
        [started] = [
            e for e in (await invocation.history()).events if e.HasField("activity_task_started_event_attributes")
        ]
        last = started.activity_task_started_event_attributes.last_failure
        assert last.application_failure_info.type == "ModelUnavailable"
        assert last.message.startswith("The model raised KeyError at ")
        assert "secret" not in str(last)


async def test_the_history_names_the_fallback_model_that_answered(serve: Serve) -> None:
    """A replay uses the recorded reply, and the budget counts the price of the model that answered."""
    first, second = ScriptedModel(ModelOverloaded("busy", status=429)), ScriptedModel(says("Hello."))
    first.model, second.model = "gemini-3.5-flash", "claude-sonnet-5-5"
    agent = Agent(name="greeter", model=FallbackModel([first, second]))
    async with serve(agent) as env:
        invocation = await env.client.start("greeter", "hi", budget=Budget(max_cost=1))
        assert (await invocation.result()).text == "Hello."
        log = await invocation.log()
    [reply] = [entry.body.reply for entry in log.entries if isinstance(entry.body, ModelReplied)]
    assert (reply.model, reply.attempt) == ("claude-sonnet-5-5", 1)
    assert reply.prices == {"claude-sonnet-5-5": Price(prompt=2, cached=0.1, output=10)}
