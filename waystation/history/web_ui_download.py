"""Encode the Web UI's download of a decoded history again.

In it the value of a payload replaces its bytes, with metadata as text beside it or, in older versions, without. JSON
loses nothing but its spaces.
"""

import base64
import json
from collections.abc import Iterator
from typing import Any

LOOKED_AT = 50
"""How many events decide which shape a file has."""
_MAPS = ("fields", "indexedFields")
"""Where payloads have names: memo, headers, search attributes."""
_ALONE = ("summary", "details", "encodedAttributes")
"""Fields that are one payload."""


def is_decoded(events: Any) -> bool:
    """Whether the events of a file are of that shape: their first ones have plain values where payloads should be."""
    return any(not _is_payload(each) for event in events[:LOOKED_AT] for each in _payloads_in(event))


def _payloads_in(found: Any) -> Iterator[Any]:
    for name, value in found.items() if isinstance(found, dict) else ():
        if name == "payloads" and isinstance(value, list):
            yield from value
        else:
            yield from _payloads_in(value)


def encode_payloads(found: Any) -> Any:
    """Return decoded events as the server has them."""
    match found:
        case list():
            return [encode_payloads(each) for each in found]
        case dict():
            return {name: _field(name, value) for name, value in found.items()}
        case _:
            return found


def _field(name: str, value: Any) -> Any:
    match value:
        case list() if name == "payloads":
            return [_payload(each) for each in value]
        case dict() if name in _MAPS:
            return {key: _payload(each) for key, each in value.items()}
        case _ if name in _ALONE and not _holds_payloads(value):
            return _payload(value)
        case _:
            return encode_payloads(value)


def _holds_payloads(value: Any) -> bool:
    """Whether a value is no payload but has some, as the details of a mark and of a failure do."""
    return isinstance(value, dict) and not _has_metadata(value) and bool(value)


def _payload(value: Any) -> Any:
    if _is_payload(value):
        return value
    metadata = {name: text for name, text in value["metadata"].items()} if _has_metadata(value) else {}
    encoding = str(metadata.get("encoding") or "json/plain")
    given = value.get("data") if _has_metadata(value) else value
    empty = encoding == "binary/null"
    text = "" if empty else json.dumps(given, ensure_ascii=False, separators=(",", ":"))
    beside = {name: held for name, held in value.items() if name != "data"} if _has_metadata(value) else {}
    metadata = {**metadata, "encoding": encoding}
    return {**beside, "metadata": {name: _base64(str(held)) for name, held in metadata.items()}, "data": _base64(text)}


def _has_metadata(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("metadata"), dict) and set(value) <= _FIELDS


_FIELDS = {"metadata", "data", "externalPayloads"}


def _is_payload(value: Any) -> bool:
    """Whether a value is a payload as it was recorded: its encoding, too, is in Base64, which has no hyphens."""
    if not _has_metadata(value) or not isinstance(value.get("data", ""), str):
        return False
    try:
        return b"/" in base64.b64decode(str(value["metadata"].get("encoding")), validate=True)
    except ValueError:
        return False


def _base64(text: str) -> str:
    return base64.b64encode(text.encode(errors="surrogatepass")).decode()
