"""Redact what the engine records, by the types in which it records it.

What is an id, a name of an agent or a tool, or one of a few words stays; every other text is hidden when texts are, so
that a field which a later version adds is hidden unless somebody says here that it is none.
"""

import dataclasses
import re
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from waystation.core.answer import PendingCall
from waystation.core.call import CallState
from waystation.core.continued import Carried
from waystation.core.payload import Recorded
from waystation.core.segment import _KINDS as ENTRY_KINDS
from waystation.core.wire import InvocationInput, InvocationResult
from waystation.replay.redacting import Redactor

_KEPT = frozenset(
    {
        *("agent", "app", "author", "branch", "channels", "definition", "error_code", "error_type", "finish_reason"),
        *("id", "kind", "invocation_id", "model", "model_version", "name", "new", "next_agent", "next_turn", "notify"),
        *("omitted", "origin", "ref", "reports", "root", "run", "run_id", "session_id", "task_queue", "tool", "first"),
        *("transfer_to_agent", "unpriced", "workflow_id", "delivered", "failed", "last", "kept", "batch", "open"),
        *(
            "ask",
            "mark",
            "declared",
            "standing",
            "call",
            "remember_args",
            "occasion",
            "heard",
            "wrap_up",
            "wrapped_up",
            "status",
            "long_running_tool_ids",
            "home",
        ),
    }
)
"""Fields of text that hold ids, and names of what authors declare."""
_STATE_KEYS = frozenset({"removed_keys", "removed", "changed"})
_NAMED_BY_PEOPLE = frozenset({"artifact_delta", "answer_ids", "approved_by", "viewed_by"})
"""Fields whose keys are not the engine's."""
_CALL_ID = re.compile(r"(fc(-\d+){1,2}|budget-\d+)(-confirmation|-credential)?")
_ASKING = frozenset({"originalFunctionCall", "functionCallId"})
_ENTRIES = frozenset({"tail", "entries", "items"})
_PARTS = frozenset({"parts", "beside"})
_CONTENTS = frozenset({"content", "message", "compacted_content"})
_INSIDE: dict[tuple[str, str], Any] = {
    ("InvocationInput", "carried"): Carried,
    ("TakenOver", "input"): InvocationInput,
    ("ChildOutcome", "result"): InvocationResult,
}
"""Types that stand as plain JSON inside others."""


class TypedRedactor:
    """Redacts values of recorded types."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def of(self, kind: Any, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Return a value that was recorded as `kind`; one that is something else is redacted as any JSON."""
        if not isinstance(value, dict):
            return self._redactor.free(value, path)
        hints = _hints(kind)
        found = {}
        for name, item in value.items():
            if name not in hints:
                found.update(self._redactor.free({name: item}, path))
                continue
            at = (*path, name)
            if "budget" in (value.get("asked"), value.get("kind")) and name in ("args", "asks", "call", "hint"):
                found[name] = item  # which the engine wrote, and reads
            elif inside := _INSIDE.get((kind.__name__, name)):
                found[name] = self.of(inside, item, at)
            else:
                found[name] = self._field(kind, name, hints[name], item, at)
        return found

    def content(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Return a genai Content: roles, and the names and ids of calls, stay."""
        if not isinstance(value, dict):
            return self._redactor.free(value, path)
        parts = value.get("parts")
        found = self._redactor.free({key: item for key, item in value.items() if key not in ("role", "parts")}, path)
        if isinstance(parts, list):
            found["parts"] = [self.part(each, (*path, "parts")) for each in parts]
        elif "parts" in value:
            found["parts"] = self._redactor.free(parts, path)
        return {key: value["role"] if key == "role" else found[self._redactor.name(key)] for key in value}

    def part(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Return a part of a Content."""
        if not isinstance(value, dict):
            return self._redactor.free(value, path)
        found = {}
        for key, item in value.items():
            if key in ("functionCall", "functionResponse") and isinstance(item, dict):
                found[key] = {name: self._of_call(name, value, path) for name, value in item.items()}
            else:
                found.update(self._redactor.free({key: item}, path))
                if isinstance(item, dict) and "mimeType" in item:
                    found[key]["mimeType"] = item["mimeType"]
        return found

    def _of_call(self, name: str, value: Any, path: tuple[str, ...]) -> Any:
        if name in ("id", "name"):
            return value
        if name == "args" and isinstance(value, dict) and value.keys() & _ASKING:  # for a person; made by the engine
            return {
                key: {each: self._of_call(each, held, path) for each, held in item.items()}
                if key == "originalFunctionCall" and isinstance(item, dict)
                else item
                if key == "functionCallId"
                else self._redactor.free(item, (key,))
                for key, item in value.items()
            }
        if name == "parts" and isinstance(value, list):
            return [self.part(each, path) for each in value]
        return self._redactor.free(value, (name,))  # the same wherever it stands

    def _field(self, kind: Any, name: str, hint: Any, item: Any, path: tuple[str, ...]) -> Any:
        if name in _ENTRIES and isinstance(item, list):
            return [self._entry(each) for each in item]
        if name == "calls" and kind.__name__ == "Snapshot":
            return [self.of(CallState, each) for each in item]
        if name == "posted" and isinstance(item, list):
            return [self.of(PendingCall, each) for each in item]
        if name in ("args", "shown") and isinstance(item, dict):
            return self._redactor.free(item, ("args",))
        if name in ("response", "interim") and isinstance(item, dict):
            return self._redactor.free(item, ("response",))
        if name in _CONTENTS and isinstance(item, dict):
            return self.content(item, path)
        if name in _PARTS and isinstance(item, list):
            return [self.part(each, path) for each in item]
        if name == "held" and kind.__name__ == "KeptWork":
            return [[author, [self.part(each, path) for each in parts]] for author, parts in item]
        return self._value(kind, name, hint, item, path)

    def _value(self, kind: Any, name: str, hint: Any, item: Any, path: tuple[str, ...]) -> Any:
        match item:
            case str():
                return self._text(kind, name, hint, item, path)
            case list():
                of = _items(hint)
                pick = (lambda n: of[min(n, len(of) - 1)]) if of else (lambda _: Any)
                return [self._value(kind, name, pick(n), each, path) for n, each in enumerate(item)]
            case dict():
                if recorded := _recorded(hint):
                    return self.of(recorded, item, path)
                if (values := _values(hint)) is None:
                    return self._redactor.free(item, path)
                keys = self._redactor.text if name in _NAMED_BY_PEOPLE else str
                return {keys(key): self._value(kind, name, values, each, path) for key, each in item.items()}
            case int() | float() if _is_free(hint):
                return self._redactor.free(item, path)
            case _:
                return item

    def _text(self, kind: Any, name: str, hint: Any, item: str, path: tuple[str, ...]) -> str:
        if item in _words(hint) or (str not in _members(hint) and Any not in _members(hint)):
            return item if item in _words(hint) or not _words(hint) else self._redactor.text(item)
        if name in ("digest", "bound_to", "known_digest"):
            return self._redactor.digests.get(item, item)
        if name == "function_call_id":
            return item if _CALL_ID.fullmatch(item) else self._redactor.text(item)
        if name in _STATE_KEYS:
            return self._redactor.name(item)
        by_class = name in ("reason", "refused") and kind.__name__ in ("AnswerIgnored", "Review")
        if name in _KEPT or by_class:
            return item
        return self._redactor.hide(item) if self._redactor.rules.hides(path) else self._redactor.text(item)

    def _entry(self, entry: Any) -> Any:
        """Return an entry of a log as segments hold it."""
        if not isinstance(entry, dict) or entry.get("kind") not in ENTRY_KINDS:
            return self._redactor.free(entry)
        return {**entry, "body": self.of(ENTRY_KINDS[entry["kind"]], entry["body"])}


def _hints(kind: Any) -> dict[str, Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {name: info.annotation for name, info in kind.model_fields.items()}
        return fields | {info.alias: info.annotation for info in kind.model_fields.values() if info.alias}
    return get_type_hints(kind)


def _members(hint: Any) -> tuple[Any, ...]:
    """Return what a type is a union of; itself when it is none."""
    hint = getattr(hint, "__value__", hint)
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(member for each in get_args(hint) for member in _members(each))
    return _members(get_args(hint)[0]) if hasattr(hint, "__metadata__") else (hint,)


def _words(hint: Any) -> tuple[str, ...]:
    """Return the words of which a value is one."""
    return tuple(word for each in _members(hint) if get_origin(each) is Literal for word in get_args(each))


def _recorded(hint: Any) -> Any:
    """Return the recorded type among those that a value may have."""
    for each in _members(hint):
        if isinstance(each, type) and (issubclass(each, Recorded) or dataclasses.is_dataclass(each)):
            return each
    return None


def _items(hint: Any) -> tuple[Any, ...]:
    """Return the types of the items of a list: one for each place, the last for all that follow."""
    for each in _members(hint):
        if get_origin(each) in (tuple, list):
            return tuple(item for item in get_args(each) if item is not Ellipsis)
    return ()


def _values(hint: Any) -> Any:
    """Return the type of the values of a mapping; None when it is any JSON."""
    for each in _members(hint):
        if get_origin(each) is dict:
            _, values = get_args(each)
            return None if values is Any else (values or type(None))
    return None


def _is_free(hint: Any) -> bool:
    return Any in _members(hint)
