"""Redact histories for readers who must not see their content: what a rule hides is hidden wherever it occurs.

Event ids, times, numbers, and the types and lengths of values stay, and equal values stay equal, so the engine decides
the same. Digests and messages that it computes from content are recomputed. Payloads from a store or behind a codec
are put into the history, which then replays and reads as before without either.
"""

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from waystation.core import (
    ANSWER_SIGNAL,
    APPLY_SIGNAL,
    CHILD_ENDED_SIGNAL,
    CLOSE,
    DEFAULT_APP,
    DEFAULT_USER,
    MEMO_FORK,
    MEMO_PENDING,
    MEMO_SESSION,
    MESSAGE_SIGNAL,
    OPERATOR,
    PARKED_SIGNAL,
    ROLE,
    SEARCH_USER,
    SECRET_NAMES,
    WORKFLOW,
    AnswerIgnored,
    Log,
    WaystationError,
    decode,
    encode,
    is_sealed,
    looks_secret,
    named_secret,
)
from waystation.history import (
    SavedHistory,
    attributes_of,
    carried_log,
    check_readable,
    decode_histories,
    log_of,
    type_of,
)
from waystation.replay.replayer import divergence_of
from waystation.storage import UNREADABLE, shortened

SECRETS, TEXT, FIELD = "secrets", "text", "field:"
MIN_SEARCHED_CHARS = 4
"""A hidden value that is shorter is not searched for in other texts, where it would be found by chance."""
MAX_ROUNDS = 10
"""How often digests and messages are recomputed at most: those of one round may depend on those of the one before."""
_DEFAULTS = frozenset({DEFAULT_USER, DEFAULT_APP, OPERATOR, OPERATOR.removeprefix(ROLE)})
"""Names that histories leave out and the engine compares with."""
_PLAIN_KEY = re.compile(r"[A-Za-z_$][\w$.:-]{0,63}", re.ASCII)
_TOKENS = re.compile(
    r"\b(?:sk|pk|rk|gh[pousr]|xox[abprs]|glpat|hf)[-_][A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{35}"
    r"|\beyJ[\w-]{8,}|://[^/\s:@]+:[^/\s@]+@|-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:Bearer|Basic)\s+\S{6,}"
)
"""Keys of well-known services, in addition to what no history takes in the first place."""
_USED_UP = re.compile(r"max_\w+: the limit of [\d.]+ [a-z ]{,20} is used up", re.ASCII)
"""The engine's message about a budget."""
# One letter for each length that a character may have in UTF-8, so that a payload stays as long.
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "àáâãäåæçèéêëìíîï",
    "一丁七万丈三上下不与丐丑专且世丘",
    "😀😁😂😃😄😅😆😇😈😉😊😋😌😍😎😏",
)

Redact: TypeAlias = Callable[[Any], Any]

# Recorded JSON. A text under any other name is hidden with all text, so a field that a later version adds is hidden.
_NAMES = frozenset(
    {
        # ids
        *("id", "invocation_id", "function_call_id", "workflow_id", "run_id", "session_id", "ref", "new", "home"),
        *("origin", "first", "last", "kept", "batch", "open", "heard", "mark", "ask", "call", "standing", "branch"),
        *("next_turn", "long_running_tool_ids", "children", "run", "reports", "digest", "bound_to", "known_digest"),
        *("definition", "declared"),
        # names that authors declare
        *("agent", "app", "author", "channels", "delivered", "model", "model_version", "name", "next_agent", "notify"),
        *("remember_args", "root", "task_queue", "tool", "transfer_to_agent", "unpriced"),
        # words of the engine and of models, and durations
        *("action", "actions", "asked", "effect", "error_code", "error_type", "finish_reason", "gate", "kind"),
        *("occasion", "omitted", "on_exhausted", "on_expiry", "phase", "status", "trigger", "when_busy", "wrap_up"),
        *("wrapped_up", "after", "deadline", "reminders", "remember"),
    }
)
_ERRORS = frozenset({"reason", "refused"})
"""Fields with the name of an error or with a message."""
_STATE_KEYS = frozenset({"removed_keys", "removed", "changed"})
_KEYED_BY_ENGINE = frozenset({"by_index", "calls", "shares", "submitted"})
_KEYED_BY_PEOPLE = frozenset({"artifact_delta", "answer_ids", "approved_by", "viewed_by"})
AUTHORED = {
    **{name: name for name in ("args", "response", "state", "state_delta", "scopes", "set", "payload", "output")},
    **{name: name for name in ("metadata", "grounding_metadata", "citation_metadata", "custom_metadata")},
    **{name: name for name in ("results", "requested_auth_configs", "render_ui_widgets", "response_schema")},
    **{name: name for name in ("confirmation", "usage_metadata", "content", "message", "compacted_content")},
    "parts": "parts",
    "beside": "parts",
    "shown": "args",
    "interim": "response",
    "values": "state",
}
"""Fields with JSON of authors, models and people, each with its name in rules: the same value under several names is
hidden under each of them, or under none."""
_GENAI_CALLS = frozenset({"functionCall", "functionResponse", "originalFunctionCall"})
_GENAI_WORDS = {
    "role": re.compile("user|model|function|tool"),
    "mimeType": re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}"),
    "functionCallId": re.compile(r"[\w.~:/-]{1,100}"),
}
_BUDGET_QUESTION = frozenset({"args", "asks", "call", "hint"})
"""Fields that the engine writes, and reads, when it asks for more budget."""
_HARMLESS = frozenset({"credentialKey", "credential_key", "requestedAuthConfigs", "requested_auth_configs"})

# Temporal's events.
_RECORDS = frozenset(
    {
        *("workflow_execution_started", "workflow_execution_continued_as_new", "workflow_execution_completed"),
        *("workflow_execution_failed", "workflow_execution_signaled", "workflow_execution_update_accepted"),
        *("workflow_execution_update_admitted", "workflow_execution_update_completed", "activity_task_scheduled"),
        *("activity_task_completed", "start_child_workflow_execution_initiated", "child_workflow_execution_completed"),
        *("child_workflow_execution_failed", "signal_external_workflow_execution_initiated"),
    }
)
"""Events whose payloads the engine records."""
_SIGNALS = frozenset({ANSWER_SIGNAL, MESSAGE_SIGNAL, APPLY_SIGNAL, CLOSE, PARKED_SIGNAL, CHILD_ENDED_SIGNAL})
_PAYLOAD_MAPS = {"search_attributes": "indexed_fields", "memo": "fields", "upserted_memo": "fields"}
"""Fields of events whose payloads have names, each with the field in it that holds them."""
_MEMOS = frozenset({MEMO_PENDING, MEMO_SESSION, MEMO_FORK})
_IDS = frozenset(
    {
        *("workflow_id", "activity_id", "timer_id", "update_id", "protocol_instance_id", "request_id", "name", "type"),
        *("accepted_request_message_id", "rejected_request_message_id", "namespace", "namespace_id", "marker_name"),
        *("parent_workflow_namespace", "parent_workflow_namespace_id"),
        *("normal_name", "non_retryable_error_types", "cron_schedule", "sdk_name", "sdk_version", "source"),
        *("attached_request_id", "new_task_queue", "signal_name"),
    }
)
"""Texts that are ids or names, besides ids of runs. All others are hidden under every rule: they name people, hosts
and builds."""
_DROPPED = frozenset(
    {
        *("binary_checksum", "completion_callbacks", "encoded_attributes", "header", "links", "nexus_header"),
        *("principal", "stack_trace"),
    }
)
_PATCHES = frozenset({"patch-data", "core_patch"})
_JSON = (b"json/plain", b"json/protobuf")


class InvalidRule(WaystationError):
    """Not a valid rule of redaction."""


class NotRedacted(WaystationError):
    """The redacted history would not be that of the same invocation."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What is hidden. Secrets always are."""

    text: bool = False
    """All text that people, models and tools wrote."""
    fields: tuple[tuple[str, ...], ...] = ()
    """Fields by name, or by the last names of their paths."""

    @classmethod
    def of(cls, rules: Iterable[str]) -> "Rules":
        """Parse rules: `secrets`, `text`, `field:NAME`, `field:some.path`.

        Raises:
            InvalidRule: One is not valid.
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
        """Whether the value at a path is hidden because of its name."""
        return named_secret(path[-1]) or any(tuple(path[-len(each) :]) == each for each in self.fields)


@dataclass
class Redactor:
    """Hides values by rules, equal ones in the same way wherever they occur."""

    rules: Rules
    key: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    """Without it nobody can try out what a value was."""
    recomputed: dict[str, str] = field(default_factory=dict)
    """Digests and messages that the engine computes from content, with those of the redacted content."""
    hidden: set[str] = field(default_factory=set)
    """Texts hidden otherwise than by the rule for all text; they are searched for in other texts."""
    ids: set[str] = field(default_factory=set)
    """Ids of runs, and names of which ids are made; they stay."""
    _tokens: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _pattern: re.Pattern[str] | None = None

    def search_for_hidden(self) -> None:
        """From now on also hide in other texts what was hidden so far."""
        texts = sorted((text for text in self.hidden if len(text) >= MIN_SEARCHED_CHARS), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def recorded(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Return JSON of the engine: ids, names that authors declare and words of the engine stay."""
        name = path[-1] if path else ""
        match value:
            case _ if name in AUTHORED:
                return self.authored(value, (AUTHORED[name],), covered=self.rules.hides((AUTHORED[name],)))
            case list() if name == "held":  # parts that are not in an event yet, by author
                return [[author, self.authored(parts, ("parts",))] for author, parts in value]
            case dict():
                asks_for_budget = "budget" in (value.get("asked"), value.get("kind"))
                of_key = str if name in _KEYED_BY_ENGINE else self.text if name in _KEYED_BY_PEOPLE else self._key
                return {
                    of_key(key): item
                    if asks_for_budget and key in _BUDGET_QUESTION
                    else self.recorded(item, (*path, key))
                    for key, item in value.items()
                }
            case list():
                return [self.recorded(item, path) for item in value]
            case str() if name in _STATE_KEYS:
                return self._key(value)
            case str() if _is_name(name, value):
                return self.recomputed.get(value, value)
            case str():
                return self.hide(value) if path and self.rules.hides(path) else self.text(value)
            case _:
                return value

    def authored(self, value: Any, path: tuple[str, ...] = (), *, covered: bool = False, texts: bool = False) -> Any:
        """Return JSON of authors, models or people; a name above it hides all of it (`covered`) or its texts."""
        match value:
            case dict():
                return {
                    self._key(key): self._member(key, item, path, covered=covered, texts=texts)
                    for key, item in value.items()
                }
            case list():
                return [self.authored(item, path, covered=covered, texts=texts) for item in value]
            case str():
                return self.hide(value) if covered or texts else self.text(value)
            case int() | float() if covered and not isinstance(value, bool):
                return self._number(value)
            case _:
                return value

    def _member(
        self, key: str, item: Any, path: tuple[str, ...] = (), *, covered: bool = False, texts: bool = False
    ) -> Any:
        at = (*path, key)
        covered = covered or self.rules.hides(at)
        # A number under such a name may be a count, as in `total_tokens`.
        texts = texts or (SECRET_NAMES.search(key) is not None and key not in _HARMLESS)
        if not (covered or texts):
            # Of a genai Content roles, media types, and the names and ids of calls stay.
            if isinstance(item, str) and key in _GENAI_WORDS and _GENAI_WORDS[key].fullmatch(item):
                return item
            if isinstance(item, dict) and key in _GENAI_CALLS:
                return {
                    name: value if name in ("id", "name") and _is_name(name, value) else self._member(name, value)
                    for name, value in item.items()
                }
        return self.authored(item, at, covered=covered, texts=texts)

    def _key(self, key: str) -> str:
        if _PLAIN_KEY.fullmatch(key):
            return key
        return self.token(key) if self.rules.text else self._search(key)

    def text(self, text: str) -> str:
        """Return a text of anybody's."""
        if known := self.recomputed.get(text):
            return known
        if self.rules.text or text in self.hidden:
            return self.token(text)
        if looks_secret(text) or _TOKENS.search(text):
            return self.hide(text)
        return self._search(text)

    def hide(self, text: str) -> str:
        """Return the token of a text that is hidden everywhere."""
        self.hidden.add(text)
        return self.token(text)

    def _search(self, text: str) -> str:
        return self._pattern.sub(lambda match: self.token(match[0]), text) if self._pattern else text

    def token(self, text: str) -> str:
        """Return what replaces a text."""
        if known := self.recomputed.get(text):
            return known
        if text in _DEFAULTS or text in self.ids or not text.strip() or _USED_UP.fullmatch(text):
            return text
        if text.startswith(ROLE):
            return ROLE + self.token(text.removeprefix(ROLE))
        if (token := self._tokens.get(text)) is None:
            made = (self._made(text, attempt) for attempt in range(20))  # of one letter there are not many
            token = next((each for each in made if each not in self._taken), None) or self._made(text, 0)
            self._tokens[text] = token
            self._taken.add(token)
        return token

    def _made(self, text: str, attempt: int) -> str:
        stream = hashlib.shake_256(self.key + attempt.to_bytes(2, "big") + text.encode()).digest(len(text))
        letters = "".join(map(_letter, text, stream))
        if is_sealed(text):  # an answer with any other token would have been refused
            head, *parts = text.split(".")
            head = base64.urlsafe_b64encode(json.dumps({"enc": "x"}).encode()).decode().rstrip("=") if head else ""
            return ".".join([head, *(letters[: len(part)] for part in parts)])
        # An answer that looked like a secret was refused for that, and has to look like one.
        return f"?code={letters[6:]}" if looks_secret(text) else letters

    def _number(self, value: float) -> float:
        """Return another number with as many digits."""
        written = repr(value)
        if "e" in written or "n" in written:
            return value
        stream = hashlib.shake_256(self.key + written.encode()).digest(len(written))
        digits = (str(1 + byte % 9) if char.isdigit() else char for char, byte in zip(written, stream, strict=True))
        return type(value)("".join(digits))


def _is_name(field: str, text: Any) -> bool:
    if field in _ERRORS:
        return re.fullmatch(r"[A-Z][A-Za-z]+", text) is not None
    return field in _NAMES and not re.search(r"\s", str(text))


def _letter(char: str, byte: int) -> str:
    if char in '"\\' or char < " ":  # JSON writes it as two characters or more
        return char
    alphabet = _ALPHABETS[len(char.encode()) - 1]
    return alphabet[byte % len(alphabet)]


def redact_history(history: WorkflowHistory, redactor: Redactor) -> WorkflowHistory:
    """Return the history of one run redacted: its payloads, and Temporal's own texts."""
    return WorkflowHistory(history.workflow_id, [_redact_event(event, redactor) for event in history.events])


def _redact_event(event: HistoryEvent, redactor: Redactor) -> HistoryEvent:
    redacted = HistoryEvent()
    redacted.CopyFrom(event)
    kind = redacted.WhichOneof("attributes") or ""
    of_payload = redactor.recorded if kind.removesuffix("_event_attributes") in _RECORDS else redactor.authored
    attributes = attributes_of(redacted)
    signal = getattr(attributes, "signal_name", None)
    if signal is not None and signal not in _SIGNALS:
        attributes.signal_name, of_payload = redactor.text(signal), redactor.authored
    _redact_message(redacted, redactor, of_payload)
    return redacted


def _redact_message(message: Any, redactor: Redactor, of_payload: Redact) -> None:
    """Redact a message of Temporal's in place."""
    for descriptor, value in message.ListFields():
        name = descriptor.name
        if name in _DROPPED:
            message.ClearField(name)
        elif name == "user_metadata":
            _redact_message(value, redactor, lambda text: redactor.token(text) if isinstance(text, str) else None)
        elif name in _PAYLOAD_MAPS:
            for key, payload in getattr(value, _PAYLOAD_MAPS[name]).items():
                if name != "search_attributes" or key == SEARCH_USER or not key.startswith("Waystation"):
                    _redact_payload(payload, redactor.recorded if key in _MEMOS else redactor.authored)
        elif descriptor.message_type and descriptor.message_type.GetOptions().map_entry:
            for key in value.keys() - _PATCHES:
                if isinstance(value[key], str):
                    value[key] = redactor.token(value[key])
                else:
                    _redact_message(value[key], redactor, redactor.authored)
        elif descriptor.message_type:
            for each in value if descriptor.is_repeated else [value]:
                if isinstance(each, Payload):
                    _redact_payload(each, of_payload)
                else:
                    _redact_message(each, redactor, of_payload)
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
        payload.data = b"It was not there when this was kept." if unreadable else b"x" * len(payload.data)
        return
    try:
        payload.data = encode(redact(decode(payload.data)))
    except ValueError:
        payload.data = b"\x00" * len(payload.data)  # still not JSON


async def redact(
    saved: SavedHistory, rules: Iterable[str], *, converter: DataConverter = DataConverter.default
) -> SavedHistory:
    """Return histories in which rules hide what they name, those of called agents included.

    Args:
        saved: As the server has them.
        rules: `secrets`, `text`, `field:NAME`; see `Rules`.
        converter: Decodes payloads that are kept beside the history, or that a codec encoded.

    Raises:
        InvalidRule: A rule is not valid.
        NotRedacted: The redacted invocation would read differently, such as without what is kept beside the history.
        ForeignHistory: A history is not ours, or is damaged.
    """
    decoded = await _decoded(saved, converter)
    if short := shortened(converter):
        raise NotRedacted(
            f"{len(short)} large values cannot be had, and with their short forms the invocation would read otherwise; "
            f"--store says where workers keep them. {next(iter(short.values()))}"
        )
    redactor = Redactor(Rules.of(rules))
    for each in _all(decoded):
        kind, *names = each.histories[0].workflow_id.split("/")
        if kind in ("session", "user"):  # ids that are made of names of users
            redactor.ids.update(map(unquote, names))
    _redacted(decoded, redactor)  # collects ids, and what is to be hidden in other texts
    redactor.search_for_hidden()
    result = _redacted(decoded, redactor)
    for _ in range(MAX_ROUNDS):
        known = dict(redactor.recomputed)
        redactor.recomputed |= _recomputed(decoded, result)
        if redactor.recomputed == known:
            break
        result = _redacted(decoded, redactor)
    _check(decoded, result)
    for before, after in zip(_all(decoded), _all(result), strict=True):
        for one, other in zip(before.histories, after.histories, strict=True):
            if (divergence := await divergence_of(other)) and await divergence_of(one) is None:
                raise NotRedacted(
                    f"Redacted by these rules, {one.workflow_id!r} would not replay: {divergence}. Report this."
                )
    return result


async def _decoded(saved: SavedHistory, converter: DataConverter) -> SavedHistory:
    histories = await decode_histories(saved.histories, converter)
    check_readable(histories, f"The history of {histories[0].workflow_id!r}")
    return SavedHistory(histories, [await _decoded(each, converter) for each in saved.called])


def _all(saved: SavedHistory) -> Iterator[SavedHistory]:
    yield saved
    for each in saved.called:
        yield from _all(each)


def _redacted(saved: SavedHistory, redactor: Redactor) -> SavedHistory:
    histories = [redact_history(history, redactor) for history in saved.histories]
    return SavedHistory(histories, [_redacted(each, redactor) for each in saved.called])


def _logs(before: SavedHistory, after: SavedHistory) -> Iterator[tuple[SavedHistory, Log, SavedHistory, Log]]:
    """Yield each invocation, before and after it is redacted."""
    for one, other in zip(_all(before), _all(after), strict=True):
        if type_of(one.histories[0]) == WORKFLOW:
            yield one, log_of(one.histories), other, log_of(other.histories)


def _recomputed(before: SavedHistory, after: SavedHistory) -> dict[str, str]:
    """Return digests and messages that the engine computes from histories, with those that it computes now."""
    messages: list[tuple[str | None, str | None]] = []
    digests: list[tuple[str | None, str | None]] = []
    for saved, one, redacted, other in _logs(before, after):
        messages.append((one.state.result().reason, other.state.result().reason))
        if one.state.outcome.failure and other.state.outcome.failure:
            messages.append((one.state.outcome.failure.message, other.state.outcome.failure.message))
        first, second = carried_log(one, saved.histories), carried_log(other, redacted.histories)
        for was, now in zip(one.entries, other.entries, strict=False):
            if isinstance(was.body, AnswerIgnored) and isinstance(now.body, AnswerIgnored):
                messages.append((was.body.message, now.body.message))  # it names who was refused, and who is asked
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


def _check(before: SavedHistory, after: SavedHistory) -> None:
    """Check that both tell of the same invocations.

    Raises:
        NotRedacted: They do not.
    """
    for _, one, _, other in _logs(before, after):
        steps = [[(entry.ref, type(entry.body).__name__) for entry in log.entries] for log in (one, other)]
        for number, (left, right) in enumerate(zip(*steps, strict=False), 1):
            if left != right:
                raise NotRedacted(
                    f"Redacted by these rules, {one.invocation_id!r} would go on otherwise at entry {number}: {right} "
                    f"instead of {left}. Report this; other rules may do."
                )
        if len(one.entries) != len(other.entries) or list(one.state.calls) != list(other.state.calls):
            raise NotRedacted(f"Redacted by these rules, {one.invocation_id!r} would end otherwise. Report this.")
