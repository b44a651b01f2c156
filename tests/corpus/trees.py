"""Agent trees of scenarios with several agents, with callbacks that reply, or with tools that ask a person.

Each root agent is named `clerk`, because scenarios start that agent.
"""

from collections.abc import Sequence
from typing import Any

from google.genai import types
from pydantic import BaseModel, PrivateAttr

from waystation.agents import Agent, BaseAgent, LoopAgent, ParallelAgent, SequentialAgent
from waystation.agents.custom_agent import BodyResult, BodySegment, CustomAgent
from waystation.apps import App, EventsCompactionConfig, LlmEventSummarizer
from waystation.core.budget import Usage
from waystation.core.contract import BodyEvent, EventActions
from waystation.core.errors import ModelRefused
from waystation.testing import ScriptedModel, calls, says
from waystation.testing.models import Reply
from waystation.tools import CallbackContext
from waystation.tools.agent_tool import AgentTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


class Sum(BaseModel):
    """The answer of `structured`."""

    total: int


def stop(tool_context: ToolContext) -> str:
    """Leave the loop."""
    tool_context.actions.escalate = True
    return "stopped"


def count(tool_context: ToolContext) -> int:
    """Count."""
    tool_context.state["count"] = tool_context.state.get("count", 0) + 1
    return int(tool_context.state["count"])


def hand_over(tool_context: ToolContext) -> str:
    """Hand the conversation over."""
    tool_context.actions.transfer_to_agent = "support"
    return "handing over"


def ask(question: str) -> None:
    """Ask a person."""


def book(days: int, tool_context: ToolContext) -> dict[str, Any]:
    """Book days off; a person decides."""
    answer = tool_context.tool_confirmation
    if answer is None:
        tool_context.request_confirmation(hint="May they?", payload={"days": days})
        return {"status": "asked"}
    return {"booked": days if answer.confirmed else 0}


def read_calendar(day: str, tool_context: ToolContext) -> dict[str, str]:
    """Read a calendar, once somebody has logged in."""
    if tool_context.state.get("temp:asked"):
        return {day: "free"}
    tool_context.state["temp:asked"] = True
    config = {"credentialKey": "calendar", "authScheme": {"type": "apiKey"}}
    tool_context.actions.requested_auth_configs[tool_context.function_call_id or ""] = config
    return {"status": "login needed"}


TOOLS: list[Any] = [stop, count, LongRunningFunctionTool(ask), book, read_calendar]


def speaker(name: str, *replies: Reply, **fields: Any) -> Agent:
    """Return an agent with every tool."""
    return Agent(**{"name": name, "description": name, "model": ScriptedModel(*replies), "tools": TOOLS, **fields})


def sequence() -> BaseAgent:
    """Return a sequence: the first agent asks a person, the second sums up."""
    asking = speaker("asking", calls(("ask", {"question": "ok?"}), ("count", {})), says("agreed"))
    return SequentialAgent(name="clerk", sub_agents=[asking, speaker("summing", says("done"))])


def loop() -> BaseAgent:
    """Return a loop of two rounds that a tool ends."""
    poet = speaker("poet", says("one"), says("two"))
    critic = speaker("critic", calls(("count", {})), says("again"), calls(("stop", {})), says("good"))
    return LoopAgent(name="clerk", sub_agents=[poet, critic], max_iterations=5)


def branches() -> BaseAgent:
    """Return two parallel agents, one of them waiting for a person; a third reads both."""
    left = speaker("left", calls(("ask", {"question": "ok?"})), says("left"))
    right = speaker("right", calls(("count", {})), says("right"))
    both = ParallelAgent(name="both", sub_agents=[left, right])
    return SequentialAgent(name="clerk", sub_agents=[both, speaker("reader", says("both read"))])


def race() -> BaseAgent:
    """Return two parallel agents, both waiting for a person; the first escalates after its answer."""
    slow = speaker("slow", calls(("ask", {"question": "slow?"})))
    quick = speaker("quick", calls(("ask", {"question": "quick?"})), calls(("stop", {})), says("first"))
    return ParallelAgent(name="clerk", sub_agents=[slow, quick])


def transfer() -> BaseAgent:
    """Return an agent that transfers to an agent, which transfers back, and then to a sequence."""
    pair = SequentialAgent(
        name="pair", description="Two.", sub_agents=[speaker("a", says("A")), speaker("b", says("B"))]
    )
    support = speaker("support", calls(("transfer_to_agent", {"agent_name": "clerk"})))
    to = [calls(("transfer_to_agent", {"agent_name": name})) for name in ("support", "pair")]
    return speaker("clerk", *to, sub_agents=[support, pair])


def transfer_by_tool() -> BaseAgent:
    """Return an agent with a tool that transfers while another call runs."""
    support = speaker("support", says("Here."))
    both_calls = calls(("hand_over", {}), ("count", {}))
    return speaker("clerk", both_calls, tools=[*TOOLS, hand_over], sub_agents=[support])


def callbacks() -> BaseAgent:
    """Return an agent with every callback; all write state, and some reply in place of the model or tool."""

    def note(**given: Any) -> None:
        context = given.get("tool_context") or given["callback_context"]
        context.state["calls"] = context.state.get("calls", 0) + 1

    def spoken(callback_context: Any) -> Any:
        from google.genai import types

        return types.Content(role="model", parts=[types.Part(text="goodbye")])

    helper = speaker("helper", says("helped"))
    return speaker(
        "clerk",
        calls(("count", {}), ("helper", {"request": "x"})),
        says("done"),
        tools=[*TOOLS, AgentTool(helper)],
        before_agent_callback=lambda callback_context: note(callback_context=callback_context),
        before_model_callback=lambda callback_context, llm_request: note(callback_context=callback_context),
        after_model_callback=lambda callback_context, llm_response: note(callback_context=callback_context),
        before_tool_callback=lambda tool, args, tool_context: note(tool_context=tool_context),
        after_tool_callback=lambda tool, args, tool_context, tool_response: {"seen": True},
        after_agent_callback=spoken,
    )


def structured() -> BaseAgent:
    """Return an agent that gives a structured answer after a tool."""
    answer = calls(("set_model_response", {"total": 3}))
    return speaker("clerk", calls(("count", {})), answer, output_schema=Sum, output_key="sum")


def asks_for_confirmation() -> BaseAgent:
    """Return an agent whose tool asks for a confirmation."""
    return speaker("clerk", calls(("book", {"days": 3}), ("count", {})), says("I asked."), says("Booked."))


def needs_login() -> BaseAgent:
    """Return an agent with two calls that need the same login."""
    both = calls(("read_calendar", {"day": "monday"}), ("read_calendar", {"day": "friday"}))
    return speaker("clerk", both, says("Both free."))


def compacted() -> App:
    """Return an agent whose prompts are summarized while a call waits; the second summary replaces the first."""
    return summarizing(
        speaker("clerk", calls(("book", {"days": 3})), *[calls(("count", {}))] * 4, says("I asked."), says("Booked.")),
        *[says(f"Summary {number}.", usage=Usage(total_tokens=3)) for number in range(1, 9)],
    )


def compaction_fails() -> App:
    """Return an agent whose summarizing model refuses."""
    agent = speaker("clerk", *[calls(("count", {}))] * 2, says("Done."))
    return summarizing(agent, *[ModelRefused("quota", status=403)] * 8)


def summarizing(agent: BaseAgent, *replies: Reply) -> App:
    """Return an app whose threshold is always reached."""
    config = EventsCompactionConfig(
        summarizer=LlmEventSummarizer(ScriptedModel(*replies)), token_threshold=1, event_retention_size=1
    )
    return App(name="app", root_agent=agent, events_compaction_config=config)


def remember(name: str, tool_context: ToolContext) -> str:
    """Write to the state of a user, of an app, and of the session."""
    state = tool_context.state
    state["user:called"] = [*state.get("user:called", []), name]
    state["app:guests"] = state.get("app:guests", 0) + 1
    state.pop("user:name", None)
    state["seen"] = name
    return f"{name} was called {state['user:called'][:-1]}"


def scopes() -> BaseAgent:
    """Return an agent that writes state of a user and of an app, before and after a call waits."""
    first = calls(("remember", {"name": "Ada"}), ("book", {"days": 3}))
    model = ScriptedModel(first, calls(("remember", {"name": "Bo"})), says("Ok."))
    return Agent(name="clerk", model=model, tools=[remember, book])


def of_ada(state: dict[str, Any]) -> dict[str, Any]:
    """Return the input of an invocation for one user of one app."""
    return {"agent": "clerk", "message": "go", "app": "hotel", "user_id": "ada", "state": state}


class Relay(CustomAgent):
    """Runs its sub-agents in turn. Before each, it saves an artifact and yields an event that changes state."""

    ends_silently: bool = False
    """Whether the body ends without an event after the last sub-agent."""
    _given: list[Sequence[BodySegment]] = PrivateAttr(default_factory=list)

    @property
    def given(self) -> Sequence[BodySegment]:
        """Return the arguments of the body's latest run."""
        return self._given[-1]

    async def run_body(self, context: CallbackContext, segments: Sequence[BodySegment]) -> BodyResult:
        """Save the artifacts of all segments, and yield the event of the last one."""
        self._given.append(segments)
        number = len(segments)
        for each in range(number):
            await context.save_artifact(f"{self.name}.txt", types.Part.from_text(text=f"{each}"))
        delta = {f"{scope}{self.name}": number for scope in ("", "user:", "app:")}
        agent = self.sub_agents[number - 1] if number <= len(self.sub_agents) else None
        yielded = (BodyEvent(actions=EventActions(state_delta=delta)),) if agent or not self.ends_silently else ()
        return BodyResult(yielded, agent)


def custom() -> BaseAgent:
    """Return a custom agent whose body runs an agent that asks a person, and then another one."""
    asking = speaker("asking", calls(("ask", {"question": "ok?"})), says("agreed"))
    return Relay(name="clerk", sub_agents=[asking, speaker("summing", says("done"))])
