"""One conversation: the agents, the replies of their models, and the client's messages.

Read by google-adk's process too, so nothing here may import more than the standard library.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Json: TypeAlias = dict[str, Any]
Reply: TypeAlias = "str | Json | Problem | Refusal"
"""A reply of a model: text, a genai Content as JSON, or an error instead of either."""


@dataclass(frozen=True)
class Problem:
    """A model's reply that is an error, as providers report that a prompt was blocked."""

    code: str
    message: str


@dataclass(frozen=True)
class Refusal:
    """An exception that the model raises instead of replying; another attempt would raise it again."""

    message: str


def calls(*wanted: tuple[str, Json], text: str | None = None) -> Json:
    """Return a reply that calls tools: `calls(("pay", {"amount": 5}), ("log", {}))`."""
    parts: list[Json] = [{"text": text}] if text else []
    parts.extend({"functionCall": {"name": name, "args": args}} for name, args in wanted)
    return {"role": "model", "parts": parts}


def content_of(reply: str | Json) -> Json:
    """Return a reply as a Content."""
    return {"role": "model", "parts": [{"text": reply}]} if isinstance(reply, str) else reply


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A client's answer to a pending call."""

    action: Literal["approve", "reject", "respond", "progress"]
    response: Json = field(default_factory=dict)
    """The response to a long-running call, or the payload of a confirmation."""
    call: int = 0
    """Which of the calls that wait, counted in the order in which they were made."""


def approves(payload: Json | None = None, *, call: int = 0) -> Answer:
    """Return the confirmation of a call."""
    return Answer(action="approve", response=payload or {}, call=call)


def rejects(*, call: int = 0) -> Answer:
    """Return the refusal of a call."""
    return Answer(action="reject", call=call)


def responds(response: Json, *, call: int = 0) -> Answer:
    """Return the last answer to a long-running call."""
    return Answer(action="respond", response=response, call=call)


def reports(response: Json, *, call: int = 0) -> Answer:
    """Return an interim answer to a long-running call."""
    return Answer(action="progress", response=response, call=call)


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A text in another session, which all later messages go to."""

    text: str
    """Nothing is said when it is empty."""
    session: str
    user: str = ""
    """The scenario's own unless given."""
    state: Json = field(default_factory=dict)
    """With which the session begins."""


class Cast:
    """The models of one scenario, by the label of their script, and the name of its root agent."""

    def __init__(self, name: str, models: Callable[[str], Any]) -> None:
        self.name = name
        self.model = models
        """Returns the model that follows the script of that label."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One conversation, to be had on both sides."""

    name: str
    """Also the name of the root agent."""
    agent: Callable[[Cast], Any]
    """Makes the agents anew."""
    script: Mapping[str, Sequence[Reply]]
    """The replies of each model, by label."""
    message: str | Json = "go"
    answers: Sequence[Answer | tuple[Answer, ...] | str | Elsewhere] = ()
    """The client's messages in order: answers (a tuple is one message for ADK), and texts of users."""
    state: Json = field(default_factory=dict)
    max_llm_calls: int | None = None
    parallel: bool = False
    """Whether agents work side by side, so that the order of what they do on different branches is not defined."""
    model: str = "scripted"
    """The name of all models; what an agent may use depends on it."""
    plugins: Callable[[], Sequence[Any]] = tuple
    """Makes the plugins of the app anew."""
    compaction: Callable[[Cast], Any] | None = None
    """Makes the app's `events_compaction_config` anew."""
    deviations: Mapping[str, Any] = field(default_factory=dict)
    """Names from the table of deviations, each with what it needs to know of this scenario."""


def alone(
    name: str,
    *replies: Reply,
    tools: Callable[[], list[Any]] = list,
    agent: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Scenario:
    """Return a scenario with one agent; `tools` makes its tools, `agent` are its further settings."""

    def build(cast: Cast) -> Any:
        from waystation.agents import LlmAgent

        return LlmAgent(name=cast.name, model=cast.model("main"), tools=tools(), **(agent or {}))

    return Scenario(name=name, agent=build, script={"main": replies}, **fields)


def is_conversation(scenario: Scenario) -> bool:
    """Whether the user says more than one thing, so that it takes a session."""
    return any(isinstance(sent, str | Elsewhere) for sent in scenario.answers)


def shows(*names: str, **told: Any) -> dict[str, Any]:
    """Return deviations: those without arguments, and those with one."""
    return {**dict.fromkeys(names), **{name.replace("_", "-"): value for name, value in told.items()}}
