"""Plays an invocation of a tree of agents: every agent says what the test wrote down for it."""

from collections.abc import Iterator
from typing import Any

from waystation.core import (
    AgentKind,
    AgentSpec,
    Began,
    Budget,
    Call,
    CallbackResult,
    CallModel,
    CallReturned,
    EventActions,
    InvocationInput,
    Log,
    ModelCalled,
    ModelReplied,
    ModelReply,
    Perform,
    Step,
    ToolOutcome,
    next_step,
    parse_ref,
)


def llm(name: str, **fields: Any) -> AgentSpec:
    """An agent with a model."""
    return AgentSpec(name=name, **fields)


def composite(kind: AgentKind, *children: AgentSpec, **fields: Any) -> AgentSpec:
    """An agent that runs others; its name is its kind unless another is given."""
    return AgentSpec(**{"name": kind, "kind": kind, "children": children, **fields})


def text(said: str, **fields: Any) -> ModelReply:
    """A model says something."""
    return ModelReply(content={"role": "model", "parts": [{"text": said}]}, **fields)


def call(id: str, name: str = "tool", **fields: Any) -> ModelReply:
    """A model calls one tool."""
    part = {"functionCall": {"id": id, "name": name, "args": {}}}
    return ModelReply(content={"role": "model", "parts": [part]}, calls=(Call(id=id, **fields),))


def transfer(id: str, to: AgentSpec) -> ModelReply:
    """A model hands the conversation over."""
    actions = EventActions(transfer_to_agent=to.name)
    return call(id, "transfer_to_agent", kind="answered", response={"result": None}, actions=actions, transfer=to)


class Stage:
    """One invocation of `shape`."""

    def __init__(self, shape: AgentSpec, *, budget: int = 500, **says: list[ModelReply | str]) -> None:
        """`says` is what each agent's model says, in order; an agent that has nothing left says `done`."""
        self.log = Log("inv")
        self.shape = shape
        self.asked: list[str] = []
        """The agents whose models or callbacks were asked, in order, as `agent`, `agent@branch` or `agent:leave`."""
        self.flying: list[int] = []
        """Numbers of the model activities in flight."""
        self._says = {name: iter(replies) for name, replies in says.items()}
        self.now = 0.0
        given = InvocationInput(agent=shape.name, message="go", budget=Budget(max_llm_calls=budget))
        self.log.append(parse_ref("start"), self.now, Began(given))

    def play(self) -> Step:
        """Have models asked and answered until something else has to happen; return what."""
        while True:
            step = self.ask()
            if not self.flying:
                return step
            self.answer()

    def ask(self) -> Step:
        """Ask every model that is to be asked; return what is to be done then."""
        while isinstance(step := next_step(self.log), CallModel):
            number = self.log.state.steps + 1
            work = self.log.state.runs[step.turn]
            place = f"@{work.branch}" if work.branch else ""
            self.asked.append(f"{work.agent}{place}{':leave' if step.phase == 'leave' else ''}")
            self.log.append(parse_ref(f">{number}"), self.now, ModelCalled(number, step.turn))
            self.flying.append(number)
        return step

    def answer(self, number: int | None = None) -> None:
        """Have a model answer: the one that was asked first, unless another is named."""
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
        """Have an agent's model say something else."""
        self._says[agent] = iter(replies)

    def perform(self, **actions: Any) -> None:
        """Have every tool that is to run return, with the same actions."""
        step = next_step(self.log)
        assert isinstance(step, Perform)
        for id in step.calls:
            outcome = ToolOutcome(function_call_id=id, response={"ok": True}, actions=EventActions(**actions))
            self.log.append(parse_ref(id), self.now, CallReturned(outcome, self.log.state.calls[id].run))

    def said(self) -> list[str]:
        """Return what the agents said, as `agent: text`."""
        return [f"{event.author}: {line}" for event in self.log.state.events for line in _lines(event.content)]


def _lines(content: Any) -> Iterator[str]:
    for part in (content or {}).get("parts", ()):
        if "text" in part:
            yield part["text"]
