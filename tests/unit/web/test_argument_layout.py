"""The layout of arguments for approvers."""

from typing import Any

import pytest

from waystation.presentation.argument_layout import lay_out, lay_out_arguments


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("Rose Roofing", "text"),
        ("a\nb", "text"),
        ("x" * 501, "folded"),
        ("line\n" * 20, "folded"),
        (5, "code"),
        (True, "code"),
        (None, "code"),
        (48_250.5, "number"),
        (-1_234_567, "number"),
        (1e300, "code"),
        ([], "code"),
        ({}, "code"),
        ([1, 2], "items"),
        ({"a": 1}, "fields"),
        ([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], "table"),
        ([{"a": 1}, {"b": 2}], "items"),
        ([{"a": "x" * 101}], "items"),
        (list(range(51)), "code"),
        (["x" * 1_000] * 30, "code"),
    ],
)
def test_a_value_is_laid_out_by_its_shape(value: Any, kind: str) -> None:
    """Small lists and objects are laid out, and large ones stay JSON."""
    assert lay_out(value).kind == kind


@pytest.mark.parametrize(
    "value", ["5", "5,000.00", "true", "NULL", "", " a", "a ", "a\n", '"a"', "“a”", "[1]", "{}", "1e9"]
)
def test_text_that_could_be_mistaken_for_another_value_keeps_its_quotation_marks(value: str) -> None:
    """The text `true` keeps its quotation marks, so that it differs from the value true."""
    assert str(lay_out(value).text)[0] == '"'


def test_the_digits_of_a_long_number_are_grouped_without_changing_them() -> None:
    """The style sheet separates the groups, so copies of the number are exact."""
    for number, groups in ((48_250.5, ("48", "250", ".5")), (-1_234_567, ("-1", "234", "567", ""))):
        assert lay_out(number).groups == groups
        assert "".join(groups) == str(number)


def test_deep_values_become_json_at_the_third_level() -> None:
    """Values below the second level become JSON, because deeper nesting would not fit a phone."""
    inner = lay_out({"a": {"b": {"c": {"d": 1}}}}).items[0].items[0].items[0]
    assert (inner.kind, str(inner.text)) == ("code", '{\n  "d": 1\n}')


def test_folded_text_shows_its_beginning_and_its_end() -> None:
    """Folded text shows its end, too, where malicious content is often hidden."""
    folded = lay_out("begin " + "x" * 5_000 + " end")
    assert folded.preview is not None
    assert str(folded.preview).startswith("begin ")
    assert str(folded.preview).endswith(" end")
    assert "5,010 characters" in folded.text.remarks if folded.text else False


def test_a_value_whose_name_suggests_a_secret_is_marked_at_any_depth() -> None:
    """The page shows such a value only after a click."""
    rows = lay_out_arguments({"to": "a", "login": {"password": "hunter2"}, "api_key": "k"})
    assert [row["secret"] for row in rows] == [False, True, True]
