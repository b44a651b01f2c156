"""Which scripts a name mixes, because letters of different scripts can look the same.

The rule is the restriction level "highly restrictive" of Unicode Technical Standard 39. Only activities use it: its
result depends on the Unicode version of Python, so a replay could decide differently.
"""

import unicodedata

_ALIASES = {"CJK": "HAN", "IDEOGRAPHIC": "HAN"}
_COMMON = frozenset({"MODIFIER", "KATAKANA-HIRAGANA"})
"""First words of the names of letters that several scripts share."""
_ALLOWED = tuple(
    frozenset({"LATIN", "HAN", *others}) for others in (("HIRAGANA", "KATAKANA"), ("BOPOMOFO",), ("HANGUL",))
)
"""Scripts that one name may combine, as Japanese, Chinese and Korean names do."""


def find_mixed_scripts(name: str) -> list[str]:
    """Return the scripts that a name mixes, in alphabetical order, or an empty list if they may be combined."""
    letters = (char for char in unicodedata.normalize("NFKC", name) if unicodedata.category(char).startswith("L"))
    words = {unicodedata.name(char, "UNKNOWN").partition(" ")[0] for char in letters} - _COMMON
    scripts = {_ALIASES.get(word, word) for word in words}
    return [] if len(scripts) < 2 or any(scripts <= allowed for allowed in _ALLOWED) else sorted(scripts)
