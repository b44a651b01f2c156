"""Audit files, which consist of JSON lines. Each line contains the hash of the previous one, to reveal alterations.

The first line names the invocations. The lines of their accounts follow, then an end line with the number of lines and
the last hash, and optionally a signature. The hashes alone do not detect a file that was rewritten completely. To
detect that, check a signature, a hash stored elsewhere, or the history.

The signature covers the end line, whose hash covers all lines before it. A key file contains a JWK: `oct` for HMAC, or
`OKP` with the curve Ed25519, for which the public key is sufficient to verify a file.
"""

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystation.configuration import check_private
from waystation.core.errors import InvalidConfiguration, WaystationError
from waystation.core.payload import JsonObject, decode

if TYPE_CHECKING:
    from joserfc.jwk import KeyFlexible

Signer = Callable[[bytes], str]
"""A function that signs bytes and returns a compact JWS, which includes the signed bytes."""
VERSION = 1
NOTHING = "0" * 64
"""The `previous` hash of the first line, which has no line before it."""
MIN_SECRET_BYTES = 32


class Fault(WaystationError):
    """An audit file was altered, has an unsupported version or no valid signature, or does not match the histories.

    Compare the file with an earlier copy, and export the audit again.
    """

    def __init__(self, line: int, problem: str) -> None:
        self.line, self.problem = line, problem
        super().__init__(f"Line {line}: {problem}.")


@dataclass(frozen=True, slots=True)
class Sheet:
    """The content of an audit file, after its hashes have been verified."""

    about: JsonObject
    """The content of the file's first line."""
    entries: tuple[JsonObject, ...]
    """The lines of the accounts, without their numbers and hashes."""
    end: JsonObject
    signature: JsonObject | None

    @property
    def invocations(self) -> list[str]:
        """IDs of the invocations that the file covers."""
        return list(self.about.get("invocations") or ())

    def of(self, invocation: str) -> list[JsonObject]:
        """Return the account of one invocation."""
        return [entry for entry in self.entries if entry.get("invocation") == invocation]


def create_sheet(
    accounts: Mapping[str, Sequence[JsonObject]],
    *,
    closed: bool,
    missing: Iterable[str] = (),
    arguments: bool = True,
    signer: Signer | None = None,
) -> list[JsonObject]:
    """Return the lines of an audit file. The same histories always yield the same lines.

    Args:
        accounts: The lines of each account, by invocation ID.
        closed: Whether all invocations (and the session, if there is one) have ended.
        missing: IDs of invocations whose histories are missing.
        arguments: Whether the accounts include arguments and responses in addition to their digests.
        signer: Signs the end line. If None, the file is not signed.
    """
    about = {"kind": "audit", "version": VERSION, "invocations": list(accounts), "arguments": arguments}
    merged = heapq.merge(*accounts.values(), key=lambda entry: entry["time"])
    lines: list[JsonObject] = []
    for body in ({**about, "lacking": sorted(missing)}, *merged):
        lines.append(_chain(body, lines))
    end = {"kind": "end", "count": len(lines), "head": lines[-1]["hash"], "closed": closed, "signed": bool(signer)}
    lines.append(_chain(end, lines))
    if signer:
        lines.append(_chain({"kind": "signature", "jws": signer(canonical(lines[-1]).encode())}, lines))
    return lines


def format_sheet(lines: Iterable[JsonObject]) -> str:
    """Return the text of an audit file."""
    return "".join(f"{canonical(line)}\n" for line in lines)


def canonical(value: object) -> str:
    """Return the canonical JSON of a value, with sorted keys, no spaces and only ASCII characters."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read_sheet(data: bytes) -> Sheet:
    """Read an audit file and check every hash. The signature is not verified.

    Raises:
        Fault: The file was altered or truncated, or has an unsupported version. The error contains the number of the
            first line with a problem.
    """
    lines: list[JsonObject] = []
    *texts, rest = data.split(b"\n")
    for number, text in enumerate(texts, 1):
        lines.append(_check_line(number, text, lines))
    if rest:
        raise Fault(len(texts) + 1, "it is truncated, or its line break is missing")
    last = lines[-1] if lines else {}
    if not _may_be_last(last):
        missing = "the signature" if last.get("kind") == "end" else "the end"
        raise Fault(len(lines) + 1, f"{missing} is missing; the file was truncated before this line")
    signature = lines.pop() if last.get("kind") == "signature" else None
    return Sheet(lines[0], tuple(_without(line, "n", "previous", "hash") for line in lines[1:-1]), lines[-1], signature)


def _chain(body: JsonObject, before: Sequence[JsonObject]) -> JsonObject:
    line = {"n": len(before), **body, "previous": before[-1]["hash"] if before else NOTHING}
    return {**line, "hash": _hash(line)}


def _without(line: JsonObject, *names: str) -> JsonObject:
    return {name: value for name, value in line.items() if name not in names}


def _hash(line: JsonObject) -> str:
    return hashlib.sha256(canonical(_without(line, "hash")).encode()).hexdigest()


def _check_line(number: int, text: bytes, before: Sequence[JsonObject]) -> JsonObject:
    """Parse a line, and check that it is unaltered and in the right position."""
    try:
        line = decode(text)
    except ValueError:
        raise Fault(number, "it was altered: it is not JSON") from None
    if not isinstance(line, dict) or canonical(line).encode() != text:
        raise Fault(number, "it was altered: `waystation audit export` formats it differently")
    if line.get("hash") != _hash(line):
        raise Fault(number, "it was altered: its hash does not match")
    last = before[-1] if before else {}
    previous = last.get("hash", NOTHING)
    if not before and line.get("kind") != "audit":
        raise Fault(number, "the beginning is missing: it is not the first line of an audit")
    if not before and line.get("version") != VERSION:
        raise Fault(number, f"it has the version {line.get('version')!r}; this program reads version {VERSION}")
    if before and _may_be_last(last):
        raise Fault(number, "it was added after the end")
    if (line.get("n"), line.get("previous")) != (len(before), previous):
        raise Fault(number, _describe_order(line, before))
    if line.get("kind") == "end" and (line.get("count"), line.get("head")) != (len(before), previous):
        raise Fault(number, "it was altered: its count or hash of the lines does not match")
    if (line.get("kind") == "signature") != (last.get("kind") == "end"):
        raise Fault(number, "it was added: only a signature may follow the end")
    return line


def _may_be_last(line: JsonObject) -> bool:
    kind = line.get("kind")
    return kind == "signature" or (kind == "end" and not line.get("signed"))


def _describe_order(line: JsonObject, before: Sequence[JsonObject]) -> str:
    """Explain why a line does not follow the one before it."""
    n = line.get("n")
    if isinstance(n, int) and n > len(before):
        return f"it is line {n + 1}: lines before it were removed, or it was moved"
    if isinstance(n, int) and n < len(before):
        return f"it is line {n + 1}: it was repeated or moved"
    return "it does not follow the line before it: one of them was replaced"


def load_signer(key_file: Path) -> Signer:
    """Return a signer that uses the key in a file.

    Raises:
        InvalidConfiguration: The file does not contain a key that can sign.
    """
    key, algorithm = _key(key_file, private=True)

    def sign(data: bytes) -> str:
        from joserfc import jws

        return jws.serialize_compact({"alg": algorithm}, data, key, algorithms=[algorithm])

    return sign


def verify_signature(sheet: Sheet, key_file: Path) -> None:
    """Check that an audit file was signed with the key in a file.

    Raises:
        Fault: The file is not signed, or the signature does not match the key and the end line.
        InvalidConfiguration: The file does not contain a suitable key.
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
        raise Fault(number, f"the signature was not made with the key in {str(key_file)!r}") from None
    if signed.payload != canonical(sheet.end).encode():
        raise Fault(number, "the signature belongs to another file")


def _key(path: Path, *, private: bool) -> "tuple[KeyFlexible, str]":
    try:
        from joserfc.jwk import OctKey, OKPKey
    except ImportError:
        raise InvalidConfiguration(
            path, "", "requires joserfc; install it with: pip install 'waystation[identity]'"
        ) from None
    form = 'a JWK as JSON, such as {"kty": "oct", "k": …} or {"kty": "OKP", "crv": "Ed25519", …}'
    try:
        jwk: Any = json.loads(path.read_bytes())
        if jwk["kty"] == "oct" or "d" in jwk:
            check_private(path, path)
        if jwk["kty"] == "oct":
            secret = OctKey.import_key(jwk)
            if len(secret.raw_value) >= MIN_SECRET_BYTES:
                return secret, "HS256"
            raise InvalidConfiguration(path, "", f"the secret is too short; use at least {MIN_SECRET_BYTES} bytes.")
        pair = OKPKey.import_key(jwk)
        if jwk.get("crv") == "Ed25519" and (pair.is_private or not private):
            return pair, "Ed25519"
    except OSError as error:
        raise InvalidConfiguration(path, "", f"cannot be read: {error.strerror}.") from None
    except InvalidConfiguration:
        raise
    except Exception:  # noqa: BLE001  # the library raises many types of errors for invalid keys
        raise InvalidConfiguration(path, "", f"does not contain a suitable key; use {form}.") from None
    raise InvalidConfiguration(path, "", f"its key cannot {'sign' if private else 'verify'}; use {form}.")
