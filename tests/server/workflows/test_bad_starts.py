"""An invalid start fails the invocation at once with a typed reason and never blocks it."""

import asyncio
import gc
from itertools import starmap
from typing import Any

import pytest
from temporalio.client import Client

from tests.server.conftest import Serve
from tests.steps import catch_failure, find_stuck_tasks, make_raw_payload, start_raw
from waystation.agents import Agent
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.errors import InvalidInput, UnknownAgent, UnknownInvocation
from waystation.testing import ScriptedModel, says


def input_with(message: Any, **more: Any) -> dict[str, Any]:
    """Return an input with this message."""
    return {"agent": "greeter", "message": message, **more}


# Every form is refused by `beginning`, see tests/unit/core/test_beginning.py.
BAD: dict[str, Any] = {
    "broken JSON": make_raw_payload(b'{"agent": "greeter", '),
    "an unknown encoding": make_raw_payload(b'{"agent": "greeter", "message": "hi"}', b"binary/encrypted"),
}
"""Inputs that are not valid for an invocation."""


def greeter() -> Agent:
    """Return an agent that greets."""
    return Agent(name="greeter", model=ScriptedModel(says("Hello.")))


@pytest.mark.parametrize("form", BAD)
async def test_an_invalid_input_fails_the_invocation(serve: Serve, form: str) -> None:
    """The failure is an `InvalidInput` without content of the input, after one successful workflow task."""
    async with serve(greeter()) as env:
        invocation = await start_raw(env.client, f"bad-start-{form.replace(' ', '-')}", BAD[form])
        error = await catch_failure(invocation)
        assert (error.type, error.non_retryable) == ("InvalidInput", True)
        assert error.message.startswith("The input of AgentInvocation") or "message of AgentInvocation" in error.message
        assert len(error.message) < 600
        history = await invocation.history()
        assert (len(history.events), find_stuck_tasks(history)) == (5, [])
        last = (await invocation.log()).state.events[-1]
        assert (last.error_code, last.error_message) == ("InvalidInput", error.message)


# The SDK leaves a coroutine behind when `__init__` cannot be given the arguments.
@pytest.mark.filterwarnings("ignore:coroutine .*run_workflow", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("arguments", "error_type"),
    [
        ([], "TypeError"),
        ([input_with("hi"), input_with("hi")], "TypeError"),
        ([input_with("hi"), None, None], "TypeError"),
        ([make_raw_payload(b"{"), make_raw_payload(b"{", b"binary/encrypted")], "RuntimeError"),
    ],
    ids=["none", "two", "three", "two-broken"],
)
async def test_a_wrong_number_of_arguments_fails_the_invocation(
    serve: Serve, arguments: list[Any], error_type: str, request: pytest.FixtureRequest
) -> None:
    """The SDK fails it with its own error; a reader of the history sees the reason."""
    # Not verified, because the workflow's code never runs, so there is nothing to compare.
    async with serve(greeter(), verify=False) as env:
        invocation = await start_raw(env.client, f"arguments-{request.node.callspec.id}", *arguments)
        assert (await catch_failure(invocation)).type == error_type
        assert find_stuck_tasks(await invocation.history()) == []
        last = (await invocation.log()).state.events[-1]
        assert last.error_code == "InvalidInput"
        assert last.error_message == f"AgentInvocation takes one argument, an object, but received {len(arguments)}."
    gc.collect()  # a coroutine that the SDK never awaited


async def test_an_unknown_agent_fails_the_invocation_naming_the_existing_ones(serve: Serve) -> None:
    """Names are looked up and never imported. The client does not even start such an invocation."""
    names = ["never_announced", "", "os:system", "greeter.agent", "../greeter", "user", "é" * 300]
    async with serve(greeter(), Agent(name="waiter", model=ScriptedModel())) as env:

        async def start(number: int, name: str) -> Invocation:
            with pytest.raises(UnknownAgent, match=r"Workers in this namespace have announced: .*greeter"):
                await env.client.start(name, "hi")
            return await start_raw(env.client, f"unknown-agent-{number}", {"agent": name, "message": "hi"})

        for name, invocation in zip(names, await asyncio.gather(*starmap(start, enumerate(names))), strict=True):
            error = await catch_failure(invocation)
            assert error.type == "UnknownAgent"
            assert error.message == f"No agent is named {name!r}. This worker serves: greeter, waiter."
            last = (await invocation.log()).state.events[-1]
            assert last.error_code == "UnknownAgent"


async def test_the_result_of_a_missing_invocation_is_an_error(serve: Serve) -> None:
    """The message names the ID and what to check. A stream of its events ends in the same way."""
    async with serve(greeter()) as env:
        invocation = env.client.invocation("no-such-invocation")
        with pytest.raises(
            UnknownInvocation, match=r"'no-such-invocation'.*Check the ID, the server and the namespace"
        ):
            await invocation.result()
        with pytest.raises(UnknownInvocation):
            await anext(invocation.stream())


async def test_unknown_fields_of_the_input_are_ignored(serve: Serve) -> None:
    """A newer client may send more fields."""
    async with serve(greeter()) as env:
        invocation = await start_raw(env.client, "newer-client", input_with("hi", color="red", budget={"coins": 3}))
        assert (await invocation.result()).text == "Hello."


async def test_a_content_in_snake_case_is_a_valid_message(serve: Serve) -> None:
    """Genai accepts both forms; camelCase is recorded."""
    part = {"inline_data": {"mime_type": "text/plain", "data": "aGk="}}
    async with serve(greeter()) as env:
        invocation = await start_raw(env.client, "snake-case", input_with({"parts": [part, {"text": "hi"}]}))
        await invocation.result()
        assert (await invocation.log()).state.events[0].content == {
            "role": "user",
            "parts": [{"inlineData": {"mimeType": "text/plain", "data": "aGk="}}, {"text": "hi"}],
        }


async def test_a_stock_client_may_send_up_to_the_servers_limit(serve: Serve) -> None:
    """A message near the limit works; the client refuses a larger one, and nothing starts."""
    async with serve(greeter()) as env:
        temporal = Client(env.temporal.service_client, namespace=env.temporal.namespace)
        stock = AgentClient(temporal, task_queue=env.client.task_queue)
        result = await (await stock.start("greeter", "x" * 2_000_000, id="megabytes")).result()
        assert result.text == "Hello."
        with pytest.raises(InvalidInput, match=r"2,200,032 bytes\. Without a store"):
            await stock.start("greeter", "x" * 2_200_000)


async def test_an_id_that_is_too_long_for_the_server_is_refused(serve: Serve) -> None:
    """The error has the length and the limit. With user keys, the user's name is part of the ID."""
    async with serve(greeter(), verify=False) as env:  # nothing to replay
        with pytest.raises(InvalidInput, match=r"The ID 'x+'… has 1,001 bytes; the server accepts 1,000\. Use shorter"):
            await env.client.start("greeter", "hi", id="x" * 1_001)


async def test_starting_one_id_twice_gives_the_same_invocation(serve: Serve) -> None:
    """A client that retries does not start a second invocation."""
    model = ScriptedModel(says("Hello."))
    async with serve(Agent(name="greeter", model=model)) as env:
        await env.client.run("greeter", "hi", id="started-twice")
        assert (await env.client.run("greeter", "hi", id="started-twice")).text == "Hello."
        assert len(model.requests) == 1
