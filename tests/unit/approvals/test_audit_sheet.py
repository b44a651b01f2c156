"""Every alteration of an audit file is detected and located."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from joserfc.jwk import OctKey, OKPKey

from tests.paths import write_secret
from tests.unit.core.story import answered, log_of, model_calls, tool_returned, user_message
from waystation.approvers.audit import (
    Accounts,
    Fault,
    compare,
    create_account,
    create_sheet,
    format_sheet,
    load_signer,
    read_sheet,
    verify_signature,
)
from waystation.core.errors import InvalidConfiguration
from waystation.core.payload import JsonObject


def account() -> list[JsonObject]:
    """Return an account with several lines."""
    payment = model_calls("pay", args={"amount": 9, "to": "Zoë"}, gated=True)
    return create_account(
        log_of(user_message("pay"), payment, answered("fc-1", by="dana"), tool_returned("fc-1", {"paid": 9.5}))
    )


SHEET = create_sheet({"inv": account()}, closed=True)
DATA = format_sheet(SHEET).encode()
LINES = DATA.splitlines(keepends=True)


def fault(data: bytes) -> Fault:
    """Return the fault of a file."""
    with pytest.raises(Fault) as caught:
        read_sheet(data)
    return caught.value


def test_a_file_survives_a_round_trip() -> None:
    """The file contains only the account, and writing it again yields the same bytes."""
    sheet = read_sheet(DATA)
    assert list(sheet.entries) == account()
    assert (sheet.end["count"], sheet.end["closed"], sheet.signature) == (len(account()) + 1, True, None)
    assert format_sheet(create_sheet({"inv": account()}, closed=True)).encode() == DATA


@given(position=st.integers(0, len(DATA) - 1), bit=st.integers(0, 7))
def test_any_altered_bit_is_detected(position: int, bit: int) -> None:
    """The fault names the altered line, or the line that an altered line break creates."""
    altered = bytearray(DATA)
    altered[position] ^= 1 << bit
    line = DATA[:position].count(b"\n") + 1
    assert fault(bytes(altered)).line == line


@given(position=st.integers(0, len(DATA)), added=st.binary(min_size=1, max_size=3))
@example(position=len(DATA), added=b"x")
@example(position=len(DATA), added=b"\n")
def test_any_addition_is_detected(position: int, added: bytes) -> None:
    """Every addition is detected, even spaces and line breaks that change no value."""
    assert fault(DATA[:position] + added + DATA[position:]).line <= DATA[:position].count(b"\n") + 2


@given(start=st.integers(0, len(DATA) - 1), length=st.integers(1, len(DATA)))
def test_any_removal_is_detected(start: int, length: int) -> None:
    """Every removal is detected: of a byte, of a line, and of the end of the file."""
    fault(DATA[:start] + DATA[start + length :])


@pytest.mark.parametrize("form", [{"separators": (", ", ":")}, {"ensure_ascii": False}, {"sort_keys": False}])
def test_a_reformatted_line_is_detected(form: JsonObject) -> None:
    """A line has exactly one valid form, so that nothing can be hidden in its formatting."""
    usual: JsonObject = {"sort_keys": True, "separators": (",", ":")}
    otherwise = json.dumps(SHEET[2], **{**usual, **form}).encode() + b"\n"
    assert otherwise != LINES[2]
    assert fault(b"".join([*LINES[:2], otherwise, *LINES[3:]])).line == 3


def test_an_added_signature_is_detected() -> None:
    """The end line says that no signature follows, even if the hash of the added line is correct."""
    signed = create_sheet({"inv": account()}, closed=True, signer=lambda _: "x.y.z")
    added = {**signed[-1], "previous": SHEET[-1]["hash"]}
    del added["hash"]
    added["hash"] = hashlib.sha256(json.dumps(added, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    fault_found = fault(DATA + format_sheet([added]).encode())
    assert (fault_found.line, fault_found.problem) == (len(LINES) + 1, "it was added after the end")


@pytest.mark.parametrize("number", range(1, len(LINES) + 1))
def test_a_removed_line_is_named(number: int) -> None:
    """The fault names the place of the missing line."""
    fault_found = fault(b"".join(LINES[: number - 1] + LINES[number:]))
    assert fault_found.line == number


@pytest.mark.parametrize("number", range(1, len(LINES) + 1))
def test_a_repeated_line_is_named(number: int) -> None:
    """The fault names the copy, not the original."""
    assert fault(b"".join(LINES[:number] + LINES[number - 1 :])).line == number + 1


@given(order=st.permutations(range(len(LINES))))
def test_reordered_lines_are_detected(order: list[int]) -> None:
    """The fault names the first line out of order."""
    moved = [n for n, index in enumerate(order, 1) if index != n - 1]
    if moved:
        assert fault(b"".join(LINES[index] for index in order)).line == moved[0]


def test_a_line_with_a_new_hash_does_not_match_the_next_line() -> None:
    """Altering one line requires altering all later lines."""
    forged = create_sheet({"inv": [{**entry, "by": "mallory"} for entry in account()]}, closed=True)
    fault_found = fault(b"".join([*LINES[:3], format_sheet(forged[3:4]).encode(), *LINES[4:]]))
    assert (fault_found.line, "does not follow" in fault_found.problem) == (4, True)


def keys(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return files with keys to sign and to verify."""
    pair = OKPKey.generate_key("Ed25519")
    made = {"private": pair.as_dict(private=True), "public": pair.as_dict(private=False)}
    made |= {"secret": OctKey.generate_key(256).as_dict(private=True)}
    for name, key in made.items():
        write_secret(folder / name, json.dumps(key))
    return {
        "Ed25519": (folder / "private", folder / "public"),
        "HMAC": (folder / "secret", folder / "secret"),
    }


@pytest.mark.parametrize("kind", ["Ed25519", "HMAC"])
def test_a_rewritten_file_is_detected_by_its_signature(tmp_path: Path, kind: str) -> None:
    """A file with correct hashes is refused if the owner of the key has not signed it."""
    private, public = keys(tmp_path)[kind]
    (tmp_path / "elsewhere").mkdir()
    other = keys(tmp_path / "elsewhere")[kind][0]
    forged = [{**entry, "by": "mallory"} for entry in account()]
    sheet = read_sheet(
        format_sheet(create_sheet({"inv": account()}, closed=True, signer=load_signer(private))).encode()
    )
    verify_signature(sheet, public)
    for signed_with in (None, load_signer(other)):
        written_anew = read_sheet(format_sheet(create_sheet({"inv": forged}, closed=True, signer=signed_with)).encode())
        with pytest.raises(Fault, match="sign"):
            verify_signature(written_anew, public)


def test_a_removed_or_copied_signature_is_detected(tmp_path: Path) -> None:
    """The end line says that a signature follows, and the signature covers only that end line."""
    private, public = keys(tmp_path)["Ed25519"]
    signed = format_sheet(create_sheet({"inv": account()}, closed=True, signer=load_signer(private))).encode()
    assert "the signature is missing" in fault(b"".join(signed.splitlines(keepends=True)[:-1])).problem
    jws = read_sheet(signed).signature
    assert jws is not None
    forged = [{**entry, "by": "mallory"} for entry in account()]
    copied = read_sheet(
        format_sheet(create_sheet({"inv": forged}, closed=True, signer=lambda _: str(jws["jws"]))).encode()
    )
    with pytest.raises(Fault, match="belongs to another file"):
        verify_signature(copied, public)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"kty": "oct", "k": "c2hvcnQ"}', '{"kty": "RSA"}', "Ünicode"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: str) -> None:
    """The error names the required form, and quotes nothing of the file."""
    write_secret(tmp_path / "key", content)
    for use in (load_signer, lambda file: verify_signature(read_sheet(DATA), file)):
        with pytest.raises(InvalidConfiguration, match=r"does not contain a suitable key; use a JWK|is too short"):
            use(tmp_path / "key")
    (tmp_path / "public").write_text(json.dumps(OKPKey.generate_key("Ed25519").as_dict(private=False)))
    with pytest.raises(InvalidConfiguration, match="cannot sign"):
        load_signer(tmp_path / "public")


def test_a_comparison_with_the_history_detects_forgeries(tmp_path: Path) -> None:
    """Every difference from the history is located, and newer entries are counted."""
    live = Accounts(by_invocation={"inv": account()})

    def compared(entries: list[JsonObject], *, closed: bool = False) -> int:
        return compare(read_sheet(format_sheet(create_sheet({"inv": entries}, closed=closed)).encode()), live)

    assert compared(account()) == 0
    assert compared(account()[:-2]) == 2
    with pytest.raises(Fault, match="continues after"):
        compared(account()[:-2], closed=True)
    for forged in ([{**account()[0], "agent": "other"}, *account()[1:]], [*account(), account()[-1]], account()[1:]):
        with pytest.raises(Fault, match="differs from the history"):
            compared(forged)
    with pytest.raises(Fault, match="no longer exists"):
        compare(read_sheet(format_sheet(create_sheet({"other": []}, closed=True)).encode()), live)
