"""The page that lists every error by name."""

from docs.errors import PAGE, format_page, list_errors, read_errors
from waystation import WaystationError
from waystation.core import errors

LISTED = list(list_errors(read_errors()))


def test_the_page_equals_the_docstrings() -> None:
    """The page is up to date; run `python -m docs.errors` after changing the docstring of an error class."""
    assert PAGE.read_text(encoding="utf-8") == format_page()


def test_each_docstring_has_the_meaning_and_the_remedy() -> None:
    """Each docstring has two paragraphs: the meaning and the remedy."""
    assert [error.name for error in LISTED if len(error.paragraphs) < 2] == []


def test_the_catalogue_is_complete() -> None:
    """The catalogue has each public error class of the core, and classes of other packages that derive from them."""
    core = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    names = {error.name for error in LISTED}
    assert core - names == {WaystationError.__name__}
    assert {"StateRefused", "OutcomeUnknown", "AdkUnavailable", "ServerFailed"} <= names
