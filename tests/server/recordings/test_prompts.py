"""The reconstructed prompt of a moment equals the model's request."""

from typing import Any

import pytest
from google.genai import types

from tests.corpus.scenarios import SCENARIOS
from tests.paths import HISTORIES
from tests.server.conftest import Serve
from tests.steps import start_and_wait
from waystation.agents import Agent, BaseAgent, SequentialAgent
from waystation.agents.callback_context import CallbackContext
from waystation.agents.readonly_context import ReadonlyContext
from waystation.apps import App, EventsCompactionConfig
from waystation.apps.llm_event_summarizer import LlmEventSummarizer
from waystation.apps.registry import Registry
from waystation.client.agent_client import Invocation
from waystation.core.errors import NoPrompt, UnknownAgent
from waystation.models import LlmRequest
from waystation.models.llm_request import EditableRequest
from waystation.replay import Prompt, Recording, prompt_at
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


def add(a: int, b: int, tool_context: ToolContext) -> dict[str, int]:
    """Add two numbers."""
    tool_context.state["sum"] = a + b
    return {"sum": a + b}


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


def look(page: int) -> dict[str, Any]:
    """Look at a page."""
    return {"page": page, "text": "x" * 1_000}


def request_parts(request: LlmRequest) -> tuple[Any, ...]:
    """Return the request that a model received."""
    return (
        *(request.model, request.system_instruction, list(request.contents)),
        *(list(request.tools), list(request.native_tools), request.config),
    )


def prompt_parts(prompt: Prompt) -> tuple[Any, ...]:
    """Return the same parts of a prompt."""
    return (
        *(prompt.model, prompt.instruction, list(prompt.contents)),
        *(list(prompt.tools), list(prompt.native_tools), prompt.config),
    )


async def prompts(recording: Recording, *agents: BaseAgent | App, **options: Any) -> list[Prompt]:
    """Return the prompt of each model call that produced an event, in order."""
    prompts_found = [
        await prompt_at(recording, moment.number, agents=Registry.of(*agents), **options)
        for moment in recording.moments()
    ]
    return list({prompt.call: prompt for prompt in prompts_found if prompt.gave == prompt.at}.values())


async def recorded(invocation: Invocation) -> Recording:
    """Return the recording of an invocation that ends."""
    await invocation.result()
    return await Recording.of(invocation)


async def test_every_prompt_equals_the_models_request(serve: Serve) -> None:
    """The prompt has the instruction with state, the tool schemas, the settings and the conversation of the request."""
    model = ScriptedModel(calls(("add", {"a": 1, "b": 2})), calls(("add", {"a": 3, "b": 4})), says("seven"))
    agent = Agent(
        name="adder",
        model=model,
        instruction="The sum so far is {sum?}.",
        tools=[add],
        generate_content_config={"temperature": 0.5},
    )
    async with serve(agent) as env:
        recording = await recorded(await env.client.start("adder", "go"))
    prompts_found = await prompts(recording, agent)
    assert [prompt_parts(prompt) for prompt in prompts_found] == [request_parts(request) for request in model.requests]
    assert [prompt.exact for prompt in prompts_found] == [True] * 3
    assert "The sum so far is 3." in (prompts_found[1].instruction or "")


async def test_agents_of_a_tree_have_the_prompts_that_they_received(serve: Serve) -> None:
    """After a transfer the prompt has the other agent's tools, and quotes the first agent."""
    model, other = ScriptedModel(calls(("transfer_to_agent", {"agent_name": "payer"}))), ScriptedModel(says("Paid."))
    payer = Agent(name="payer", model=other, description="Pays.", tools=[pay])
    agent = Agent(name="clerk", model=model, sub_agents=[payer])
    async with serve(agent) as env:
        recording = await recorded(await env.client.start("clerk", "pay 5"))
    prompts_found = await prompts(recording, agent)
    assert [prompt.agent for prompt in prompts_found] == ["clerk", "payer"]
    assert [prompt_parts(prompt) for prompt in prompts_found] == [
        request_parts(request) for request in (*model.requests, *other.requests)
    ]
    assert [prompt.exact for prompt in prompts_found] == [True, True]


async def test_a_called_agent_has_its_own_prompts(serve: Serve) -> None:
    """The prompts of a called agent are in its own recording, which the caller's recording contains."""
    other = ScriptedModel(says("It is 4."))
    agent = Agent(
        name="clerk",
        model=ScriptedModel(calls(("counter", {"request": "count"})), says("four")),
        tools=[AgentTool(Agent(name="counter", model=other, instruction="Count."))],
    )
    async with serve(agent) as env:
        recording = await recorded(await env.client.start("clerk", "go"))
    (prompt,) = await prompts(recording.called["fc-1"], agent)
    assert (prompt_parts(prompt), prompt.exact) == (request_parts(other.requests[0]), True)


async def test_earlier_messages_of_a_session_are_in_the_prompt(serve: Serve) -> None:
    """Earlier messages come from the session's recording; without it a remark names the missing part."""
    model = ScriptedModel(says("Hello Ann."), says("You are Ann."))
    agent = Agent(name="clerk", model=model)
    async with serve(agent) as env:
        session = env.client.session(agent="clerk", session_id=f"s-{env.client.task_queue}", user_id="ann")
        for text in ("I am Ann.", "Who am I?"):
            sent = await session.send(text)
            await sent.result()
        invocation = env.client.invocation(f"{session.id}/2")
        recording = await Recording.of(invocation)
        whole = await Recording.of(env.client.invocation(session.id))
        (prompt,) = await prompts(recording, agent, session=whole)
        assert (prompt_parts(prompt), prompt.exact) == (request_parts(model.requests[1]), True)
        (alone,) = await prompts(recording, agent)
        assert len(alone.contents) == 1
        assert alone.exact is None
        assert any("Earlier invocations of session" in remark for remark in alone.remarks)


async def test_a_summary_made_for_a_prompt_is_in_it(serve: Serve) -> None:
    """A summary replaces the events it covers, from the prompt it was made for."""
    model = ScriptedModel(*(calls(("look", {"page": n})) for n in range(6)), says("all read"))
    writer = LlmEventSummarizer(ScriptedModel(*(says(f"summary {n}") for n in range(6))))
    config = EventsCompactionConfig(summarizer=writer, token_threshold=1_000, event_retention_size=2)
    agent = Agent(name="reader", model=model, tools=[look])
    app = App(name="app", root_agent=agent, events_compaction_config=config)
    async with serve(app) as env:
        recording = await recorded(await env.client.start("reader", "read"))
    prompts_found = await prompts(recording, app)
    assert any(event.actions.compaction for event in recording.events)
    assert [list(prompt.contents) for prompt in prompts_found] == [list(request.contents) for request in model.requests]
    bare = [await prompt_at(recording, prompt.at) for prompt in prompts_found]
    assert [list(prompt.contents) for prompt in bare] == [list(request.contents) for request in model.requests]


async def test_the_prompt_of_a_composite_is_that_of_its_first_agent_with_a_model(serve: Serve) -> None:
    """A sequence itself calls no model."""
    first, second = ScriptedModel(says("one")), ScriptedModel(says("two"))
    agent = SequentialAgent(name="both", sub_agents=[Agent(name="a", model=first), Agent(name="b", model=second)])
    async with serve(agent) as env:
        recording = await recorded(await env.client.start("both", "go"))
    prompts_found = [await prompt_at(recording, number, agents=Registry.of(agent)) for number in (0, 1, 3)]
    assert [prompt.agent for prompt in prompts_found] == ["a", "a", "b"]
    assert [prompt_parts(prompt) for prompt in prompts_found[1:]] == [
        request_parts(first.requests[0]),
        request_parts(second.requests[0]),
    ]


async def test_stored_state_of_the_user_is_in_the_instruction(serve: Serve) -> None:
    """`user:` state that a callback read or wrote is in the instruction, although no event has it."""

    def learn(tool_context: ToolContext) -> str:
        """Learn the name."""
        tool_context.state["user:name"] = "Ann"
        return "ok"

    def prepare(callback_context: CallbackContext) -> None:
        callback_context.state["day"] = "Monday"

    model = ScriptedModel(calls(("learn", {})), says("noted"), says("Ann"))
    text = "Serve {user:name?} on {day?}."
    agent = Agent(name="clerk", model=model, instruction=text, tools=[learn], before_agent_callback=prepare)
    async with serve(agent) as env:
        user = f"ann-{env.client.task_queue}"
        await recorded(await env.client.start("clerk", "I am Ann.", user_id=user))
        recording = await recorded(await env.client.start("clerk", "Who am I?", user_id=user))
    (prompt,) = await prompts(recording, agent)
    assert "Serve Ann on Monday." in (prompt.instruction or "")
    assert (prompt_parts(prompt), prompt.exact) == (request_parts(model.requests[2]), True)


async def test_a_model_that_wraps_up_has_no_tools() -> None:
    """The instruction names the used-up budget, and the prompt has no tools."""
    recording = await Recording.read(HISTORIES / "budget-wraps-up.json")
    prompts_found = await prompts(recording, SCENARIOS["budget-wraps-up"].agent())
    assert ([bool(prompt.tools) for prompt in prompts_found][-1], prompts_found[-1].exact) == (False, True)
    assert prompts_found[0].tools
    assert "Do not call tools" in (prompts_found[-1].instruction or "")


async def test_a_changed_agent_is_distinguished_from_the_recorded_one(serve: Serve) -> None:
    """The prompt is that of the current agent, and a remark reports it."""
    model = ScriptedModel(says("yes"))
    async with serve(Agent(name="clerk", model=model, instruction="Be brief.")) as env:
        recording = await recorded(await env.client.start("clerk", "go"))
    (prompt,) = await prompts(recording, Agent(name="clerk", model=model, instruction="Be long."))
    assert prompt.exact is False
    assert "Be long." in (prompt.instruction or "")
    assert any("has changed since" in remark for remark in prompt.remarks)
    with pytest.raises(UnknownAgent, match="'clerk'"):
        await prompts(recording, Agent(name="other", model=model))


async def test_callbacks_run_only_on_request(serve: Serve) -> None:
    """Without `callbacks` a remark says that callbacks may have changed the prompt."""
    ran: list[str] = []

    def shout(callback_context: CallbackContext, llm_request: EditableRequest) -> None:
        ran.append(callback_context.agent_name)
        for part in llm_request.contents[-1].parts or ():
            part.text = "GO"

    model = ScriptedModel(says("yes"))
    agent = Agent(name="clerk", model=model, before_model_callback=shout)
    async with serve(agent) as env:
        recording = await recorded(await env.client.start("clerk", "go"))
    ran.clear()
    (prompt,) = await prompts(recording, agent)
    assert (ran, prompt.contents[0]["parts"][0]["text"], prompt.exact) == ([], "go", None)
    assert any("before_model_callback" in remark and "did not run" in remark for remark in prompt.remarks)
    prompt = await prompt_at(recording, 2, agents=Registry.of(agent), callbacks=True)
    assert (ran, prompt_parts(prompt), prompt.exact) == (["clerk"], request_parts(model.requests[0]), None)
    assert len(model.requests) == 1


async def test_callbacks_see_earlier_messages_of_a_session(serve: Serve) -> None:
    """Callbacks receive the conversation of that time."""

    def look(callback_context: CallbackContext, llm_request: EditableRequest) -> None:
        llm_request.contents[-1].parts = [*(llm_request.contents[-1].parts or ()), types.Part(text="!")]

    model = ScriptedModel(says("Hello Ann."), says("You are Ann."))
    agent = Agent(name="clerk", model=model, before_model_callback=look)
    async with serve(agent) as env:
        session = env.client.session(agent="clerk", session_id=f"c-{env.client.task_queue}", user_id="ann")
        for text in ("I am Ann.", "Who am I?"):
            await (await session.send(text)).result()
        recording = await Recording.of(env.client.invocation(f"{session.id}/2"))
        whole = await Recording.of(env.client.invocation(session.id))
        prompt = await prompt_at(recording, 2, agents=Registry.of(agent), callbacks=True, session=whole)
    assert prompt_parts(prompt) == request_parts(model.requests[1])
    assert len(prompt.contents) == 3


async def test_an_instruction_function_is_called_again(serve: Serve) -> None:
    """An instruction function is called again, because its earlier result is not recorded."""

    def instruction(context: ReadonlyContext) -> str:
        return f"Serve {context.state.get('name')}."

    agent = Agent(name="clerk", model=ScriptedModel(says("yes")), instruction=instruction)
    async with serve(agent) as env:
        recording = await recorded(await env.client.start("clerk", "go", state={"name": "Ann"}))
    (prompt,) = await prompts(recording, agent)
    assert "Serve Ann." in (prompt.instruction or "")
    assert prompt.exact is None
    assert any("it is a function: instruction" in remark for remark in prompt.remarks)


async def test_an_event_has_the_prompt_of_its_model_call_or_of_the_next_one(serve: Serve) -> None:
    """An event of a model has the prompt of its call; any other event has the next prompt."""
    model = ScriptedModel(calls(("pay", {"amount": 5})), says("Paid."))
    agent = Agent(name="clerk", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        parked = await prompt_at(await Recording.of(invocation), 3)
        assert (parked.call, parked.gave) == (1, 2)
        await invocation.approve()
        recording = await recorded(invocation)
    prompts_found = [await prompt_at(recording, number) for number in range(7)]
    assert [(prompt.call, prompt.gave) for prompt in prompts_found] == [(1, 2)] * 4 + [(2, 6)] * 3
    assert [list(prompts_found[number].contents) for number in (0, 6)] == [
        list(each.contents) for each in model.requests
    ]


async def test_after_the_last_model_call_the_prompt_is_hypothetical() -> None:
    """After an approval that expired, the prompt is that of a model call that never happened."""
    recording = await Recording.read(HISTORIES / "cancelled-while-waiting.json")
    last = await prompt_at(recording)
    assert (last.call, last.gave, last.exact) == (None, None, None)
    assert last.contents[-1]["parts"][0]["functionResponse"]["name"]


async def test_without_the_agent_the_contents_are_available() -> None:
    """A file alone is enough for the contents, and a remark names the option for the rest."""
    prompt = await prompt_at(await Recording.read(HISTORIES / "one-tool.json"), 4)
    assert [content["role"] for content in prompt.contents] == ["user", "model", "user"]
    assert (prompt.whole, prompt.instruction, prompt.exact) == (False, None, None)
    assert any("--agents" in remark for remark in prompt.remarks)


async def test_an_invocation_without_an_agent_run_has_no_prompt() -> None:
    """An invocation whose input was refused has no prompt."""
    with pytest.raises(NoPrompt, match="no model was called after event 0"):
        await prompt_at(await Recording.read(HISTORIES / "invalid-input.json"), 0)


@pytest.mark.slow
async def test_every_moment_of_every_kept_history_has_a_prompt() -> None:
    """Moments in called agents, branches, continued runs and histories ended from outside have prompts."""
    for path in sorted(HISTORIES.glob("*.json")):
        if path.name.endswith(".held.json") or path.stem == "invalid-input":
            continue
        recording = await Recording.read(path, store=str(HISTORIES / "store"))
        for number in range(max(recording.events_before, 1), recording.course[-1].events + 1):
            assert (await prompt_at(recording, number)).contents, (path.name, number)
