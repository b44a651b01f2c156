"""The display of hostile text to an approver."""

import json
from typing import Any

import pytest

from waystation.presentation import text_safety
from waystation.presentation.html import format_message

GOLDEN = {
    "right-to-left override": ("a\u202eb", '"a\\u202eb"'),
    "left-to-right override": ("a\u202db", '"a\\u202db"'),
    "embedding": ("\u202a\u202b\u202cx", '"\\u202a\\u202b\\u202cx"'),
    "isolates": ("\u2066x\u2067y\u2068z\u2069", '"\\u2066x\\u2067y\\u2068z\\u2069"'),
    "direction marks": ("\u200e\u200f\u061cx", '"\\u200e\\u200f\\u061cx"'),
    "zero-width space": ("pay\u200bee", '"pay\\u200bee"'),
    "zero-width joiners": ("a\u200cb\u200dc", '"a\\u200cb\\u200dc"'),
    "word joiner": ("a\u2060b", '"a\\u2060b"'),
    "byte order mark": ("\ufeffx", '"\\ufeffx"'),
    "soft hyphen": ("pay\u00adee", '"pay\\u00adee"'),
    "invisible plus": ("1\u2064 2", '"1\\u2064 2"'),
    "language tags": ("x\U000e0041\U000e007f", '"x\\udb40\\udc41\\udb40\\udc7f"'),
    "variation selectors": ("x\ufe00\U000e0100", '"x\\ufe00\\udb40\\udd00"'),
    "no-break space": ("a\u00a0b", '"a\\u00a0b"'),
    "ideographic space": ("a\u3000b", '"a\\u3000b"'),
    "thin spaces": ("a\u2009\u200a\u202fb", '"a\\u2009\\u200a\\u202fb"'),
    "ogham space": ("a\u1680b", '"a\\u1680b"'),
    "braille blank": ("a\u2800b", '"a\\u2800b"'),
    "Hangul fillers": ("\u115f\u1160\u3164\uffa0", '"\\u115f\\u1160\\u3164\\uffa0"'),
    "grapheme joiner": ("a\u034fb", '"a\\u034fb"'),
    "Khmer vowels": ("\u17b4\u17b5", '"\\u17b4\\u17b5"'),
    "Mongolian selector": ("\u180b\u180e", '"\\u180b\\u180e"'),
    "musical null": ("\U0001d159", '"\\ud834\\udd59"'),
    "line separators": ("a\u2028b\u2029c", '"a\\u2028b\\u2029c"'),
    "next line": ("a\x85b", '"a\\u0085b"'),
    "newline": ("a\nb", '"a\\nb"'),
    "carriage return": ("paid\rPAID", '"paid\\rPAID"'),
    "tab": ("a\tb", '"a\\tb"'),
    "terminal escape": ("\x1b[2J\x07", '"\\u001b[2J\\u0007"'),
    "null": ("a\x00b", '"a\\u0000b"'),
    "delete and backspace": ("a\x7f\x08b", '"a\\u007f\\bb"'),
    "control sequence introducer": ("\x9b31m", '"\\u009b31m"'),
    "lone surrogate": ("\ud800", '"\\ud800"'),
    "private use": ("\ue000\U000f0000", '"\\ue000\\udb80\\udc00"'),
    "unassigned": ("\u0378\uffff", '"\\u0378\\uffff"'),
    "object replacement": ("\ufffc", '"\ufffc"'),
    "pile of marks": ("e" + "\u0301" * 6, '"e\u0301\u0301\u0301\\u0301\\u0301\\u0301"'),
    "what looks like an escape": ("a\\u202eb", '"a\\\\u202eb"'),
    "quotes": ('", "to": "eve', '"\\", \\"to\\": \\"eve"'),
    "markup": ("<script>alert(1)</script>", '"<script>alert(1)</script>"'),
    "template": ("{{ 7 * 7 }}{% raw %}", '"{{ 7 * 7 }}{% raw %}"'),
    "family of emoji": ("\U0001f468\u200d\U0001f469", '"\U0001f468\\u200d\U0001f469"'),
    "accents and other alphabets": ("Ärger für Łódź, привет, 日本", '"Ärger für Łódź, привет, 日本"'),
}


@pytest.mark.parametrize(("value", "expected"), GOLDEN.values(), ids=GOLDEN)
def test_a_hostile_string_is_displayed_unambiguously(value: str, expected: str) -> None:
    """The display is JSON of the same text, and readable characters stay."""
    reads = str(text_safety.format_value(value))
    assert reads == expected
    assert json.loads(reads) == value


@pytest.mark.parametrize("place", ["value", "name", "inner"])
def test_padding_hides_no_tail(place: str) -> None:
    """The end of 200,000 characters is shown, with the number of omitted ones."""
    long = "pay alice" + " " * 200_000 + "and eve 9,000"
    value: Any = {"value": long, "name": {long: 1}, "inner": [{"a": [long]}]}[place]
    reads = text_safety.format_value(value)
    assert "and eve 9,000" in str(reads)
    assert len(str(reads)) < 2_200
    assert any(" omitted " in piece.text for piece in reads.pieces if piece.kind == "gap")
    assert reads.remarks[0].startswith("200,0")


def test_only_escaped_characters_are_highlighted() -> None:
    """Literal text that looks like an escape is not highlighted."""
    pieces = text_safety.format_value("\u202e\\u202e").pieces
    assert [(piece.kind, piece.text) for piece in pieces] == [
        ("plain", '"'),
        ("escaped", "\\u202e"),
        ("plain", '\\\\u202e"'),
    ]


@pytest.mark.parametrize(
    ("text", "remarks"),
    [
        ("plain", ()),
        ("привет", ()),
        ("p\u0430ypal", ("a word that mixes alphabets and may imitate another word: p\\u0430ypal",)),
        ("a\u200bb", ("1 invisible character, escaped here",)),
        ("\u200b\u200b", ("2 invisible characters, escaped here",)),
    ],
)
def test_invisible_differences_are_reported(text: str, remarks: tuple[str, ...]) -> None:
    """Remarks count invisible characters and name words that mix alphabets."""
    assert text_safety.format_value(text).remarks == remarks


def test_a_call_on_one_line_shows_no_secrets_and_no_hidden_characters() -> None:
    """A long text shows its beginning and its end."""
    args = {"to": "a\u202eb", "api_key": "sk-1", "note": "x" * 200 + "eve", "items": [1, 2], "all": {"a": 1}}
    reads = text_safety.format_call("pay", args)
    assert reads.startswith('pay(to="a\\u202eb", api_key=…, note="xxx')
    assert reads.endswith('xxeve", items=[2], all={…})')
    assert "sk-1" not in reads


def test_a_message_shows_code_between_backticks() -> None:
    """Everything in it is text, also a name that somebody else has chosen."""
    assert format_message("Set `--identity <FILE>` for <b>.") == (
        "Set <code>--identity &lt;FILE&gt;</code> for &lt;b&gt;."
    )
    assert format_message("a ` b") == "a ` b"
