"""JSON values that can be recorded: they survive encoding and decoding, and stay within Temporal's limits.

A value that can be encoded but not decoded (nesting deeper than 200 levels, integers of 5,000 digits, lone surrogates)
blocks the workflow that receives it. Activities therefore convert and check values before they return them.
"""

import contextlib
import dataclasses
import datetime
import decimal
import enum
import hashlib
import json
import math
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json, to_json, to_jsonable_python

from waystation.core.errors import NotJson
from waystation.core.secrets import Secret

JsonObject: TypeAlias = dict[str, Any]
"""A decoded JSON object. Its values are typed `Any`, because a recursive JSON type is not worth the trouble."""

MAX_DEPTH = 64
"""Maximum nesting depth of a value; deeper values are refused. Decoders fail at 200 levels, and the objects that wrap a
value use some of them."""
MAX_INTEGER = 2**63 - 1
"""Largest integer allowed in a value. Many languages cannot read integers of more than 64 bits, and Python refuses to
parse more than 4,300 digits."""
_MAX_DIGITS = 4_000
"""Maximum number of digits of an integer that is kept as text. Python refuses to write more than 4,300 digits."""
MAX_VALUES = 500_000
"""Maximum number of values in a value, counting nested ones. More would exceed `MAX_VALUE_BYTES` anyway."""
MAX_VALUE_BYTES = 1_000_000
"""Maximum size of an encoded value. The server rejects an activity result that is larger than 2 MB and retries the
activity, and the result has other fields, too."""


MAX_NOTES = 20
"""Maximum number of replaced values that are listed."""
REPLACED = "replaced_values"
"""The field of a response that lists which of its values were replaced."""
_MAX_NOTE = 300
_CREDENTIAL = ("part of a credential", "use it in the tool and leave it in the credential store")


class Recorded(BaseModel):
    """Base class of types that are written to histories. Frozen, and ignores fields added by newer versions.

    Recorded types only ever gain optional fields. Default values must not depend on the clock or on randomness.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")

    def encode(self) -> bytes:
        """Return the recorded form: compact JSON that omits fields with default values."""
        return self.__pydantic_serializer__.to_json(self, exclude_defaults=True)


ModelType = TypeVar("ModelType", bound=BaseModel)


def encode(value: object) -> bytes:
    """Encode a plain JSON value as compact JSON."""
    return to_json(value)


def decode(data: bytes | str) -> Any:
    """Parse JSON strictly: no NaN, no lone surrogates, bounded nesting.

    Raises:
        ValueError: The data is not JSON, or violates one of these rules.
    """
    return from_json(data, allow_inf_nan=False)


def decode_foreign(data: bytes) -> Any:
    """Parse JSON from an untrusted sender, and reject values that could not be recorded again.

    Raises:
        ValueError: `decode` rejects the data.
        NotJson: The JSON is nested more than `MAX_DEPTH` levels deep, has too many values, or contains a number that is
            out of range.
    """
    return to_plain_json(decode(data))


def decode_leniently(data: bytes | str) -> Any:
    """Parse JSON of another program with a byte order mark, NaN, infinities, long integers or lone surrogates.

    Pass the value to `repair_json` before it is recorded.

    Raises:
        ValueError: The data is not JSON, or is nested too deeply.
    """
    text = data.decode("utf-8-sig", "replace") if isinstance(data, bytes) else data.removeprefix("\ufeff")
    try:
        # Python refuses to parse integers of more than 4,300 digits.
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < _MAX_DIGITS else float(digits))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def repeated_key(data: bytes) -> str | None:
    """Return a key that is repeated within one object, or None. JSON parsers disagree about which value counts."""
    repeated: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                repeated.append(key)
            seen.add(key)

    json.loads(data, object_pairs_hook=note)
    return repeated[0] if repeated else None


def describe_faults(error: ValidationError) -> str:
    """Return up to five invalid fields, each with the reason but without its value."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, p['loc'])) or 'value'}: {p['msg']}" for p in problems[:5])


def parse(
    kind: type[ModelType], data: bytes, refused: Callable[[str], Exception], *, what: str, send: str
) -> ModelType:
    """Parse JSON from an untrusted sender. Error messages do not repeat any of its content.

    Args:
        kind: The expected type.
        data: The JSON to parse.
        refused: Creates the exception from its message.
        what: The subject of the error message, such as `The message`.
        send: A description of the expected object, used in the error message if the data is not JSON.
    """
    try:
        return kind.model_validate(decode_foreign(data))
    except ValidationError as error:
        problem = f"is invalid: {describe_faults(error)}"
    except NotJson as error:
        problem = f"cannot be recorded: it has {error.found}"
    except ValueError:
        problem = f"is not JSON; send one object {send}"
    raise refused(f"{what} {problem}.")


def digest(value: object) -> str:
    """Return a digest of a JSON value. The digest does not depend on the order of keys."""
    return hashlib.sha256(to_json(_sorted(value))).hexdigest()[:32]


def _sorted(value: Any) -> Any:
    # Most items are not containers. Checking them here saves one function call per item.
    if isinstance(value, dict):
        return {key: _sorted(item) if isinstance(item, dict | list) else item for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [_sorted(item) if isinstance(item, dict | list) else item for item in value]
    return value


def to_plain_json(value: object) -> Any:
    """Convert a value to plain JSON.

    Models, dataclasses, enums, dates, decimals, UUIDs, paths, tuples and sets are converted as pydantic converts them,
    with two differences: fields of models that are None are omitted, and sets are sorted, so that equal sets are
    recorded identically. The result shares no mutable objects with `value`.

    Raises:
        NotJson: Part of the value has no faithful JSON form or exceeds a limit. The error names the part and the
            reason.
    """
    return _Plain().of(value, "", 0)


def repair_json(
    value: object, path: str = "", *, is_replaceable: Callable[[object], bool] = lambda _: True
) -> tuple[Any, list[str]]:
    """Like `to_plain_json`, but replace the parts of a value that cannot be recorded, so that the rest arrives.

    Numbers and keys become text, lone surrogates become U+FFFD, and other parts become the name of their type in angle
    brackets.

    Args:
        value: The value.
        path: The place of the value, which starts the paths in the notes.
        is_replaceable: Returns whether a part may be replaced.

    Returns:
        The JSON, and one note for each replaced part, such as `"mean was the number nan"`. The notes never quote text
        from the value, except keys.

    Raises:
        NotJson: Nothing of the value can be recorded, it has too many values, or part of it is a credential or not
            replaceable.
    """
    with contextlib.suppress(Exception):  # nearly all values need no repair
        return to_plain_json(value), []
    repairing = _Repairing(is_replaceable)
    repaired, notes = repairing.of(value, path, 0), repairing.notes
    more = [f"{len(notes) - MAX_NOTES:,} more values were replaced"] if len(notes) > MAX_NOTES else []
    return repaired, notes[:MAX_NOTES] + more


def normalize_json(value: object) -> Any:
    """Like `repair_json`, but replace only texts and integers, which then keep their meaning. Return the JSON.

    Raises:
        NotJson: Another part of the value cannot be recorded.
    """
    return repair_json(value, is_replaceable=_is_text_or_integer)[0]


def _is_text_or_integer(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and value.bit_length() < 3.4 * _MAX_DIGITS)


def with_notes(response: JsonObject, notes: Sequence[str]) -> JsonObject:
    """Return a response to a call with the notes of `repair_json`, so that the model and people see them.

    A tool's own field of the same name stays: a list gets the notes, too, and beside another value they get a new name.
    """
    name = REPLACED
    while not isinstance(response.get(name, []), list):
        name = f"_{name}"
    return {**response, name: [*response.get(name, ()), *notes]} if notes else response


class _Plain:
    """Converts one value. Counts nested values, because a small object with shared parts can expand without limit."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def of(self, value: Any, path: str, depth: int) -> Any:
        """Convert the value at `path`, which is nested `depth` levels deep.

        Raises:
            NotJson: Part of the value has no faithful JSON form, or the value exceeds a limit.
        """
        self._left -= 1
        if self._left < 0:
            remedy = "shorten it or save it as an artifact"
            raise NotJson(path, f"part of more than {MAX_VALUES} values", remedy, replaceable=False)
        # Check for exact types first: nearly all values have one of them, and a subclass could behave differently.
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return _text(value, path)
        if kind is int:
            if not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
                raise NotJson(path, "an integer beyond 64 bits", "return it as a string")
            return value
        if kind is float:
            if not math.isfinite(value):
                raise NotJson(path, f"the number {value}", "return null or a string instead")
            return value
        if depth >= MAX_DEPTH:
            raise NotJson(path, f"nesting deeper than {MAX_DEPTH} levels", "flatten it or save it as an artifact")
        if kind is dict:
            return self._mapping(value, path, depth)
        if kind is list:
            return self._sequence(value, path, depth)
        return self._other(value, path, depth)

    def _other(self, value: Any, path: str, depth: int) -> Any:
        match value:
            case Mapping():
                return self._mapping(value, path, depth)
            case BaseModel():
                return self._model(value, path, depth)
            case enum.Enum():
                return self.of(value.value, path, depth + 1)
            case Secret():
                raise NotJson(path, *_CREDENTIAL, replaceable=False)
            case str():
                return _text(str.__str__(value), path)
            case int():
                return self.of(int(value), path, depth)
            case float():
                return self.of(float(value), path, depth)
            case Set():
                return sorted((self.of(item, f"{path}[]", depth + 1) for item in value), key=to_json)
            case bytes() | bytearray() | memoryview():
                raise NotJson(path, "bytes", "save them as an artifact, or return them base64-encoded")
            case Sequence():
                return self._sequence(value, path, depth)
            case datetime.datetime() | datetime.date() | datetime.time() | datetime.timedelta():
                return to_jsonable_python(value)
            case decimal.Decimal() | uuid.UUID() | pathlib.PurePath():
                return str(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._mapping({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, path, depth)
        kind = type(value)
        raise NotJson(path, f"a value of type {kind.__module__}.{kind.__qualname__}", "return plain data")

    def _sequence(self, value: Sequence[Any], path: str, depth: int) -> list[Any]:
        return [self.of(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]

    def _mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> JsonObject:
        result: JsonObject = {}
        for key, item in value.items():
            name = self._name(key, path, result)
            result[name] = self.of(item, f"{path}.{name}" if path else name, depth + 1)
        return result

    def _name(self, key: object, path: str, taken: JsonObject) -> str:
        """Return a key as text that no other key of its object has."""
        name = _key(key, path)
        if name in taken:
            raise NotJson(path, f"an object with two keys that both read {name!r}", "use strings as keys")
        return name

    def _model(self, value: BaseModel, path: str, depth: int) -> Any:
        try:
            dumped = value.model_dump(mode="json", by_alias=False, exclude_none=True)
        except Exception as error:  # a model's own serializers may raise anything
            found = f"a {type(value).__qualname__} that pydantic cannot write"
            raise NotJson(path, found, "return plain data") from error
        return self.of(dumped, path, depth + 1)


class _Repairing(_Plain):
    """Converts one value, and replaces the parts that cannot be converted."""

    def __init__(self, is_replaceable: Callable[[object], bool]) -> None:
        super().__init__()
        self.notes: list[str] = []
        self._is_replaceable = is_replaceable
        self._open: set[int] = set()

    def of(self, value: Any, path: str, depth: int) -> Any:
        """Convert the value at `path`, or replace it if it cannot be converted or contains itself."""
        if id(value) in self._open:
            found = "a reference to an object that contains it"
            if not self._is_replaceable(value):
                raise NotJson(path, found, "return plain data")
            return self._replace(value, path, found)
        self._open.add(id(value))
        try:
            return super().of(value, path, depth)
        except Exception as error:  # a user's object can raise anything when it is read
            is_whole = depth == 0 and not isinstance(value, str | int | float)
            if is_whole or not (self._is_replaceable(value) and getattr(error, "replaceable", True)):
                raise
            return self._replace(
                value, path, getattr(error, "found", f"a value that cannot be read ({type(error).__name__})")
            )
        finally:
            self._open.discard(id(value))

    def _replace(self, value: object, path: str, found: str) -> str:
        note = repair_text(f"{path or 'the value'} was {found}")
        # A long note is not cut: half a secret in a key could not be masked.
        self.notes.append(note if len(note) <= _MAX_NOTE else "a value at a long path was replaced")
        return _placeholder(value)

    def _name(self, key: object, path: str, taken: JsonObject) -> str:
        try:
            return super()._name(key, path, taken)
        except NotJson as error:
            if not error.replaceable:
                raise
            self._replace(key, path, error.found)
            form = _Repairing(self._is_replaceable).of([key], "", 0)[0]
        name = form if isinstance(form, str) else encode(form).decode()
        while name in taken:
            name += f" ({len(taken)})"
        return name

    def _model(self, value: BaseModel, path: str, depth: int) -> Any:
        try:
            return super()._model(value, path, depth)
        except NotJson:
            kind, fields = type(value), JsonObject()
            # Write each field on its own: serializers that hide a value may only apply to JSON.
            for name in (*kind.model_fields, *kind.model_computed_fields, *(value.model_extra or ())):
                try:
                    fields |= value.model_dump(mode="json", include={name}, exclude_none=True)
                except Exception:  # noqa: BLE001  # a model's own serializers may raise anything
                    fields[name] = getattr(value, name)
            return self.of(fields, path, depth + 1)


def _placeholder(value: object) -> str:
    """Return the text that replaces a value, which shows as much of the value as text can."""
    match value:
        case str():
            return repair_text(value)
        case int() if _is_text_or_integer(value):
            return str(int(value))
        case float():
            return json.dumps(float(value))
        case bytes() | bytearray() | memoryview():
            return f"<{len(value):,} bytes>"
        case _:
            return f"<{type(value).__qualname__}>"


def repair_text(text: str) -> str:
    """Join the halves of surrogate pairs, and replace lone halves with U+FFFD."""
    return str.__str__(text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _key(key: object, path: str) -> str:
    match key:
        case Secret():
            raise NotJson(path, *_CREDENTIAL, replaceable=False)
        case str():
            return _text(str.__str__(key), path)
        case enum.Enum():
            return _key(key.value, path)
        case int() if not -MAX_INTEGER - 1 <= key <= MAX_INTEGER:
            raise NotJson(path, "an object with a key that is an integer beyond 64 bits", "use strings as keys")
        case int() | float() | None:
            return str(key)
        case _:
            raise NotJson(path, f"an object with a key of type {type(key).__qualname__}", "use strings as keys")


def _text(value: str, path: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotJson(path, "text with a lone surrogate", "repair the text's encoding") from None
    return value


def copy_json(value: Any) -> Any:
    """Return a deep copy of a JSON value. This is several times faster than `copy.deepcopy`."""
    match value:
        case dict():
            return {key: copy_json(item) for key, item in value.items()}
        case list():
            return [copy_json(item) for item in value]
        case _:
            return value
