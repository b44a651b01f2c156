"""An account in a file of JSON lines, each holding the hash of the one before: whatever is altered in it shows.

The first line says what the file is about; after the account an end says how many lines there are and what the last
hash is, and a signature may follow. Whoever can write a whole new file can give it right hashes, too; a signature, a
hash that was kept elsewhere, or the history itself tell such a file from the true one.
"""

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from waystation.core.errors import WaystationError
from waystation.core.payload import JsonObject, decode

Signer = Callable[[bytes], str]
"""Returns a signature of some bytes, with the bytes in it."""
VERSION = 1
NOTHING = "0" * 64
"""Stands where the hash of a line before the first would."""


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
