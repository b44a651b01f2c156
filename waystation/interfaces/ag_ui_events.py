"""Logs of invocations as messages and events of AG-UI. Pure: the same logs always yield the same ones.

IDs are derived from recorded IDs, so that a client that reads a thread again, or twice, finds the same messages.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ag_ui.core import (
    ActivityMessage,
    ActivitySnapshotEvent,
    AssistantMessage,
    AudioPart,
    BaseEvent,
    ContentPart,
    DataSource,
    DocumentPart,
    FunctionCall,
    ImagePart,
    Interrupt,
    Message,
    StateDeltaEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentFinishedEvent,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TextPart,
    TokenUsage,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
    UserMessage,
    VideoPart,
)

from waystation.core import ids
from waystation.core.budget import NO_USAGE, Usage
from waystation.core.contract import PARTIAL, Event, text_of
from waystation.core.errors import InvalidInput
from waystation.core.log import REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, ChildReturned, Log, ModelReplied
from waystation.core.log.invocation_state import TEMPORARY
from waystation.core.payload import JsonObject, encode
from waystation.core.scope_state import is_scoped

MESSAGE_ID = "ag_ui_message_id"
"""Key in the metadata of an invocation that has the ID which the client gave to its message."""
PROGRESS = "waystation:progress"
"""The type of an activity with the latest interim response of a call."""
_MediaPart: TypeAlias = ImagePart | AudioPart | VideoPart | DocumentPart
_MEDIA: Mapping[str, type[_MediaPart]] = {"image": ImagePart, "audio": AudioPart, "video": VideoPart}


@dataclass(frozen=True, slots=True)
class Subagent:
    """A sub-agent at work. The same agent that works again later is another one."""

    id: str
    name: str
    branch: str | None


@dataclass(slots=True)
class InvocationMessages:
    """Turns the events of one invocation into messages, in order."""

    active: list[Subagent] = field(default_factory=list)
    """The sub-agents at work after the latest event."""
    _runs: Counter[str] = field(default_factory=Counter)
    _entries: int = 0
    _replies: dict[bytes, list[int]] = field(default_factory=dict)
    """The numbers of model calls by their content, of replies without an event so far."""

    def take(self, log: Log, event: Event) -> list[Message]:
        """Return the messages for the next event of the log."""
        for entry in log.entries[self._entries :]:
            if isinstance(entry.body, ModelReplied) and entry.body.reply.content:
                self._replies.setdefault(encode(entry.body.reply.content), []).append(entry.body.number)
        self._entries = len(log.entries)
        numbers = self._replies.get(encode(event.content)) if event.content else None
        id = name_reply(log.invocation_id, numbers.pop(0)) if numbers else event.id
        subagent = self.find_subagent(log, event)
        return [
            message.model_copy(update={"subagent_run_id": subagent}) if subagent else message
            for message in _make_messages(log, event, id)
        ]

    def take_all(self, log: Log) -> list[Message]:
        """Return the messages for all events of the log."""
        return [message for event in log.state.events for message in self.take(log, event)]

    def find_subagent(self, log: Log, event: Event) -> str | None:
        """Return the ID of the sub-agent that sent an event, or None. Those that its agent follows are not active then.

        An agent's event ends the work of other agents on its branch and on the branches below.
        """
        started = log.state.input
        if event.author == "user" or started is None:
            return None
        is_same = [each for each in self.active if (each.name, each.branch) == (event.author, event.branch)]
        if is_same and event.author != started.agent:
            return is_same[0].id
        self.active = [each for each in self.active if not _is_below(each.branch, event.branch)]
        if event.author == started.agent:
            return None
        self._runs[event.author] += 1
        id = f"{log.invocation_id}/{event.author}/{self._runs[event.author]}"
        self.active.append(Subagent(id, event.author, event.branch))
        return id


def make_messages(log: Log) -> list[Message]:
    """Return all messages of an invocation so far."""
    return InvocationMessages().take_all(log)


def name_reply(invocation_id: str, number: int) -> str:
    """Return the message ID of a model's reply, whose text is streamed before an event has it."""
    return f"{invocation_id}/m{number}"


def name_result(tool_call_id: str) -> str:
    """Return the message ID of the result of a call."""
    return f"{tool_call_id}/result"


def parse_content(message: UserMessage) -> JsonObject:
    """Return a user's message as a content of the Gemini API, without the parts that it cannot use.

    Raises:
        InvalidInput: Nothing is left.
    """
    given = [TextPart(text=message.content)] if isinstance(message.content, str) else message.content
    parts = [part for part in map(_parse_part, given) if part]
    if not parts:
        raise InvalidInput("The message has neither text nor data. Files elsewhere are not fetched.")
    return {"role": "user", "parts": parts}


def _make_messages(log: Log, event: Event, id: str) -> Iterator[Message]:
    parts = (event.content or {}).get("parts") or ()
    started = log.state.input
    if event.author == "user" and parts and not event.function_responses():
        is_first = event.index == 0 and started is not None
        own = started.metadata.get(MESSAGE_ID) if is_first and started else None
        yield UserMessage(id=str(own or event.id), content=_format_parts(parts))
        return
    text = text_of(event.content) or (event.error_message if not parts else "") or ""
    calls = [
        ToolCall(
            id=ids.approval(log.invocation_id, call["id"]),
            function=FunctionCall(name=call["name"], arguments=json.dumps(call.get("args") or {})),
        )
        for call in event.function_calls()
        if call["name"] not in (REQUEST_CONFIRMATION, REQUEST_CREDENTIAL)
    ]
    if text or calls:
        yield AssistantMessage(id=id, name=event.author, content=text or None, tool_calls=calls or None)
    for response in event.function_responses():
        if response["name"] in (REQUEST_CONFIRMATION, REQUEST_CREDENTIAL):
            continue
        call_id, content = ids.approval(log.invocation_id, response["id"]), response.get("response") or {}
        if _is_final(log, event, response["id"]):
            yield ToolMessage(id=name_result(call_id), tool_call_id=call_id, content=json.dumps(content))
        else:
            yield ActivityMessage(
                id=f"{call_id}/progress", activity_type=PROGRESS, content={"toolCallId": call_id, "response": content}
            )


def _is_final(log: Log, event: Event, function_call_id: str) -> bool:
    """Return whether a response is the last one of its call."""
    later = log.state.events[(event.index or 0) + 1 :]
    if any(response["id"] == function_call_id for each in later for response in each.function_responses()):
        return False
    call = log.state.calls.get(function_call_id)
    return log.state.outcome.ended is not None or not (call and (call.answerable or call.performing))


def _is_below(branch: str | None, parent: str | None) -> bool:
    return parent is None or f"{branch}.".startswith(f"{parent}.")


def _format_parts(parts: Sequence[JsonObject]) -> str | list[ContentPart]:
    if all("text" in part for part in parts):
        return "".join(part["text"] for part in parts)
    return [shown for part in parts if (shown := _format_part(part))]


def _format_part(part: JsonObject) -> ContentPart | None:
    if data := part.get("inlineData"):
        kind = _MEDIA.get(data["mimeType"].partition("/")[0], DocumentPart)
        return kind(source=DataSource(value=data["data"], mime_type=data["mimeType"]))
    return TextPart(text=part["text"]) if part.get("text") else None


def _parse_part(part: ContentPart) -> JsonObject | None:
    if isinstance(part, TextPart):
        return {"text": part.text}
    source = part.source
    # Models could not read what other places have, and this server does not fetch it.
    is_data = isinstance(source, DataSource)
    return {"inlineData": {"mimeType": source.mime_type, "data": source.value}} if is_data else None


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
    """Whether the client needs all messages again, for example because text turned out not to count."""
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
            case UserMessage():  # from another client, and perhaps with files
                self.is_stale = True
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
