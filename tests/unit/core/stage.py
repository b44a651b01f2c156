"""Play an invocation of a tree of agents whose replies the test provides."""

from collections.abc import Iterator
from typing import Any

from waystation.core.budget import Budget
from waystation.core.contract import (
    AgentKind,
    AgentSpec,
    Call,
    CallbackResult,
    EventActions,
    InvocationInput,
    ModelReply,
    ToolOutcome,
)
from waystation.core.log import (
    Began,
    CallModel,
    CallReturned,
    Log,
    ModelCalled,
    ModelReplied,
    Perform,
    Step,
    next_step,
    parse_ref,
)


def llm(name: str, **fields: Any) -> AgentSpec:
    """Return the spec of an agent with a model."""
    return AgentSpec(name=name, **fields)


def composite(kind: AgentKind, *children: AgentSpec, **fields: Any) -> AgentSpec:
    """Return the spec of an agent that runs others; its default name is its kind."""
    return AgentSpec(**{"name": kind, "kind": kind, "children": children, **fields})


def text(words: str, **fields: Any) -> ModelReply:
    """Return a reply that is text."""
    return ModelReply(content={"role": "model", "parts": [{"text": words}]}, **fields)


def call(id: str, name: str = "tool", **fields: Any) -> ModelReply:
    """Return a reply with one tool call."""
    part = {"functionCall": {"id": id, "name": name, "args": {}}}
    return ModelReply(content={"role": "model", "parts": [part]}, calls=(Call(id=id, **fields),))


def transfer(id: str, to: AgentSpec) -> ModelReply:
    """Return a reply that transfers to another agent."""
    actions = EventActions(transfer_to_agent=to.name)
    return call(id, "transfer_to_agent", kind="answered", response={"result": None}, actions=actions, transfer=to)


class Stage:
    """One invocation of an agent tree."""

    def __init__(self, shape: AgentSpec, *, budget: int = 500, **says: list[ModelReply | str]) -> None:
        """Take the replies of each agent's model in order; an agent without further replies says `done`."""
        self.log = Log("inv")
        self.shape = shape
        self.asked: list[str] = []
        """The agents whose models or callbacks were called, in order, as `agent`, `agent@branch` or `agent:leave`."""
        self.flying: list[int] = []
        """Numbers of the model activities in flight."""
        self._says = {name: iter(replies) for name, replies in says.items()}
        self.now = 0.0
        params = InvocationInput(agent=shape.name, message="go", budget=Budget(max_llm_calls=budget))
        self.log.append(parse_ref("start"), self.now, Began(params))

    def play(self) -> Step:
        """Answer model calls until another step is due, and return that step."""
        while True:
            step = self.ask()
            if not self.flying:
                return step
            self.answer()

    def ask(self) -> Step:
        """Schedule every model call that is due, and return the next other step."""
        while isinstance(step := next_step(self.log), CallModel):
            number = self.log.state.steps + 1
            work = self.log.state.runs[step.turn]
            place = f"@{work.branch}" if work.branch else ""
            self.asked.append(f"{work.agent}{place}{':leave' if step.phase == 'leave' else ''}")
            self.log.append(parse_ref(f">{number}"), self.now, ModelCalled(number, step.turn))
            self.flying.append(number)
        return step

    def answer(self, number: int | None = None) -> None:
        """Complete the oldest model call, or the one that is named."""
        number = self.flying[0] if number is None else number
        self.flying.remove(number)
        work = self.log.state.runs[self.log.state.runs.asked[number]]
        if work.phase_in_flight == "leave":
            reply = ModelReply(
                after=CallbackResult(content={"role": "model", "parts": [{"text": f"{work.agent} was here"}]})
            )
        elif work.parent is None and self.shape.kind not in ("llm", "custom"):
            reply = ModelReply(shape=self.shape)
        elif work.shape.kind not in ("llm", "custom"):
            reply = ModelReply(shape=work.shape)
        else:
            said = next(self._says.get(work.agent, iter(())), "done" if work.shape.kind == "llm" else ModelReply())
            reply = text(said) if isinstance(said, str) else said
        self.log.append(parse_ref(f"m{number}"), self.now, ModelReplied(number, reply))

    def says(self, agent: str, *replies: ModelReply | str) -> None:
        """Add a reply of an agent's model."""
        self._says[agent] = iter(replies)

    def perform(self, **actions: Any) -> None:
        """Complete every tool call that is due, with the same actions."""
        step = next_step(self.log)
        assert isinstance(step, Perform)
        for id in step.calls:
            outcome = ToolOutcome(function_call_id=id, response={"ok": True}, actions=EventActions(**actions))
            self.log.append(parse_ref(id), self.now, CallReturned(outcome, self.log.state.calls[id].run))

    def texts(self) -> list[str]:
        """Return the texts of the agents, as `agent: text`."""
        return [f"{event.author}: {line}" for event in self.log.state.events for line in _lines(event.content)]


def _lines(content: Any) -> Iterator[str]:
    for part in (content or {}).get("parts", ()):
        if "text" in part:
            yield part["text"]
