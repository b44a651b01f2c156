"""One agent at work: entered, perhaps calling its model or running other agents, done when nothing is open any more."""

from dataclasses import dataclass, field
from operator import attrgetter

from waystation.core.call import CallState
from waystation.core.model_call import ModelReply, Phase, Said
from waystation.core.payload import JsonObject
from waystation.core.shape import AgentShape

_performing = attrgetter("performing")


@dataclass(slots=True, eq=False)
class Work:
    """The work of one agent, and what it has brought about so far. Changed only by its log.

    Works form a tree: a workflow agent's children are the agents that it runs, an LLM agent's those that it transferred
    to. An agent that runs twice, in a loop, works twice.
    """

    index: int
    """Which of the invocation's works it is; they are numbered as they begin."""
    shape: AgentShape
    parent: "Work | None"
    branch: str | None
    entered_at: int
    """How many events there were when it began."""
    children: list["Work"] = field(default_factory=list)
    entered: bool = False
    """Whether its shape is known and its `before_agent` callbacks have run."""
    started: int = 0
    """How many of the shape's children were begun; in a loop, in the present round."""
    rounds: int = 0
    """How many rounds of a loop were begun."""
    begun_before_round: int = 0
    """How many LLM agents had begun in the invocation when the present round did."""
    escalated: bool = False
    finished: bool = False
    """Whether it begins no further agent."""
    spoken_for: bool = False
    """Whether `before_agent` callbacks spoke for it, so that it has nothing to do."""
    left: bool = False
    """Whether its `after_agent` callbacks have run."""
    over: bool = False

    calls_made: int = 0
    batch: list[CallState] = field(default_factory=list)
    """The calls of the latest reply, and earlier ones that run again."""
    open: dict[str, CallState] = field(default_factory=dict)
    """Calls that wait for a person or may yet be answered by one."""
    held: list[tuple[str, list[JsonObject]]] = field(default_factory=list)
    """Responses (author, parts) that arrived while the model or a tool was busy; they follow in order."""
    closing: Said | None = None
    """What it says once its calls have responses; it is then done."""
    in_flight: int | None = None
    """Number of the activity that works for it: a model call, or callbacks around it."""
    phase_in_flight: Phase | None = None
    wrapping: bool = False
    """Whether its model is being told to wrap up."""
    wrapped: bool = False
    """Whether it was."""
    unread: bool = False
    """Whether something arrived that its model should be told."""

    @property
    def agent(self) -> str:
        """Name of the agent."""
        return self.shape.name

    @property
    def busy(self) -> bool:
        """Whether an activity works for it, or a call of its latest reply is carried out."""
        return self.in_flight is not None or any(map(_performing, self.batch))

    @property
    def phase(self) -> Phase | None:
        """What the next activity for it would do; None while there is none to schedule."""
        if self.over or self.busy:
            return None
        if not self.entered:
            return "enter"
        if self._exhausted:
            return "leave" if self.shape.after and not self.left else None
        return "turn" if self.unread and all(call.responded for call in self.batch) else None

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be done in it but to leave it."""
        return self.entered and not self.busy and self._exhausted

    @property
    def _exhausted(self) -> bool:
        """Whether nothing is left to be done in it once nothing is under way for it."""
        if not all(child.over for child in self.children):
            return False
        if self.spoken_for:
            return True
        if self.shape.kind != "llm":
            return self.finished
        waits = any(call.waiting for call in self.open.values())
        return not (waits or self.unread) and all(call.responded for call in self.batch)

    def asks_model(self, phase: Phase | None, reply: ModelReply | None) -> bool:
        """Whether an activity in `phase` asks a model, rather than running callbacks or entering a workflow agent.

        `reply` is what came of it; None while nothing has, or when it was lost.
        """
        shape = (reply.shape if reply else None) or self.shape
        return shape.kind == "llm" and phase != "leave" and not (reply and reply.skipped)

    def subtree(self) -> list["Work"]:
        """Return it and all that it brought about, those it brought about first."""
        return [*(work for child in self.children for work in child.subtree()), self]
