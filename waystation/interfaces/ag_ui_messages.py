"""The messages of AG-UI that show the events of an invocation. Pure: the same log always yields the same messages.

IDs are derived from recorded IDs, so that a client that reads a thread again, or twice, finds the same messages.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ag_ui.core import (
    ActivityMessage,
    AssistantMessage,
    AudioPart,
    ContentPart,
    DataSource,
    DocumentPart,
    FunctionCall,
    ImagePart,
    Message,
    ReasoningMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
    VideoPart,
)

from waystation.core import ids
from waystation.core.contract import Event, text_of
from waystation.core.log import REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, Log, ModelReplied
from waystation.core.payload import JsonObject, encode

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
    """Return a user's message as a content of the Gemini API."""
    if isinstance(message.content, str):
        return {"role": "user", "parts": [{"text": message.content}]}
    return {"role": "user", "parts": [_parse_part(part) for part in message.content]}


def _make_messages(log: Log, event: Event, id: str) -> Iterator[Message]:
    parts = (event.content or {}).get("parts") or ()
    started = log.state.input
    if event.author == "user" and parts and not event.function_responses():
        is_first = event.index == 0 and started is not None
        own = started.metadata.get(MESSAGE_ID) if is_first and started else None
        yield UserMessage(id=str(own or event.id), content=_format_parts(parts))
        return
    if thoughts := "".join(part["text"] for part in parts if part.get("thought") and part.get("text")):
        yield ReasoningMessage(id=f"{id}/thoughts", content=thoughts)
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


def _format_parts(parts: Iterable[JsonObject]) -> str | list[ContentPart]:
    shown = [part for part in map(_format_part, parts) if part]
    texts = [part.text for part in shown if isinstance(part, TextPart)]
    return shown if len(texts) < len(shown) else "".join(texts)


def _format_part(part: JsonObject) -> ContentPart | None:
    if text := part.get("text"):
        return TextPart(text=text)
    if data := part.get("inlineData"):
        kind = _MEDIA.get(data["mimeType"].partition("/")[0], DocumentPart)
        return kind(source=DataSource(value=data["data"], mime_type=data["mimeType"]))
    if file := part.get("fileData"):
        kind = _MEDIA.get((file.get("mimeType") or "").partition("/")[0], DocumentPart)
        return kind(source=UrlSource(value=file["fileUri"], mime_type=file.get("mimeType")))
    return None


def _parse_part(part: ContentPart) -> JsonObject:
    if isinstance(part, TextPart):
        return {"text": part.text}
    source = part.source
    if isinstance(source, DataSource):
        return {"inlineData": {"mimeType": source.mime_type, "data": source.value}}
    return {"fileData": {"fileUri": source.value, **({"mimeType": source.mime_type} if source.mime_type else {})}}
