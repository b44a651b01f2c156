"""Plays an invocation of a tree of agents: every agent says what the test wrote down for it."""

from collections.abc import Iterator
from typing import Any

from waystation.core.budget import Budget
from waystation.core.entry import Began, CallReturned, ModelCalled, ModelReplied
from waystation.core.event import EventActions
from waystation.core.log import Log
from waystation.core.model_call import Call, ModelReply, Said
from waystation.core.shape import AgentKind, AgentShape
from waystation.core.step import CallModel, Perform, Step, next_step
from waystation.core.tool_call import ToolOutcome
from waystation.core.wire import InvocationInput


def llm(name: str, **fields: Any) -> AgentShape:
    """An agent with a model."""
    return AgentShape(name=name, **fields)


def composite(kind: AgentKind, *children: AgentShape, **fields: Any) -> AgentShape:
    """An agent that runs others; its name is its kind unless another is given."""
    return AgentShape(**{"name": kind, "kind": kind, "children": children, **fields})


def text(said: str, **fields: Any) -> ModelReply:
    """A model says something."""
    return ModelReply(content={"role": "model", "parts": [{"text": said}]}, **fields)


def call(id: str, name: str = "tool", **fields: Any) -> ModelReply:
    """A model calls one tool."""
    part = {"functionCall": {"id": id, "name": name, "args": {}}}
    return ModelReply(content={"role": "model", "parts": [part]}, calls=(Call(id=id, **fields),))


def transfer(id: str, to: AgentShape) -> ModelReply:
    """A model hands the conversation over."""
    actions = EventActions(transfer_to_agent=to.name)
    return call(id, "transfer_to_agent", kind="answered", response={"result": None}, actions=actions, transfer=to)


class Stage:
    """One invocation of `shape`."""

    def __init__(self, shape: AgentShape, *, budget: int = 500, **says: list[ModelReply | str]) -> None:
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
        self.log.append("start", self.now, Began(given))

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
            number = self.log.steps + 1
            work = self.log.works[step.turn]
            place = f"@{work.branch}" if work.branch else ""
            self.asked.append(f"{work.agent}{place}{':leave' if step.phase == 'leave' else ''}")
            self.log.append(f">{number}", self.now, ModelCalled(number, step.turn))
            self.flying.append(number)
        return step

    def answer(self, number: int | None = None) -> None:
        """Have a model answer: the one that was asked first, unless another is named."""
        number = self.flying[0] if number is None else number
        self.flying.remove(number)
        work = self.log._asked[number]
        if work.phase_in_flight == "leave":
            reply = ModelReply(after=Said(content={"role": "model", "parts": [{"text": f"{work.agent} was here"}]}))
        elif not work.parent and self.shape.kind != "llm":
            reply = ModelReply(shape=self.shape)
        elif work.shape.kind != "llm":
            reply = ModelReply(shape=work.shape)
        else:
            said = next(self._says.get(work.agent, iter(())), "done")
            reply = text(said) if isinstance(said, str) else said
        self.log.append(f"m{number}", self.now, ModelReplied(number, reply))

    def perform(self, **actions: Any) -> None:
        """Have every tool that is to run return, with the same actions."""
        step = next_step(self.log)
        assert isinstance(step, Perform)
        for id in step.calls:
            outcome = ToolOutcome(function_call_id=id, response={"ok": True}, actions=EventActions(**actions))
            self.log.append(id, self.now, CallReturned(outcome, self.log.calls[id].run))

    def said(self) -> list[str]:
        """Return what the agents said, as `agent: text`."""
        return [f"{event.author}: {line}" for event in self.log.events for line in _lines(event.content)]


def _lines(content: Any) -> Iterator[str]:
    for part in (content or {}).get("parts", ()):
        if "text" in part:
            yield part["text"]
