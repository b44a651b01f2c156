"""Redact histories for readers who must not see their content. A hidden value is hidden wherever it occurs.

Event IDs, times, numbers, and the types and lengths of values are preserved, and equal values stay equal, so that the
engine makes the same decisions. Digests and messages derived from content are recomputed. Payloads that were in a store
or encoded by a codec are written into the history, which can then be read without the store and the codec.
"""

import base64
import functools
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args
from urllib.parse import unquote

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from waystation.core import ids
from waystation.core.approval import OPERATOR, ROLE, default_hint, is_encrypted
from waystation.core.contract import (
    ANSWER_SIGNAL,
    CHILD_ENDED_SIGNAL,
    CLOSE,
    DEFAULT_APP,
    DEFAULT_USER,
    GIVE_UP_SIGNAL,
    MEMO_FORK,
    MEMO_HELD,
    MEMO_PENDING,
    MEMO_SESSION,
    MESSAGE_SIGNAL,
    PARKED_SIGNAL,
    SEARCH_TENANT,
    SEARCH_USER,
    WORKFLOW,
)
from waystation.core.errors import WaystationError
from waystation.core.log import AnswerIgnored, HoldReason, Log
from waystation.core.payload import decode, encode
from waystation.core.scope_state import APPLY_SIGNAL
from waystation.core.secrets import SECRET_NAMES, looks_secret, named_secret
from waystation.history import (
    SavedHistory,
    build_log,
    check_readable,
    decode_histories,
    get_attributes,
    get_workflow_type,
    restore_carried_log,
    scheduled_by,
    starts_target,
)
from waystation.replay.replayer import divergence_of
from waystation.storage import UNREADABLE, encrypting, list_shortened

SECRETS, TEXT, FIELD = "secrets", "text", "field:"
MIN_SEARCHED_CHARS = 4
"""Minimum length of a hidden value that is also hidden inside other text. Shorter values may occur there by chance."""
MAX_ROUNDS = 10
"""Maximum number of rounds for recomputing digests and messages, because they may depend on each other."""
_DEFAULTS = frozenset({DEFAULT_USER, DEFAULT_APP, OPERATOR, OPERATOR.removeprefix(ROLE)})
"""Default names that the engine compares values with. They are never replaced."""
_PLAIN_KEY = re.compile(r"[A-Za-z_$][\w$.:-]{0,63}", re.ASCII)
_TOKENS = re.compile(
    r"\b(?:sk|pk|rk|gh[pousr]|xox[abprs]|glpat|hf)[-_][A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{35}"
    r"|\beyJ[\w-]{8,}|://[^/\s:@]+:[^/\s@]+@|-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:Bearer|Basic)\s+\S{6,}"
)
"""Matches keys and tokens of well-known formats, private keys, and passwords in URLs. Text with a match is hidden
completely, like text for which `looks_secret` is true."""
_ENGINE_TEXT = re.compile(
    r"max_\w+: the limit of [\d.]+ [a-z ]{,20} is used up|"
    + re.escape(default_hint("=")).replace("=", r"[\w.-]{1,64}"),
    re.ASCII,
)
"""Matches the engine's message about an exhausted budget and ADK's default hint, which are preserved."""
# One alphabet for each UTF-8 length of a character, so that payloads keep their lengths.
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "àáâãäåæçèéêëìíîï",
    "一丁七万丈三上下不与丐丑专且世丘",
    "😀😁😂😃😄😅😆😇😈😉😊😋😌😍😎😏",
)

Redact: TypeAlias = Callable[[Any], Any]

# Fields of recorded JSON to preserve. Text in all other fields counts as content, so new fields are hidden by default.
_NAMES = frozenset(
    {
        # ids
        *("id", "invocation_id", "function_call_id", "workflow_id", "run_id", "session_id", "ref", "new", "home"),
        *("origin", "first", "last", "kept", "batch", "open", "heard", "mark", "ask", "call", "standing", "branch"),
        *("next_turn", "long_running_tool_ids", "children", "run", "reports", "digest", "bound_to", "known_digest"),
        *("definition", "declared"),
        # names that user code declares
        *("agent", "app", "author", "channels", "delivered", "endpoint", "model", "model_version", "name"),
        *("next_agent", "notify", "parameters", "remember_args", "root", "service", "task_queue", "tool"),
        "tool_origin",
        *("transfer_to_agent", "unpriced"),
        # fixed words that the engine and models use, and durations
        *("action", "actions", "asked", "effect", "error_code", "error_type", "finish_reason", "gate", "hold", "kind"),
        *("occasion", "omitted", "on_exhausted", "on_expiry", "phase", "status", "trigger", "when_busy", "wrap_up"),
        *("wrapped_up", "after", "deadline", "reminders", "remember"),
    }
)
_ERRORS = frozenset({"reason", "refused"})
"""Fields that contain a message, which is redacted, or the name of an error or a hold, which is preserved."""
_STATE_KEYS = frozenset({"removed_keys", "removed", "changed"})
_KEYED_BY_ENGINE = frozenset({"by_index", "calls", "shares", "submitted"})
_KEYED_BY_PEOPLE = frozenset({"artifact_delta", "answer_ids", "approved_by", "edited_by", "receipts", "viewed_by"})
AUTHORED = {
    **{name: name for name in ("args", "response", "state", "state_delta", "scopes", "set", "payload", "output")},
    **{name: name for name in ("metadata", "grounding_metadata", "citation_metadata", "custom_metadata")},
    **{name: name for name in ("results", "requested_auth_configs", "render_ui_widgets", "response_schema")},
    **{name: name for name in ("confirmation", "usage_metadata", "content", "message", "compacted_content")},
    "parts": "parts",
    "beside": "parts",
    "shown": "args",
    "requested": "args",
    "fields": "response",
    "interim": "response",
    "values": "state",
}
"""Fields with JSON from user code, models and approvers, mapped to their names in rules. A value that occurs in several
fields has a single name, so it is hidden in all of them or in none."""
_GENAI_CALLS = frozenset({"functionCall", "functionResponse", "originalFunctionCall"})
_GENAI_WORDS = {
    "role": re.compile("user|model|function|tool"),
    "mimeType": re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}"),
    "functionCallId": re.compile(r"[\w.~:/-]{1,100}"),
}
_BUDGET_QUESTION = frozenset({"args", "asks", "call", "hint"})
"""Fields that the engine itself writes and reads when it requests more budget. They are preserved in such requests."""
_HARMLESS = frozenset({"credentialKey", "credential_key", "requestedAuthConfigs", "requested_auth_configs"})

# Temporal's events.
_RECORDS = frozenset(
    {
        *("workflow_execution_started", "workflow_execution_continued_as_new", "workflow_execution_completed"),
        *("workflow_execution_failed", "workflow_execution_signaled", "workflow_execution_update_accepted"),
        *("workflow_execution_update_admitted", "workflow_execution_update_completed", "activity_task_scheduled"),
        *(
            "activity_task_completed",
            "activity_task_failed",
            "start_child_workflow_execution_initiated",
            "child_workflow_execution_completed",
        ),
        *("child_workflow_execution_failed", "signal_external_workflow_execution_initiated", "marker_recorded"),
    }
)
"""History events whose payloads are written by the engine."""
_SIGNALS = frozenset(
    {ANSWER_SIGNAL, MESSAGE_SIGNAL, APPLY_SIGNAL, CLOSE, GIVE_UP_SIGNAL, PARKED_SIGNAL, CHILD_ENDED_SIGNAL}
)
_PAYLOAD_MAPS = {"search_attributes": "indexed_fields", "memo": "fields", "upserted_memo": "fields"}
"""Event fields with named payloads, mapped to the inner field that contains the payloads."""
_MEMOS = frozenset({MEMO_PENDING, MEMO_HELD, MEMO_SESSION, MEMO_FORK})
_IDS = frozenset(
    {
        *("workflow_id", "activity_id", "timer_id", "update_id", "protocol_instance_id", "request_id", "name", "type"),
        *("accepted_request_message_id", "rejected_request_message_id", "namespace", "namespace_id", "marker_name"),
        *("parent_workflow_namespace", "parent_workflow_namespace_id"),
        *("normal_name", "non_retryable_error_types", "cron_schedule", "sdk_name", "sdk_version", "source"),
        *("attached_request_id", "new_task_queue", "signal_name", "endpoint", "operation", "service"),
    }
)
"""Text fields of history events that are preserved because they contain IDs or names. Run IDs are preserved, too. All
other text fields except failure messages are always hidden, because they may name people, hosts and builds."""
_DROPPED = frozenset(
    {
        *("binary_checksum", "completion_callbacks", "encoded_attributes", "header", "links"),
        *("principal", "stack_trace"),
    }
)
_MARKS = frozenset({"patch-data", "core_patch", "data"})
"""Details of markers that the SDK itself writes: patches, and what it records about a local activity."""
_JSON = (b"json/plain", b"json/protobuf")


class InvalidRule(WaystationError):
    """The redaction rule is not valid.

    Use `secrets`, `text` or `field:NAME`.
    """


class NotRedacted(WaystationError):
    """Large values are missing, or the redacted history would differ from the original in more than its text.

    Use the store of the workers (`--store`). If the message names a difference, report it.
    """


@dataclass(frozen=True, slots=True)
class RedactionRules:
    """The redaction rules. Secrets are always hidden."""

    text: bool = False
    """Hide all text that people, models and tools wrote."""
    fields: tuple[tuple[str, ...], ...] = ()
    """Fields to hide. Each is given by its name or by the last names of its path."""

    @classmethod
    def of(cls, rules: Iterable[str]) -> "RedactionRules":
        """Parse rules of the form `secrets`, `text`, `field:NAME` or `field:some.path`.

        Raises:
            InvalidRule: A rule is not valid.
        """
        rules = list(rules)
        fields = {rule: tuple(rule.removeprefix(FIELD).split(".")) for rule in rules if rule.startswith(FIELD)}
        for rule in rules:
            if not all(fields.get(rule, ())) or rule not in (SECRETS, TEXT, *fields):
                raise InvalidRule(
                    f"{rule!r} is not a valid rule. Use `secrets`, `text` or `field:NAME`, such as field:email."
                )
        return cls(TEXT in rules, tuple(fields.values()))

    def hides(self, path: Sequence[str]) -> bool:
        """Return whether the value at a path is hidden, by a rule or because its name is that of a secret."""
        return named_secret(path[-1]) or any(tuple(path[-len(suffix) :]) == suffix for suffix in self.fields)


@dataclass
class Redactor:
    """Replaces values with tokens. Equal values get equal tokens."""

    rules: RedactionRules
    key: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    """A random key, so that no one can guess a value and check the guess against its token."""
    recomputed: dict[str, str] = field(default_factory=dict)
    """Digests and messages that the engine derives from content, mapped to those of the redacted content."""
    hidden: set[str] = field(default_factory=set)
    """Strings that are secrets or come from hidden fields. They are also hidden where other text contains them."""
    ids: set[str] = field(default_factory=set)
    """Strings that are preserved: run IDs, and the names inside the workflow IDs of sessions and users."""
    _tokens: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _pattern: re.Pattern[str] | None = None

    def search_for_hidden(self) -> None:
        """From now on, also hide strings in `hidden` inside other text, except those under `MIN_SEARCHED_CHARS`."""
        texts = sorted((text for text in self.hidden if len(text) >= MIN_SEARCHED_CHARS), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def recorded(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Redact JSON written by the engine. IDs, declared names and the engine's own words are preserved."""
        name = path[-1] if path else ""
        match value:
            case _ if name in AUTHORED:
                return self.redact_authored_json(value, (AUTHORED[name],), covered=self.rules.hides((AUTHORED[name],)))
            case list() if name == "held":  # parts that are not in an event yet, by author
                return [[author, self.redact_authored_json(parts, ("parts",))] for author, parts in value]
            case dict():
                is_budget_request = "budget" in (value.get("asked"), value.get("kind"))
                of_key = (
                    str if name in _KEYED_BY_ENGINE else self.text if name in _KEYED_BY_PEOPLE else self._redact_key
                )
                return {
                    of_key(key): item
                    if is_budget_request and key in _BUDGET_QUESTION
                    else self.recorded(item, (*path, key))
                    for key, item in value.items()
                }
            case list():
                return [self.recorded(item, path) for item in value]
            case str() if name in _STATE_KEYS:
                return self._redact_key(value)
            case str() if _is_name(name, value):
                return self.recomputed.get(value, value)
            case str():
                return self.hide(value) if path and self.rules.hides(path) else self.text(value)
            case _:
                return value

    def redact_authored_json(
        self, value: Any, path: tuple[str, ...] = (), *, covered: bool = False, texts: bool = False
    ) -> Any:
        """Redact JSON from user code, models or people. `covered` hides all values, `texts` only strings."""
        match value:
            case dict():
                return {
                    self._redact_key(key): self._redact_member(key, item, path, covered=covered, texts=texts)
                    for key, item in value.items()
                }
            case list():
                return [self.redact_authored_json(item, path, covered=covered, texts=texts) for item in value]
            case str():
                return self.hide(value) if covered or texts else self.text(value)
            case int() | float() if covered and not isinstance(value, bool):
                return self._replace_digits(value)
            case _:
                return value

    def _redact_member(
        self, key: str, item: Any, path: tuple[str, ...] = (), *, covered: bool = False, texts: bool = False
    ) -> Any:
        at = (*path, key)
        covered = covered or self.rules.hides(at)
        # Hide only strings under a secret's name: a number may be a count, as in `total_tokens`.
        texts = texts or (SECRET_NAMES.search(key) is not None and key not in _HARMLESS)
        if not (covered or texts):
            # In a genai `Content`, preserve roles, media types, and the names and IDs of calls.
            if isinstance(item, str) and key in _GENAI_WORDS and _GENAI_WORDS[key].fullmatch(item):
                return item
            if isinstance(item, dict) and key in _GENAI_CALLS:
                return {
                    name: value
                    if name in ("id", "name") and _is_name(name, value)
                    else self._redact_member(name, value)
                    for name, value in item.items()
                }
        return self.redact_authored_json(item, at, covered=covered, texts=texts)

    def _redact_key(self, key: str) -> str:
        if _PLAIN_KEY.fullmatch(key):
            return key
        return self.token(key) if self.rules.text else self._hide_inside(key)

    def text(self, text: str) -> str:
        """Redact a string according to the rules: all of it, only the hidden strings inside it, or nothing."""
        if known := self.recomputed.get(text):
            return known
        if self.rules.text or text in self.hidden:
            return self.token(text)
        if looks_secret(text) or _TOKENS.search(text):
            return self.hide(text)
        return self._hide_inside(text)

    def hide(self, text: str) -> str:
        """Hide a string, and remember it so that it is also hidden inside other text."""
        self.hidden.add(text)
        return self.token(text)

    def _hide_inside(self, text: str) -> str:
        return self._pattern.sub(lambda match: self.token(match[0]), text) if self._pattern else text

    def token(self, text: str) -> str:
        """Return the replacement for a string, which is always the same for the same string.

        Preserved IDs, default names, blank text and the engine's own text are returned unchanged.
        """
        if known := self.recomputed.get(text):
            return known
        if text in _DEFAULTS or text in self.ids or not text.strip() or _ENGINE_TEXT.fullmatch(text):
            return text
        if text.startswith(ROLE):
            return ROLE + self.token(text.removeprefix(ROLE))
        if (token := self._tokens.get(text)) is None:
            candidates = (self._make_token(text, attempt) for attempt in range(20))  # one letter has few tokens
            token = next((item for item in candidates if item not in self._taken), None) or self._make_token(text, 0)
            self._tokens[text] = token
            self._taken.add(token)
        return token

    def _make_token(self, text: str, attempt: int) -> str:
        stream = hashlib.shake_256(self.key + attempt.to_bytes(2, "big") + text.encode()).digest(len(text))
        letters = "".join(map(_letter, text, stream))
        if is_encrypted(text):  # the engine would refuse any other form
            head, *parts = text.split(".")
            head = base64.urlsafe_b64encode(json.dumps({"enc": "x"}).encode()).decode().rstrip("=") if head else ""
            return ".".join([head, *(letters[: len(part)] for part in parts)])
        # The engine refused this answer because it looks like a secret, so its replacement must look like one, too.
        return f"?code={letters[6:]}" if looks_secret(text) else letters

    def _replace_digits(self, value: float) -> float:
        """Replace the digits of a number without changing how many digits it has.

        Infinity, NaN and numbers written with an exponent are returned unchanged.
        """
        written = repr(value)
        if "e" in written or "n" in written:
            return value
        stream = hashlib.shake_256(self.key + written.encode()).digest(len(written))
        digits = (str(1 + byte % 9) if char.isdigit() else char for char, byte in zip(written, stream, strict=True))
        return type(value)("".join(digits))


def _is_name(field: str, text: Any) -> bool:
    if field in _ERRORS:
        return text in get_args(HoldReason) or re.fullmatch(r"[A-Z][A-Za-z]+", text) is not None
    return field in _NAMES and not re.search(r"\s", str(text))


def _letter(char: str, byte: int) -> str:
    if char in '"\\' or char < " ":  # JSON escapes these characters
        return char
    alphabet = _ALPHABETS[len(char.encode()) - 1]
    return alphabet[byte % len(alphabet)]


def redact_history(history: WorkflowHistory, redactor: Redactor) -> WorkflowHistory:
    """Redact the history of one run: its payloads, and the text in Temporal's own fields."""
    targets: set[int] = set()
    return WorkflowHistory(history.workflow_id, [_redact_event(event, redactor, targets) for event in history.events])


def _redact_event(event: HistoryEvent, redactor: Redactor, targets: set[int]) -> HistoryEvent:
    """Return a redacted copy of an event. `targets` collects the IDs of the events that scheduled code of the user."""
    redacted = HistoryEvent()
    redacted.CopyFrom(event)
    kind = redacted.WhichOneof("attributes") or ""
    redact = redactor.recorded if kind.removesuffix("_event_attributes") in _RECORDS else redactor.redact_authored_json
    attributes = get_attributes(redacted)
    signal = getattr(attributes, "signal_name", None)
    if signal is not None and signal not in _SIGNALS:
        attributes.signal_name, redact = redactor.text(signal), redactor.redact_authored_json
    if starts_target(event):
        targets.add(event.event_id)
        redact = functools.partial(redactor.redact_authored_json, path=("args",))
    elif scheduled_by(attributes) in targets:
        redact = functools.partial(redactor.redact_authored_json, path=("response",))
    _redact_message(redacted, redactor, redact)
    return redacted


def _redact_message(message: Any, redactor: Redactor, redact: Redact) -> None:
    """Redact a protobuf message in place."""
    for descriptor, value in message.ListFields():
        name = descriptor.name
        if name in _DROPPED:
            message.ClearField(name)
        elif name == "nexus_header":
            for key in value.keys() - {ids.CALL_HEADER}:
                del value[key]
        elif name == "user_metadata":
            _redact_message(value, redactor, lambda text: redactor.token(text) if isinstance(text, str) else None)
        elif name in _PAYLOAD_MAPS:
            for key, payload in getattr(value, _PAYLOAD_MAPS[name]).items():
                if (
                    name != "search_attributes"
                    or key in (SEARCH_TENANT, SEARCH_USER)
                    or not key.startswith("Waystation")
                ):
                    _redact_payload(payload, redactor.recorded if key in _MEMOS else redactor.redact_authored_json)
        elif descriptor.message_type and descriptor.message_type.GetOptions().map_entry:
            for key in value.keys() - _MARKS:
                if isinstance(value[key], str):
                    value[key] = redactor.token(value[key])
                else:
                    _redact_message(value[key], redactor, redact)
        elif descriptor.message_type:
            for item in value if descriptor.is_repeated else [value]:
                if isinstance(item, Payload):
                    _redact_payload(item, redact)
                else:
                    _redact_message(item, redactor, redact)
        elif isinstance(value, str):
            sticky = getattr(message, "kind", None) == TaskQueueKind.TASK_QUEUE_KIND_STICKY  # named after its host
            if isinstance(message, Failure) and name == "message":
                message.message = redactor.text(value)
            elif name.endswith("run_id"):
                redactor.ids.add(value)
            elif name not in _IDS or (name == "name" and sticky):
                setattr(message, name, redactor.token(value))


def _redact_payload(payload: Payload, redact: Redact) -> None:
    encoding = payload.metadata.get("encoding", b"")
    if not encoding and not payload.data:
        return
    for name in payload.metadata.keys() - {"encoding", "messageType", "type"}:
        del payload.metadata[name]
    if encoding not in _JSON:
        unreadable = encoding == UNREADABLE["encoding"]
        payload.data = b"Missing when this history was redacted." if unreadable else b"x" * len(payload.data)
        return
    try:
        payload.data = encode(redact(decode(payload.data)))
    except ValueError:
        payload.data = b"\x00" * len(payload.data)  # not JSON before, and not after


async def redact(saved: SavedHistory, rules: Iterable[str], *, converter: DataConverter | None = None) -> SavedHistory:
    """Redact histories, including those of called agents.

    Args:
        saved: The histories as they are stored on the server.
        rules: The rules to apply: `secrets`, `text` or `field:NAME`; see `RedactionRules`.
        converter: Decodes payloads that are in a store or that a codec encoded.

    Raises:
        InvalidRule: A rule is not valid.
        NotRedacted: The engine would handle the redacted history differently, or large values are missing from the
            store.
        ForeignHistory: A history is damaged or was not recorded by Waystation.
    """
    converter = converter or encrypting()
    decoded = await _decode(saved, converter)
    if short := list_shortened(converter):
        raise NotRedacted(
            f"{len(short)} large values are missing, and the history cannot be redacted without them. "
            f"Set --store to the workers' store. {next(iter(short.values()))}"
        )
    redactor = Redactor(RedactionRules.of(rules))
    for part in _iterate(decoded):
        kind, *names = part.histories[0].workflow_id.split("/")
        if kind in ("session", "user"):  # these IDs contain names of users and tenants
            redactor.ids.update(
                part for name in map(unquote, names) for part in (name, *ids.parse_app_key(name)) if part
            )
    _redact_all(decoded, redactor)  # collects ids and hidden texts
    redactor.search_for_hidden()
    result = _redact_all(decoded, redactor)
    for _ in range(MAX_ROUNDS):
        known = dict(redactor.recomputed)
        redactor.recomputed |= _recompute(decoded, result)
        if redactor.recomputed == known:
            break
        result = _redact_all(decoded, redactor)
    _check_same_entries(decoded, result)
    for before, after in zip(_iterate(decoded), _iterate(result), strict=True):
        for one, other in zip(before.histories, after.histories, strict=True):
            if (divergence := await divergence_of(other)) and await divergence_of(one) is None:
                raise NotRedacted(
                    f"With these rules, redacted {one.workflow_id!r} would not replay: {divergence}. "
                    "Please report this."
                )
    return result


async def _decode(saved: SavedHistory, converter: DataConverter) -> SavedHistory:
    histories = await decode_histories(saved.histories, converter)
    check_readable(histories, f"The history of {histories[0].workflow_id!r}")
    return SavedHistory(histories, [await _decode(agent, converter) for agent in saved.called])


def _iterate(saved: SavedHistory) -> Iterator[SavedHistory]:
    yield saved
    for agent in saved.called:
        yield from _iterate(agent)


def _redact_all(saved: SavedHistory, redactor: Redactor) -> SavedHistory:
    histories = [redact_history(history, redactor) for history in saved.histories]
    return SavedHistory(histories, [_redact_all(agent, redactor) for agent in saved.called])


def _read_logs(before: SavedHistory, after: SavedHistory) -> Iterator[tuple[SavedHistory, Log, SavedHistory, Log]]:
    """Yield each invocation's history and log before redaction, followed by those after redaction."""
    for one, other in zip(_iterate(before), _iterate(after), strict=True):
        if get_workflow_type(one.histories[0]) == WORKFLOW:
            yield one, build_log(one.histories), other, build_log(other.histories)


def _recompute(before: SavedHistory, after: SavedHistory) -> dict[str, str]:
    """Map the digests and messages that the engine derives from content to those derived from redacted content."""
    messages: list[tuple[str | None, str | None]] = []
    digests: list[tuple[str | None, str | None]] = []
    for saved, one, redacted, other in _read_logs(before, after):
        messages.append((one.state.result().reason, other.state.result().reason))
        if one.state.outcome.failure and other.state.outcome.failure:
            messages.append((one.state.outcome.failure.message, other.state.outcome.failure.message))
        first, second = restore_carried_log(one, saved.histories), restore_carried_log(other, redacted.histories)
        for was, now in zip(one.entries, other.entries, strict=False):
            if isinstance(was.body, AnswerIgnored) and isinstance(now.body, AnswerIgnored):
                messages.append((was.body.message, now.body.message))  # it names approvers
            first.append(was.ref, was.time, was.body)
            second.append(now.ref, now.time, now.body)
            for call in first.state.calls.values():
                twin = second.state.calls.get(call.id)
                if twin and call.known_digest is None and (call.ever_waits or call.declared is not None):
                    digests += [(call.digest, twin.digest), (call.approved_digest, twin.approved_digest)]
            digests += [
                (a.bound_to, b.bound_to)
                for a, b in zip(first.state.approvals.standing, second.state.approvals.standing, strict=False)
            ]
    changed = [(old, new) for old, new in digests if old != new]
    return {old: new for old, new in (*messages, *changed) if old and new}


def _check_same_entries(before: SavedHistory, after: SavedHistory) -> None:
    """Check that redaction did not change the sequence of entries or calls.

    Raises:
        NotRedacted: An entry or a call differs.
    """
    for _, one, _, other in _read_logs(before, after):
        steps = [[(entry.ref, type(entry.body).__name__) for entry in log.entries] for log in (one, other)]
        for number, (left, right) in enumerate(zip(*steps, strict=False), 1):
            if left != right:
                raise NotRedacted(
                    f"With these rules, redacted {one.invocation_id!r} would differ at entry {number}: {right} "
                    f"instead of {left}. Please report this. Other rules may work."
                )
        if len(one.entries) != len(other.entries) or list(one.state.calls) != list(other.state.calls):
            raise NotRedacted(
                f"With these rules, redacted {one.invocation_id!r} would end differently. Please report this."
            )
