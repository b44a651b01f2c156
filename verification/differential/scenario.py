"""One conversation: the agents, the replies of their models, and the client's messages.

google-adk's process imports this module, too, so it may import only the standard library.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Json: TypeAlias = dict[str, Any]
Reply: TypeAlias = "str | Json | Problem | Refusal"
"""A reply of a model: text, a genai Content as JSON, or an error instead of either."""


@dataclass(frozen=True)
class Problem:
    """A reply that is an error, such as a provider's report of a blocked prompt."""

    code: str
    message: str


@dataclass(frozen=True)
class Refusal:
    """An exception that every attempt to call the model raises."""

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
    """The index of the pending call, in the order in which the calls were made."""


def approves(payload: Json | None = None, *, call: int = 0) -> Answer:
    """Return the confirmation of a call."""
    return Answer(action="approve", response=payload or {}, call=call)


def rejects(*, call: int = 0) -> Answer:
    """Return the rejection of a call."""
    return Answer(action="reject", call=call)


def responds(response: Json, *, call: int = 0) -> Answer:
    """Return the final answer to a long-running call."""
    return Answer(action="respond", response=response, call=call)


def reports(response: Json, *, call: int = 0) -> Answer:
    """Return an interim answer to a long-running call."""
    return Answer(action="progress", response=response, call=call)


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A text in another session, to which all later messages are sent."""

    text: str
    """No message is sent if it is empty."""
    session: str
    user: str = ""
    """By default, the user of the scenario."""
    state: Json = field(default_factory=dict)
    """The initial state of the session."""


class Cast:
    """The models of one scenario, by the label of their script, and the name of its root agent."""

    def __init__(self, name: str, models: Callable[[str], Any]) -> None:
        self.name = name
        self.model = models
        """Returns the model that follows the script with this label."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One conversation, which runs on both sides."""

    name: str
    """Also the name of the root agent."""
    agent: Callable[[Cast], Any]
    """Creates the agents for each run."""
    script: Mapping[str, Sequence[Reply]]
    """The replies of each model, by label."""
    message: str | Json = "go"
    answers: Sequence[Answer | tuple[Answer, ...] | str | Elsewhere] = ()
    """The client's messages in order: answers (a tuple is one message for ADK), and texts of users."""
    state: Json = field(default_factory=dict)
    max_llm_calls: int | None = None
    parallel: bool = False
    """Whether agents run in parallel, so that the order of events on different branches is not defined."""
    model: str = "scripted"
    """The name of all models; it determines the features that an agent may use."""
    plugins: Callable[[], Sequence[Any]] = tuple
    """Creates the plugins of the app for each run."""
    compaction: Callable[[Cast], Any] | None = None
    """Creates the app's `events_compaction_config` for each run."""
    deviations: Mapping[str, Any] = field(default_factory=dict)
    """Names from the table of deviations, each with its facts about this scenario."""


def alone(
    name: str,
    *replies: Reply,
    tools: Callable[[], list[Any]] = list,
    agent: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Scenario:
    """Return a scenario with one agent; `tools` creates its tools, and `agent` has its other settings."""

    def build(cast: Cast) -> Any:
        from waystation.agents import LlmAgent

        return LlmAgent(name=cast.name, model=cast.model("main"), tools=tools(), **(agent or {}))

    return Scenario(name=name, agent=build, script={"main": replies}, **fields)


def is_conversation(scenario: Scenario) -> bool:
    """Return whether the user sends several messages, which requires a session."""
    return any(isinstance(sent, str | Elsewhere) for sent in scenario.answers)


def shows(*names: str, **told: Any) -> dict[str, Any]:
    """Return deviations: those without arguments, and those with one."""
    return {**dict.fromkeys(names), **{name.replace("_", "-"): value for name, value in told.items()}}
