"""The events of AG-UI for an invocation that grows. Pure: the same logs and events always yield the same events."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import (
    ActivityMessage,
    ActivitySnapshotEvent,
    AssistantMessage,
    BaseEvent,
    Interrupt,
    Message,
    ReasoningEndEvent,
    ReasoningMessage,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    StateDeltaEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentFinishedEvent,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TokenUsage,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
    UserMessage,
)

from waystation.core import ids
from waystation.core.budget import NO_USAGE, Usage
from waystation.core.contract import PARTIAL, Event
from waystation.core.log import ChildReturned, Log, ModelReplied
from waystation.core.log.invocation_state import TEMPORARY
from waystation.core.payload import JsonObject
from waystation.core.scope_state import is_scoped
from waystation.interfaces.ag_ui_messages import InvocationMessages, Subagent, name_reply


@dataclass(slots=True)
class RunEvents:
    """Turns the growth of one invocation into the events of a run."""

    messages: InvocationMessages
    """Has taken the events that the client knows already."""
    known: set[str]
    """IDs of the messages that the client has."""
    state: JsonObject
    """The state that the client has."""
    is_stale: bool = False
    """Whether the client has text that turned out not to count, so that it needs all messages again."""
    _texts: dict[str, str] = field(default_factory=dict)
    """The text sent so far of each message that is not complete."""
    _steps: list[str] = field(default_factory=list)
    _open: dict[str, Subagent | None] = field(default_factory=dict)
    """The sub-agents that this run has announced and not closed. A called agent has no `Subagent`."""

    def feed(self, log: Log, events: Iterable[Event]) -> Iterator[BaseEvent]:
        """Yield the events of AG-UI for new text and new events of the log, then for changes of its state."""
        for event in events:
            if event.partial:
                yield from self._stream_text(log, event)
                continue
            messages = self.messages.take(log, event)
            yield from self._close_subagents()
            for message in messages:
                if message.id not in self.known:
                    self.known.add(message.id)
                    yield from self._announce(message.subagent_run_id)
                    yield from self._send(log, message)
        yield from self._change_steps(find_steps(log))
        state = find_state(log)
        if delta := diff_states(self.state, state):
            yield StateDeltaEvent.model_validate({"delta": delta})
        self.state = state

    def end(self, interrupts: Iterable[Interrupt] = ()) -> Iterator[BaseEvent]:
        """Close everything that is open, because the run ends. Sub-agents are suspended if it waits for answers."""
        for id in self._texts:
            yield TextMessageEndEvent(message_id=id)
        self._texts = {}
        yield from self._change_steps([])
        waiting = list(interrupts)
        for id in self._open:
            own = [each.id for each in waiting if each.subagent_run_id == id]
            outcome = SubagentFinishedSuspendedOutcome(interrupt_ids=own) if waiting else None
            yield SubagentFinishedEvent(subagent_run_id=id, outcome=outcome)
        self._open = {}

    def _stream_text(self, log: Log, event: Event) -> Iterator[BaseEvent]:
        facts = (event.custom_metadata or {})[PARTIAL]
        id, text = name_reply(log.invocation_id, facts["model_call"]), "".join(_texts_of(event))
        sent = self._texts.get(id)
        if facts.get("void"):
            if sent is not None:
                del self._texts[id]
                self.is_stale = True
                yield TextMessageEndEvent(message_id=id)
        elif text and facts["offset"] == len(sent or "") and id not in self.known:  # else the reader has missed a part
            subagent = self.messages.find_subagent(log, event)
            yield from self._close_subagents()
            yield from self._announce(subagent)
            if sent is None:
                yield _start_text(id, event.author, subagent)
            self._texts[id] = (sent or "") + text
            yield TextMessageContentEvent(message_id=id, delta=text)

    def _send(self, log: Log, message: Message) -> Iterator[BaseEvent]:
        """Yield the events that give a whole message to the client, or the rest of one whose text was streamed."""
        subagent = message.subagent_run_id
        match message:
            case UserMessage():
                yield TextMessageStartEvent(message_id=message.id, role="user")
                if isinstance(message.content, str):
                    yield TextMessageContentEvent(message_id=message.id, delta=message.content)
                yield TextMessageEndEvent(message_id=message.id)
                self.is_stale = self.is_stale or not isinstance(message.content, str)
            case AssistantMessage():
                yield from self._send_text(message)
                for call in message.tool_calls or ():
                    yield ToolCallStartEvent(
                        tool_call_id=call.id,
                        tool_call_name=call.function.name,
                        parent_message_id=message.id,
                        subagent_run_id=subagent,
                    )
                    yield ToolCallArgsEvent(tool_call_id=call.id, delta=call.function.arguments)
                    yield ToolCallEndEvent(tool_call_id=call.id)
                    state = log.state.calls.get(ids.parse_approval(call.id)[1])
                    if state is not None and state.call.kind == "agent":  # its invocation has the ID of the call
                        self._open[call.id] = None
                        yield SubagentStartedEvent(
                            subagent_run_id=call.id,
                            name=call.function.name,
                            parent_subagent_run_id=subagent,
                            parent_tool_call_id=call.id,
                            parent_message_id=message.id,
                        )
            case ToolMessage():
                if message.tool_call_id in self._open:
                    del self._open[message.tool_call_id]
                    yield SubagentFinishedEvent(subagent_run_id=message.tool_call_id)
                fields = message.model_dump(include={"tool_call_id", "content", "subagent_run_id"})
                yield ToolCallResultEvent(message_id=message.id, **fields)
            case ActivityMessage():
                yield show_activity(message)
                self.known.discard(message.id)  # each progress replaces the one before
            case ReasoningMessage():
                yield ReasoningStartEvent(message_id=message.id, subagent_run_id=subagent)
                yield ReasoningMessageStartEvent(message_id=message.id, subagent_run_id=subagent)
                yield ReasoningMessageContentEvent(message_id=message.id, delta=message.content)
                yield ReasoningMessageEndEvent(message_id=message.id)
                yield ReasoningEndEvent(message_id=message.id)

    def _send_text(self, message: AssistantMessage) -> Iterator[BaseEvent]:
        text, sent = message.content or "", self._texts.pop(message.id, None)
        if sent is None and text:
            yield _start_text(message.id, message.name, message.subagent_run_id)
        rest = text.removeprefix(sent or "")
        if sent and not text.startswith(sent):  # a callback has replaced the text
            rest, self.is_stale = "", True
        if rest:
            yield TextMessageContentEvent(message_id=message.id, delta=rest)
        if text or sent is not None:
            yield TextMessageEndEvent(message_id=message.id)

    def _announce(self, id: str | None) -> Iterator[BaseEvent]:
        if id and id not in self._open:
            self._open[id] = found = next(each for each in self.messages.active if each.id == id)
            yield SubagentStartedEvent(subagent_run_id=id, name=found.name)

    def _close_subagents(self) -> Iterator[BaseEvent]:
        over = [id for id, each in self._open.items() if each and each not in self.messages.active]
        for id in over:
            del self._open[id]
            yield SubagentFinishedEvent(subagent_run_id=id)

    def _change_steps(self, steps: list[str]) -> Iterator[BaseEvent]:
        yield from (StepFinishedEvent(step_name=name) for name in self._steps if name not in steps)
        yield from (StepStartedEvent(step_name=name) for name in steps if name not in self._steps)
        self._steps = steps


def show_activity(message: ActivityMessage) -> ActivitySnapshotEvent:
    """Return the event that shows an activity."""
    fields = message.model_dump(include={"activity_type", "content", "subagent_run_id"})
    return ActivitySnapshotEvent(message_id=message.id, **fields)


def find_steps(log: Log) -> list[str]:
    """Return what an invocation does now."""
    state = log.state
    if state.outcome.ended:
        return []
    steps = {"model": state.models_in_flight, "tools": state.performing(), "wait": state.waiting(), "held": state.holds}
    return [name for name, found in steps.items() if found]


def find_state(log: Log) -> JsonObject:
    """Return the state of the session, as an invocation has changed it."""
    return select_state(log.state.session.values)


def select_state(values: JsonObject) -> JsonObject:
    """Return what belongs to the session itself: not to its user, its app, or one invocation."""
    return {key: value for key, value in values.items() if not (key.startswith(TEMPORARY) or is_scoped(key))}


def diff_states(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[JsonObject]:
    """Return the JSON Patch that turns one state into another, key by key."""
    patch: list[JsonObject] = []
    for key in {**old, **new}:
        path = "/" + key.replace("~", "~0").replace("/", "~1")
        if key not in new:
            patch.append({"op": "remove", "path": path})
        elif key not in old or old[key] != new[key]:
            patch.append({"op": "replace" if key in old else "add", "path": path, "value": new[key]})
    return patch


def count_tokens(log: Log, start: int = 0) -> list[TokenUsage] | None:
    """Return the usage of each model since an entry of the log, if any. That of called agents has no model."""
    used: dict[str | None, Usage] = {}
    for entry in log.entries[start:]:
        if isinstance(entry.body, ModelReplied):
            reply = entry.body.reply
            model = reply.model_version or reply.model
            summary = reply.compaction.usage if reply.compaction else None
            found = (reply.usage or NO_USAGE) + summary
        elif isinstance(entry.body, ChildReturned):
            model, found = None, entry.body.result.usage
        else:
            continue
        used[model] = used.get(model, NO_USAGE) + found
    return [_format_usage(model, usage) for model, usage in used.items() if usage != NO_USAGE] or None


def _format_usage(model: str | None, usage: Usage) -> TokenUsage:
    output = usage.output_tokens + usage.thoughts_tokens
    return TokenUsage(
        model=model,
        input_tokens=usage.prompt_tokens,
        output_tokens=output,
        total_tokens=usage.prompt_tokens + output,
        reasoning_tokens=usage.thoughts_tokens or None,
        cached_input_tokens=usage.cached_tokens or None,
    )


def _start_text(id: str, author: str | None, subagent: str | None) -> BaseEvent:
    return TextMessageStartEvent(message_id=id, role="assistant", name=author, subagent_run_id=subagent)


def _texts_of(event: Event) -> Iterator[str]:
    return (part["text"] for part in (event.content or {}).get("parts") or ())
