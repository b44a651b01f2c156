"""Logs of invocations as messages and events of AG-UI. Pure: the same logs always yield the same ones.

IDs are derived from recorded IDs, so that a client that reads a thread again, or twice, finds the same messages.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import (
    ActivityMessage,
    AssistantMessage,
    BaseEvent,
    DataSource,
    FunctionCall,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
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
    aggregate_token_usage,
)

from waystation.core import ids
from waystation.core.budget import NO_USAGE, Usage
from waystation.core.contract import PARTIAL, Event, text_of
from waystation.core.errors import InvalidInput
from waystation.core.log import REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, ChildReturned, Log, ModelReplied
from waystation.core.payload import JsonObject, encode
from waystation.core.scope_state import TEMPORARY, is_scoped

MESSAGE_ID = "ag_ui_message_id"
"""Key in the metadata of an invocation that has the ID which the client gave to its message."""
PROGRESS = "waystation:progress"
"""The type of an activity with the latest interim response of a call."""
AWAITED = "waystation:awaited"
"""The type of an activity about a call that waits for other people."""


@dataclass(frozen=True, slots=True)
class Subagent:
    """A sub-agent at work. The same agent that works again later is another one."""

    id: str
    name: str
    branch: str | None


class InvocationMessages:
    """Turns the events of one invocation into messages, in order."""

    def __init__(self, log: Log | None = None) -> None:
        """Begin after the events of a log, or with the first event."""
        self.active: list[Subagent] = []
        """The sub-agents at work after the latest event."""
        self._runs: Counter[str] = Counter()
        self._entries = 0
        self._replies: dict[bytes, list[int]] = {}
        """The numbers of model calls by their content, of replies without an event so far."""
        if log is not None:
            self.take_all(log)

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
    if isinstance(message.content, str):
        return {"role": "user", "parts": [{"text": message.content}]}
    # Models could not read what other places have, and this server does not fetch it.
    parts: list[JsonObject] = [
        {"text": part.text}
        if isinstance(part, TextPart)
        else {"inlineData": {"mimeType": part.source.mime_type, "data": part.source.value}}
        for part in message.content
        if isinstance(part, TextPart) or isinstance(part.source, DataSource)
    ]
    if not parts:
        raise InvalidInput("The message has neither text nor data. Files elsewhere are not fetched.")
    return {"role": "user", "parts": parts}


def _make_messages(log: Log, event: Event, id: str) -> Iterator[Message]:
    parts = (event.content or {}).get("parts") or ()
    started = log.state.input
    if event.author == "user" and parts and not event.function_responses():
        is_first = event.index == 0 and started is not None
        own = started.metadata.get(MESSAGE_ID) if is_first and started else None
        yield UserMessage.model_validate({"id": str(own or event.id), "role": "user", "content": _format_parts(parts)})
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


def _format_parts(parts: Sequence[JsonObject]) -> str | list[JsonObject]:
    if all("text" in part for part in parts):
        return "".join(part["text"] for part in parts)
    return [shown for part in parts if (shown := _format_part(part))]


def _format_part(part: JsonObject) -> JsonObject | None:
    if data := part.get("inlineData"):
        mime_type = data.get("mimeType") or "application/octet-stream"
        kind = mime_type.partition("/")[0]
        source = {"type": "data", "value": data.get("data") or "", "mimeType": mime_type}
        return {"type": kind if kind in ("image", "audio", "video") else "document", "source": source}
    return {"type": "text", "text": part["text"]} if part.get("text") else None


@dataclass(slots=True)
class RunEvents:
    """Turns the growth of one invocation into the events of a run."""

    state: JsonObject
    """The state that the client has."""
    messages: InvocationMessages = field(default_factory=InvocationMessages)
    """Has taken the events of the invocation that the client knows already."""
    is_stale: bool = False
    """Whether the client needs all messages again, for example because text turned out not to count."""
    _known: set[str] = field(default_factory=set)
    """IDs of the messages that the client has."""
    _texts: dict[str, AssistantMessage] = field(default_factory=dict)
    """The messages that are not complete, with the text sent so far."""
    _steps: list[str] = field(default_factory=list)
    _open: dict[str, Subagent | None] = field(default_factory=dict)
    """The sub-agents that this run has announced and not closed. A called agent has no `Subagent`."""

    def make_snapshot(self, messages: Sequence[Message]) -> MessagesSnapshotEvent:
        """Return the event with all messages. The caller gives the complete ones."""
        self.is_stale = False
        self._known = {message.id for message in messages if not isinstance(message, ActivityMessage)}
        texts = [text for id, text in self._texts.items() if id not in self._known]
        # The official client then removes those of our activities that are missing here.
        metadata = {"@ag-ui/client": {"authoritativeActivityTypes": [AWAITED, PROGRESS]}}
        return MessagesSnapshotEvent(messages=[*messages, *texts], metadata=metadata)

    def feed(self, log: Log, events: Iterable[Event]) -> Iterator[BaseEvent]:
        """Yield the events of AG-UI for new text and new events of the log, then for changes of its state."""
        for event in events:
            if event.partial:
                yield from self._stream_text(log, event)
                continue
            for message in self.messages.take(log, event):
                if message.id not in self._known:
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
        before = (sent and sent.content) or ""
        if facts.get("void"):
            if sent is not None:
                del self._texts[id]
                self.is_stale = True
                yield TextMessageEndEvent(message_id=id)
        elif text and facts["offset"] == len(before) and id not in self._known:  # else the reader has missed a part
            subagent = self.messages.find_subagent(log, event)
            message = AssistantMessage(id=id, name=event.author, content=before + text, subagent_run_id=subagent)
            yield from self._switch(subagent)
            if sent is None:
                yield _start_text(message)
            self._texts[id] = message
            yield TextMessageContentEvent(message_id=id, delta=text)

    def _send(self, log: Log, message: Message) -> Iterator[BaseEvent]:
        """Yield the events that give a whole message to the client, or the rest of one whose text was streamed."""
        subagent = message.subagent_run_id
        yield from self._switch(subagent)
        match message:
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
            case _:  # from another client, and perhaps with files; or progress, which replaces the one before
                self.is_stale = True

    def _send_text(self, message: AssistantMessage) -> Iterator[BaseEvent]:
        text, sent = message.content or "", self._texts.pop(message.id, None)
        before = (sent and sent.content) or ""
        if sent is None and text:
            yield _start_text(message)
        if not text.startswith(before):  # a callback has replaced the text
            self.is_stale = True
        elif rest := text.removeprefix(before):
            yield TextMessageContentEvent(message_id=message.id, delta=rest)
        if text or sent is not None:
            yield TextMessageEndEvent(message_id=message.id)

    def _switch(self, id: str | None) -> Iterator[BaseEvent]:
        """Close the sub-agents whose work is over, and announce the one that works now."""
        for over in [id for id, each in self._open.items() if each and each not in self.messages.active]:
            del self._open[over]
            yield SubagentFinishedEvent(subagent_run_id=over)
        if id and id not in self._open:
            self._open[id] = found = next(each for each in self.messages.active if each.id == id)
            yield SubagentStartedEvent(subagent_run_id=id, name=found.name)

    def _change_steps(self, steps: list[str]) -> Iterator[BaseEvent]:
        yield from (StepFinishedEvent(step_name=name) for name in self._steps if name not in steps)
        yield from (StepStartedEvent(step_name=name) for name in steps if name not in self._steps)
        self._steps = steps


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
    paths = {key: "/" + key.replace("~", "~0").replace("/", "~1") for key in {**old, **new}}
    return [
        {"op": "add", "path": path, "value": new[key]} if key in new else {"op": "remove", "path": path}
        for key, path in paths.items()
        if key not in new or key not in old or old[key] != new[key]
    ]


def count_tokens(log: Log, start: int = 0) -> list[TokenUsage] | None:
    """Return the usage of each model since an entry of the log, if any. That of called agents has no model."""
    used: list[TokenUsage] = []
    for entry in log.entries[start:]:
        if isinstance(entry.body, ModelReplied):
            reply = entry.body.reply
            summary = reply.compaction.usage if reply.compaction else None
            used.append(_format_usage(reply.model_version or reply.model, (reply.usage or NO_USAGE) + summary))
        elif isinstance(entry.body, ChildReturned):
            used.append(_format_usage(None, entry.body.result.usage))
    return [usage for usage in aggregate_token_usage(used) if usage.total_tokens] or None


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


def _start_text(message: AssistantMessage) -> BaseEvent:
    return TextMessageStartEvent(
        message_id=message.id, role="assistant", name=message.name, subagent_run_id=message.subagent_run_id
    )


def _texts_of(event: Event) -> Iterator[str]:
    return (part["text"] for part in (event.content or {}).get("parts") or ())
