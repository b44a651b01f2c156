"""Redact the events of one run: payloads by the types in which they were recorded, and Temporal's own texts."""

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message
from temporalio.api.common.v1 import Header, Link, Payload, Principal
from temporalio.api.enums.v1 import EventType, TaskQueueKind
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from waystation.core.budget import Used
from waystation.core.payload import decode, encode
from waystation.core.tool_call import ToolCallInput, ToolOutcome
from waystation.core.wire import (
    SEARCH_USER,
)
from waystation.history import type_of
from waystation.replay.redacted_kinds import ACTIVITIES, ENDED, MEMOS, MESSAGES, STARTED, Receipt
from waystation.replay.redacted_types import TypedRedactor
from waystation.replay.redacting import Redactor
from waystation.storage.driver import UNREADABLE

_IDS = frozenset(
    {
        *("workflow_id", "run_id", "activity_id", "timer_id", "update_id", "protocol_instance_id", "request_id"),
        *("original_execution_run_id", "first_execution_run_id", "continued_execution_run_id", "new_execution_run_id"),
        *("new_run_id", "base_run_id", "accepted_request_message_id", "rejected_request_message_id", "name", "type"),
        *("namespace", "namespace_id", "parent_workflow_namespace", "parent_workflow_namespace_id", "marker_name"),
        *("normal_name", "non_retryable_error_types", "cron_schedule", "sdk_name", "sdk_version", "source"),
        *("attached_request_id", "new_task_queue"),
    }
)
"""Texts of Temporal's own that are ids or names. All others are hidden under every rule: they name people, hosts and
builds."""
_DROPPED = (Header, Link, Principal)
_JSON = (b"json/plain", b"json/protobuf")


class HistoryRedactor:
    """Redacts the history of one run."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor, self._typed = redactor, TypedRedactor(redactor)
        self._activities: dict[int, str] = {}
        self._children: dict[int, str] = {}

    def of(self, history: WorkflowHistory) -> WorkflowHistory:
        """Return it redacted."""
        workflow_type = type_of(history)
        return WorkflowHistory(history.workflow_id, [self._event(event, workflow_type) for event in history.events])

    def _event(self, event: HistoryEvent, workflow_type: str) -> HistoryEvent:
        made = HistoryEvent()
        made.CopyFrom(event)
        kind = made.WhichOneof("attributes")
        made.ClearField("links")
        made.ClearField("principal")
        if made.HasField("user_metadata"):
            for payload in (made.user_metadata.summary, made.user_metadata.details):
                self._payload(payload, None, whole=True)
        if kind:
            attributes = getattr(made, kind)
            given = self._kinds(made, attributes, workflow_type)
            self._message(attributes, given)
        return made

    def _kinds(self, event: HistoryEvent, attributes: Any, workflow_type: str) -> Any:
        """Return as what the payloads of an event were recorded."""
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                return STARTED.get(workflow_type)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                return STARTED.get(workflow_type)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
                return ENDED.get(workflow_type)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED | EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED:
                return Used
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                self._activities[event.event_id] = attributes.activity_type.name
                return self._activity(event.event_id)[0]
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                return self._activity(attributes.scheduled_event_id)[1]
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                return STARTED.get(attributes.workflow_type.name)
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED:
                return ENDED.get(attributes.workflow_type.name)
            case (
                EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
                | EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED
            ):
                if attributes.signal_name not in MESSAGES:
                    attributes.signal_name = self._redactor.text(attributes.signal_name)
                    return None
                return MESSAGES[attributes.signal_name]
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                return MESSAGES.get(attributes.accepted_request.input.name)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
                return Receipt
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED:
                return MESSAGES.get(attributes.request.input.name)
            case _:
                return None

    def _activity(self, scheduled_id: int) -> tuple[Any, Any]:
        name = self._activities.get(scheduled_id, "")
        return ACTIVITIES.get(name, (ToolCallInput, ToolOutcome) if "." in name else (None, None))

    def _message(self, message: Message, kind: Any) -> None:
        """Redact a message of Temporal's in place; `kind` is that of the payloads of this event."""
        if isinstance(message, _DROPPED):
            message.Clear()
            return
        if isinstance(message, Failure):
            message.ClearField("stack_trace")
            message.ClearField("encoded_attributes")
            message.message = self._redactor.text(message.message)
        for descriptor, value in message.ListFields():
            name = descriptor.name
            if name in ("completion_callbacks", "nexus_header", "binary_checksum", "links"):
                message.ClearField(name)
            elif name == "message" and isinstance(message, Failure):
                pass
            elif name == "search_attributes":
                self._search_attributes(value.indexed_fields)
            elif name in ("memo", "upserted_memo"):
                self._memo(value.fields)
            elif descriptor.message_type and descriptor.message_type.GetOptions().map_entry:
                self._map(name, value, kind)
            elif descriptor.message_type:
                for each in value if descriptor.is_repeated else [value]:
                    if isinstance(each, Payload):
                        self._payload(each, kind)
                    else:
                        self._message(each, kind)
            elif isinstance(value, str) and not self._stays(message, name):
                setattr(message, name, self._redactor.stand_in(value))

    def _stays(self, message: Message, name: str) -> bool:
        """Whether a text of Temporal's own stays. The queue of one worker is named for its host."""
        sticky = getattr(message, "kind", None) == TaskQueueKind.TASK_QUEUE_KIND_STICKY
        return name == "signal_name" or (name in _IDS and not (name == "name" and sticky))

    def _map(self, name: str, held: Any, kind: Any) -> None:
        for key in list(held):
            value = held[key]
            if name == "details" and key in ("patch-data", "core_patch"):
                continue  # which part of the engine was taken; never content
            if hasattr(value, "payloads"):
                for payload in value.payloads:
                    self._payload(payload, None)
            elif isinstance(value, Payload):
                self._payload(value, None)
            elif isinstance(value, Message):
                self._message(value, kind)
            elif isinstance(value, str):
                held[key] = self._redactor.stand_in(value)

    def _memo(self, fields: Any) -> None:
        for name in list(fields):
            self._payload(fields[name], MEMOS.get(name))

    def _search_attributes(self, fields: Any) -> None:
        for name in list(fields):
            if not name.startswith("Waystation") or name == SEARCH_USER:
                self._payload(fields[name], None)

    def _payload(self, payload: Payload, kind: Any, *, whole: bool = False) -> None:
        """Redact a payload in place; `whole` when all of its texts are to go under every rule."""
        encoding = payload.metadata.get("encoding", b"")
        kept = {
            name: payload.metadata[name] for name in ("encoding", "messageType", "type") if name in payload.metadata
        }
        if not encoding and not payload.data:
            return
        payload.metadata.clear()
        payload.metadata.update(kept)
        if encoding not in _JSON:
            unreadable = encoding == UNREADABLE["encoding"]
            payload.data = b"It was not there when this was kept." if unreadable else b"x" * len(payload.data)
            return
        try:
            value = decode(payload.data)
        except ValueError:
            payload.data = b"\x00" * len(payload.data)  # no JSON, as before
            return
        payload.data = encode(self._value(value, kind, whole=whole))

    def _value(self, value: Any, kind: Any, *, whole: bool) -> Any:
        if whole:
            return self._redactor.stand_in(value) if isinstance(value, str) else None
        if isinstance(kind, Sequence) and isinstance(value, list):
            return [self._typed.of(kind[0], each) for each in value]
        if isinstance(kind, Sequence):
            kind = None
        return self._redactor.free(value) if kind is None else self._typed.of(kind, value)
