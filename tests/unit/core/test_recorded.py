"""Recorded types stay readable, because histories outlive the code that wrote them."""

from collections.abc import Hashable
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from waystation import core
from waystation.core.budget import Budget
from waystation.core.contract import EventActions, wire
from waystation.core.payload import Recorded


def recorded_types() -> list[type[Recorded]]:
    """Return every subclass of Recorded in the core."""
    for module in walk_packages(core.__path__, "waystation.core."):
        import_module(module.name)  # imported so that its types are known
    types, waiting = [], [Recorded]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            types.append(kind)
            waiting.append(kind)
    return [kind for kind in types if kind.__module__.startswith("waystation.core.")]


def test_recorded_types_are_frozen_and_ignore_unknown_fields() -> None:
    """An older version ignores fields that a newer one added."""
    configs = {kind.__name__: (kind.model_config["frozen"], kind.model_config["extra"]) for kind in recorded_types()}
    assert {name: config for name, config in configs.items() if config != (True, "ignore")} == {}


def test_defaults_of_recorded_types_are_constant() -> None:
    """A default that reads a clock or random numbers would differ on replay."""
    constant = (None, dict, Budget, EventActions)
    fields = [(kind.__name__, *item) for kind in recorded_types() for item in kind.model_fields.items()]
    assert [(kind, name) for kind, name, field in fields if field.default_factory not in constant] == []


def test_no_default_is_copied() -> None:
    """Every default is hashable, because pydantic copies other defaults, which is slow."""
    fields = [(kind.__name__, *item) for kind in recorded_types() for item in kind.model_fields.items()]
    assert [(kind, name) for kind, name, field in fields if not isinstance(field.default, Hashable)] == []


REQUIRED = {
    "Mac": {"key", "code"},
    "Target": {"name"},
    "SignedApproval": {"who", "action", "digest", "asked", "wait", "at"},
    "SignedRequest": {"invocation_id"},
    "ApprovalPolicy": set[str](),
    "Escalation": {"after", "to"},
    "NoticeReport": set[str](),
    "NotifyInput": {"at", "new", "function_call_id", "occasion", "channels"},
    "Verification": set[str](),
    "VerificationInput": {"at", "new", "ref", "call"},
    "RememberedApproval": {"agent", "tool", "args", "bound_to", "by", "until", "origin"},
    "Verified": {"subject"},
    "AgentSpec": {"name"},
    "Archived": {"upto"},
    "ArchiveInput": {"at", "new", "since"},
    "CollectInput": {"number", "since"},
    "Collected": {"number", "status"},
    "CarriedSession": set[str](),
    "StoredTranscript": set[str](),
    "InvocationReport": {"since"},
    "SessionArchiveInput": set[str](),
    "SessionInput": {"agent", "session_id"},
    "SessionLink": {"number"},
    "SessionMessage": {"message"},
    "StateChange": {"state"},
    "Turn": {"n", "status"},
    "Answer": {"function_call_id", "action"},
    "Budget": set[str](),
    "Call": {"id"},
    "Authored": set[str](),
    "Compaction": {"trigger", "covered", "start_timestamp", "end_timestamp"},
    "Carried": {"run_id", "snapshot"},
    "ChildInput": {"at", "new", "workflow_id", "run_id"},
    "ChildOutcome": set[str](),
    "Confirmation": set[str](),
    "Covered": {"first", "last"},
    "Event": {"invocation_id", "author"},
    "EventActions": set[str](),
    "EventCompaction": {"start_timestamp", "end_timestamp", "compacted_content"},
    "Failure": {"kind"},
    "Fork": {"invocation_id", "event"},
    "Grant": set[str](),
    "InvocationInput": {"agent", "message"},
    "InvocationResult": set[str](),
    "ModelCallInput": {"at", "new", "agent", "number"},
    "ModelReply": set[str](),
    "OutgoingEvent": {"agent", "app", "endpoints", "event", "invocation_id", "key", "time", "user_id"},
    "UnknownOutcome": {"args", "declared", "function_call_id", "policy", "tool"},
    "PartialText": {"agent", "number", "attempt", "offset", "text", "length"},
    "PendingCall": {
        "function_call_id", "invocation_id", "agent", "tool", "args", "kind", "digest", "requested_at", "deadline",
        "user_id",
    },
    "Position": {"at", "new"},
    "Price": {"prompt", "output"},
    "BodyEvent": set[str](),
    "CallbackResult": set[str](),
    "RateState": set[str](),
    "RefusedDelta": {"reason"},
    "ScopeDelivery": {"at", "new", "after", "last"},
    "ScopeDelta": {"id"},
    "ScopeReport": set[str](),
    "ScopeSnapshot": set[str](),
    "SegmentRef": {"digest", "size", "entries"},
    "Snapshot": {"entries", "invocation"},
    "Spent": set[str](),
    "ToolCallInput": {"at", "new", "function_call_id"},
    "ToolConfirmation": set[str](),
    "TakenOver": {"input", "snapshot"},
    "ToolOutcome": set[str](),
    "PushConfig": {"url", "id"},
    "PushReport": {"sent"},
    "PushTask": {"invocation_id", "context_id", "task_id", "number", "config"},
    "Usage": set[str](),
    "Used": set[str](),
}  # fmt: skip


def test_recorded_types_gain_only_optional_fields() -> None:
    """Only fields that were required in the first release are required."""
    required = {
        kind.__name__: {name for name, field in kind.model_fields.items() if field.is_required()}
        for kind in recorded_types()
    }
    assert required == REQUIRED


def test_an_input_of_a_newer_version_is_read() -> None:
    """Unknown fields of an input are ignored."""
    fields: dict[str, Any] = {"agent": "a", "message": "m", "from_the_future": {"x": 1}}
    assert wire.InvocationInput.model_validate(fields).agent == "a"
