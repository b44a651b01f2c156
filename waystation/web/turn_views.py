"""The turns of a conversation in the form in which the page of a session shows them. Pure: built from logs alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from markupsafe import Markup

from waystation.core.contract import Event, text_of
from waystation.core.log import REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, Log, find_changes
from waystation.core.payload import JsonObject, digest
from waystation.presentation import terminal, text_safety, words
from waystation.presentation.text_safety import SafeText
from waystation.web.markdown_text import render_markdown

MAX_ITEMS = 200
"""Maximum number of items of a turn to show. The latest ones are shown."""
HEAD, TAIL = 12_000, 4_000
"""Number of characters of a message to show from its beginning and from its end."""

Kind = Literal["user", "agent", "thought", "call", "note", "state", "error", "artifact"]


@dataclass(slots=True)
class Item:
    """A message, a call with its result, or a note."""

    kind: Kind
    event: int
    """Number of the event, starting at 1."""
    who: str
    text: SafeText | str
    args: SafeText | None = None
    response: SafeText | None = None
    html: Markup | None = None
    """A model's message as HTML, unless it has to be shown as plain text."""
    state: str = ""
    """For a call: `running`, `waiting`, `done` or `failed`."""
    decision: str = ""
    """For a call that a person answered: the answer, the person and the comment."""


@dataclass(slots=True)
class TurnView:
    """One invocation of a session."""

    number: int
    log: Log
    items: list[Item]
    left_out: int
    cards: list[JsonObject] = field(default_factory=list)
    """The pending calls of the turn, including those of called agents."""

    @property
    def id(self) -> str:
        """The invocation ID."""
        return self.log.invocation_id

    @property
    def status(self) -> str:
        """The invocation's status in one word."""
        state = self.log.state
        if state.outcome.ended:
            return state.outcome.ended
        return "held" if state.holds else "waiting" if self.cards or state.waiting() else "running"

    @property
    def is_open(self) -> bool:
        """Whether the invocation has not ended."""
        return not self.log.state.outcome.ended

    @property
    def event_count(self) -> int:
        """Number of events recorded so far."""
        return self.log.state.event_count

    @property
    def facts(self) -> str:
        """The use of models and time so far, such as `2 model calls, 310 tokens, cost 0.002, 1.4 s`."""
        spent, cost = self.log.state.used.spent, words.format_cost(self.log.state)
        duration = self.log.entries[-1].time - self.log.entries[0].time if self.log.entries else 0.0
        parts = [
            f"{spent.model_calls} model call{'s' * (spent.model_calls != 1)}" if spent.model_calls else "",
            f"{spent.total_tokens:,} tokens" if spent.total_tokens else "",
            f"cost {cost}" if cost else "",
            "" if self.is_open else text_safety.format_duration(duration),
        ]
        return ", ".join(filter(None, parts))

    @property
    def key(self) -> str:
        """A digest that changes whenever the turn looks different."""
        versions = [card["view"].version for card in self.cards]
        return digest([self.id, self.status, self.event_count, versions])[:16]


def make_turn(log: Log) -> TurnView:
    """Return the view of an invocation."""
    items = list(_make_items(log))
    number = log.invocation_id.rpartition("/")[2]
    left_out = max(0, len(items) - MAX_ITEMS)
    return TurnView(int(number) if number.isdecimal() else 0, log, items[left_out:], left_out)


def _make_items(log: Log) -> Iterator[Item]:
    """Yield the items of an invocation. A call and its response are one item, at the place of the call."""
    calls = dict[str, Item]()
    items = list[Item]()
    for event in log.state.events:
        items.extend(_read_event(event, calls))
    for id, item in calls.items():
        call = log.state.calls.get(id)
        is_failed = call is not None and call.outcome is not None and call.outcome.error_type is not None
        is_waiting = call is not None and call.waiting and not log.state.outcome.ended
        ended = "done" if item.response or log.state.outcome.ended else "running"
        item.state = "failed" if is_failed else "waiting" if is_waiting else ended
        if call is not None and call.answer is not None:
            comment = f": “{call.answer.comment}”" if call.answer.comment else ""
            item.decision = text_safety.format_line(words.decision(call) + comment, 1_000)
            if find_changes(call):  # show what ran; the decision says what was requested
                args = text_safety.format_value(call.args)
                item.text, item.args = text_safety.format_call(call.name, call.args, 100), args
    yield from items


def _read_event(event: Event, calls: dict[str, Item]) -> Iterator[Item]:
    """Yield the items of an event. A response becomes part of its call, unless `calls` lacks it."""
    number, who = (event.index or 0) + 1, event.author
    for part in (event.content or {}).get("parts") or ():
        yield from _read_part(part, number, who, calls)
    shown = event.model_copy(update={"content": None})
    for line in terminal.format_event(shown):
        kind: Kind = "state" if line.kind == "state" else "error" if line.kind == "error" else "note"
        yield Item(kind, number, line.who, text_safety.format_line(line.text, 1_000))
    for name in event.actions.artifact_delta:
        yield Item("artifact", number, who, name)


def _read_part(part: JsonObject, number: int, who: str, calls: dict[str, Item]) -> Iterator[Item]:
    call, response = part.get("functionCall"), part.get("functionResponse")
    name = str((call or response or {}).get("name"))
    if text := part.get("text"):
        kind: Kind = "thought" if part.get("thought") else "user" if who == "user" else "agent"
        safe = text_safety.format_text(str(text).strip(), head=HEAD, tail=TAIL)
        yield Item(kind, number, who, safe, html=render_markdown(str(text)) if kind == "agent" else None)
    elif name == REQUEST_CONFIRMATION:
        return  # the call itself shows that it waits, and the decision
    elif call and name != REQUEST_CREDENTIAL:
        title = text_safety.format_call(name, call.get("args") or {}, 100)
        args = text_safety.format_value(call.get("args") or {})
        item = calls[str(call.get("id"))] = Item("call", number, who, title, args=args)
        yield item
    elif response and (item_of := calls.get(str(response.get("id")))):
        item_of.response = text_safety.format_value(response.get("response") or {})
    else:
        for line in terminal.format_part(part, who):
            yield Item("note", number, "", text_safety.format_line(line.who + line.text, 1_000))


def make_title(log: Log | None) -> str:
    """Return the first words of an invocation's message, or an empty string if it has none."""
    message = log.state.input.message if log and log.state.input else ""
    text = message if isinstance(message, str) else text_of(message)
    return text_safety.format_line(" ".join(text.split()), 80)


def sum_tokens(logs: Sequence[Log]) -> int:
    """Return the number of tokens that invocations used."""
    return sum(log.state.used.spent.total_tokens for log in logs)
