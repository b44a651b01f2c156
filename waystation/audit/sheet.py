"""An account in a file of JSON lines, each holding the hash of the one before: whatever is altered in it shows.

The first line says what the file is about; after the account an end says how many lines there are and what the last
hash is, and a signature may follow. Whoever can write a whole new file can give it right hashes, too; a signature, a
hash that was kept elsewhere, or the history itself tell such a file from the true one.

A signature is of the end, which holds the hash of all lines before it. A key is a JWK in a file: `oct` for HMAC, or
`OKP` with the curve Ed25519, of which a public one suffices to verify.
"""

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystation.core import JsonObject, WaystationError, decode

if TYPE_CHECKING:
    from joserfc.jwk import KeyFlexible

Signer = Callable[[bytes], str]
"""Returns a signature of some bytes, with the bytes in it."""
VERSION = 1
NOTHING = "0" * 64
"""Stands where the hash of a line before the first would."""
MIN_SECRET_BYTES = 32


class Fault(WaystationError):
    """A file is not as it was written."""

    def __init__(self, line: int, problem: str) -> None:
        self.line, self.problem = line, problem
        super().__init__(f"Line {line}: {problem}.")


@dataclass(frozen=True, slots=True)
class Sheet:
    """What a file holds whose hashes are right."""

    about: JsonObject
    """The first line."""
    entries: tuple[JsonObject, ...]
    """The account, without numbers and hashes."""
    end: JsonObject
    signature: JsonObject | None

    @property
    def invocations(self) -> list[str]:
        """Of which invocations it tells."""
        return list(self.about.get("invocations") or ())

    def of(self, invocation: str) -> list[JsonObject]:
        """Return what is told of one invocation."""
        return [entry for entry in self.entries if entry.get("invocation") == invocation]


def sheet_of(
    accounts: Mapping[str, Sequence[JsonObject]],
    *,
    closed: bool,
    lacking: Iterable[str] = (),
    arguments: bool = True,
    signer: Signer | None = None,
) -> list[JsonObject]:
    """Return the lines of a file: the same for the same histories, whoever writes it and whenever.

    Args:
        accounts: Of invocations, by their ids.
        closed: Whether all of them are over.
        lacking: Agents that were called, and whose histories are not there.
        arguments: Whether the accounts tell arguments.
        signer: Signs what it is given.
    """
    about = {"kind": "audit", "version": VERSION, "invocations": list(accounts), "arguments": arguments}
    merged = heapq.merge(*accounts.values(), key=lambda entry: entry["time"])
    lines: list[JsonObject] = []
    for body in ({**about, "lacking": sorted(lacking)}, *merged):
        lines.append(_chained(body, lines))
    end = {"kind": "end", "count": len(lines), "head": lines[-1]["hash"], "closed": closed, "signed": bool(signer)}
    lines.append(_chained(end, lines))
    if signer:
        lines.append(_chained({"kind": "signature", "jws": signer(canonical(lines[-1]).encode())}, lines))
    return lines


def written(lines: Iterable[JsonObject]) -> str:
    """Return the text of the file."""
    return "".join(f"{canonical(line)}\n" for line in lines)


def canonical(value: object) -> str:
    """Return JSON of which there is one for each value: keys in order, no spaces, nothing but ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read(data: bytes) -> Sheet:
    """Read a file, and look at every hash.

    Raises:
        Fault: It is not as it was written; it says where that shows first, and how.
    """
    lines: list[JsonObject] = []
    *texts, rest = data.split(b"\n")
    for number, text in enumerate(texts, 1):
        lines.append(_checked(number, text, lines))
    if rest:
        raise Fault(len(texts) + 1, "it is cut short, or the line break after it is missing")
    last = lines[-1] if lines else {}
    if not _may_be_last(last):
        missing = "the signature" if last.get("kind") == "end" else "the end"
        raise Fault(len(lines) + 1, f"{missing} is missing; the file was cut short before this line")
    signature = lines.pop() if last.get("kind") == "signature" else None
    return Sheet(lines[0], tuple(map(_bare, lines[1:-1])), lines[-1], signature)


def _chained(body: JsonObject, before: Sequence[JsonObject]) -> JsonObject:
    line = {"n": len(before), **body, "previous": before[-1]["hash"] if before else NOTHING}
    return {**line, "hash": _hash(line)}


def _bare(line: JsonObject) -> JsonObject:
    return {name: value for name, value in line.items() if name not in ("n", "previous", "hash")}


def _hash(line: JsonObject) -> str:
    body = {name: value for name, value in line.items() if name != "hash"}
    return hashlib.sha256(canonical(body).encode()).hexdigest()


def _checked(number: int, text: bytes, before: Sequence[JsonObject]) -> JsonObject:
    """Return a line that is as it was written, and stands where it stood."""
    try:
        line = decode(text)
    except ValueError:
        raise Fault(number, "it was altered: it is no JSON") from None
    if not isinstance(line, dict) or canonical(line).encode() != text:
        raise Fault(number, "it was altered: it is not written as `waystation audit export` writes it")
    if line.get("hash") != _hash(line):
        raise Fault(number, "it was altered: its hash is another")
    last = before[-1] if before else {}
    wanted = last.get("hash", NOTHING)
    if not before and line.get("kind") != "audit":
        raise Fault(number, "the beginning is missing: it is no first line of an audit")
    if not before and line.get("version") != VERSION:
        raise Fault(number, f"it is of version {line.get('version')!r}; this program reads {VERSION}")
    if before and _may_be_last(last):
        raise Fault(number, "it was added after the end")
    if (line.get("n"), line.get("previous")) != (len(before), wanted):
        raise Fault(number, _moved(line, before))
    if line.get("kind") == "end" and (line.get("count"), line.get("head")) != (len(before), wanted):
        raise Fault(number, "it was altered: it counts other lines")
    if (line.get("kind") == "signature") != (last.get("kind") == "end"):
        raise Fault(number, "it was added: a signature follows the end, and nothing else does")
    return line


def _may_be_last(line: JsonObject) -> bool:
    kind = line.get("kind")
    return kind == "signature" or (kind == "end" and not line.get("signed"))


def _moved(line: JsonObject, before: Sequence[JsonObject]) -> str:
    """Return what it means that a line does not follow the one before it."""
    n = line.get("n")
    if isinstance(n, int) and n > len(before):
        return f"line {n + 1} stands here; lines before it were removed, or it was moved"
    if isinstance(n, int) and n < len(before):
        return f"line {n + 1} stands here again, or was moved"
    return "it does not follow the line before it: one of them was replaced"


class KeyRefused(WaystationError):
    """A file holds no key that can be used here."""


def signer(key_file: Path) -> Signer:
    """Return what signs with a key.

    Raises:
        KeyRefused: The file holds no key with which one can sign.
    """
    key, algorithm = _key(key_file, private=True)

    def sign(data: bytes) -> str:
        from joserfc import jws

        return jws.serialize_compact({"alg": algorithm}, data, key, algorithms=[algorithm])

    return sign


def verify_signature(sheet: Sheet, key_file: Path) -> None:
    """Look whether the end of an audit was signed with a key.

    Raises:
        Fault: It was not.
        KeyRefused: The file holds no key.
    """
    key, algorithm = _key(key_file, private=False)
    from joserfc import jws
    from joserfc.errors import JoseError

    number = int(sheet.end["n"]) + 2
    if sheet.signature is None:
        raise Fault(number, "the file is not signed")
    try:
        signed = jws.deserialize_compact(str(sheet.signature.get("jws")), key, algorithms=[algorithm])
    except (JoseError, ValueError):
        raise Fault(number, f"the signature is not of the key in {str(key_file)!r}") from None
    if signed.payload != canonical(sheet.end).encode():
        raise Fault(number, "the signature is of another file")


def _key(path: Path, *, private: bool) -> "tuple[KeyFlexible, str]":
    try:
        from joserfc.jwk import OctKey, OKPKey
    except ImportError:
        raise KeyRefused("Signatures need the package joserfc; install waystation[identity].") from None
    wanted = 'a JWK as JSON, such as {"kty": "oct", "k": …} or {"kty": "OKP", "crv": "Ed25519", …}'
    try:
        found: Any = json.loads(path.read_bytes())
        if found["kty"] == "oct":
            secret = OctKey.import_key(found)
            if len(secret.raw_value) >= MIN_SECRET_BYTES:
                return secret, "HS256"
            raise KeyRefused(f"The secret in {str(path)!r} is too short; it needs {MIN_SECRET_BYTES} bytes.")
        pair = OKPKey.import_key(found)
        if found.get("crv") == "Ed25519" and (pair.is_private or not private):
            return pair, "Ed25519"
    except OSError as error:
        raise KeyRefused(f"The key {str(path)!r} cannot be read: {error.strerror}.") from None
    except KeyRefused:
        raise
    except Exception:  # noqa: BLE001  # whatever the library says of a file that holds anything
        raise KeyRefused(f"{str(path)!r} holds no key that can be used here; it needs {wanted}.") from None
    raise KeyRefused(f"With the key in {str(path)!r} one cannot {'sign' if private else 'verify'}; it needs {wanted}.")
