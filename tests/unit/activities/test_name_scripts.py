"""Names that mix scripts are reported, because they can look like other names."""

import pytest

from waystation.activities.name_scripts import find_mixed_scripts


@pytest.mark.parametrize(
    "name",
    [
        "dana",
        "9f-1@x.io",
        "\u0438\u0432\u0430\u043d",
        "\u7530\u4e2d\u308a\u30ab\u30fc Rie",
        "\uae40 \u91d1 Kim",
        "\u00e9lan\u00aa",
        "",
    ],
)
def test_names_of_one_script_and_usual_combinations_are_accepted(name: str) -> None:
    """Latin, Cyrillic, Japanese and Korean names, accents, digits and signs are accepted."""
    assert find_mixed_scripts(name) == []


@pytest.mark.parametrize(
    ("name", "scripts"),
    [
        ("d\u0430na", ["CYRILLIC", "LATIN"]),
        ("dan\u03b1@example.com", ["GREEK", "LATIN"]),
        ("\uff44\u0430na", ["CYRILLIC", "LATIN"]),  # a full-width letter counts as its usual form
        ("\u30ab\u3105\u7530", ["BOPOMOFO", "HAN", "KATAKANA"]),
    ],
)
def test_names_of_several_scripts_are_found(name: str, scripts: list[str]) -> None:
    """A name with a letter of another script is reported, because it can look like another name."""
    assert find_mixed_scripts(name) == scripts
