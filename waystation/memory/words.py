"""What counts as a word when memories are searched."""

import itertools
import re
import unicodedata

_SPACELESS = re.compile(
    # Thai, Lao, Myanmar, Khmer; kana; Han.
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""A character of a script that puts no spaces between words: each counts as a word of its own."""


def words_of(text: str) -> set[str]:
    """Return the words of a text in lower case."""
    return {word.lower() for word in re.findall(r"\w+", unicodedata.normalize("NFC", text))}


def searchable_words(text: str) -> set[str]:
    """Return what a memory is found by: its words, and the Latin and other runs of words that mix scripts."""
    words = words_of(text)
    mixed = [word for word in words if not word.isascii()]
    return words.union("".join(run) for word in mixed for _, run in itertools.groupby(word, _is_latin))


def spaced(text: str) -> str:
    """Return a text with spaces around every character of a script that has none, for an index that splits at them."""
    return _SPACELESS.sub(r" \g<0> ", unicodedata.normalize("NFC", text))


def terms(query: str) -> list[str]:
    """Return what a query looks for, each once and in its order: a word, or adjacent characters of a spaceless script.

    Only letters, digits, marks and single spaces are in it.
    """
    found: dict[str, None] = {}
    runs = itertools.groupby(unicodedata.normalize("NFC", query), _kind)
    for kind, run in runs:
        if kind:
            text = "".join(run).lower()
            found[" ".join(text) if kind == "spaceless" else text] = None
    return list(found)


def _kind(character: str) -> str:
    if _SPACELESS.match(character):
        return "spaceless"
    return "word" if unicodedata.category(character)[0] in "LMN" else ""


def _is_latin(character: str) -> bool:
    if character.isascii():
        return character.isalnum() or character == "_"
    return unicodedata.name(character, "").startswith("LATIN")
