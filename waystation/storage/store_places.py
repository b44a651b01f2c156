"""The configured locations of stores: a path, a URL, or `python:MODULE:NAME` for an author's own store."""

import pkgutil
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from waystation.core import with_article

T = TypeVar("T")

PYTHON = "python:"
KEYRING = "keyring:"


def local_path(place: str | Path) -> Path | None:
    """Return the file or folder that a location refers to, or None for a URL of another kind and for other stores."""
    text = str(place)
    if text.startswith("file://"):
        return Path(unquote(urlsplit(text).path))
    return None if "://" in text or text.startswith((PYTHON, KEYRING)) else Path(place)


def load_store(place: str | Path, kind: type[T]) -> T | None:
    """Return the store at a location of the form `python:MODULE:NAME`, or None if the location has another form.

    The name must be a store, or a class or function that returns one.

    Raises:
        ValueError: The name does not exist, or is not a store of this kind.
    """
    if not str(place).startswith(PYTHON):
        return None
    try:
        value = pkgutil.resolve_name(str(place).removeprefix(PYTHON))
        store = value if isinstance(value, kind) else value()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{str(place)!r} is not a {kind.__name__}: {error}.") from None
    if not isinstance(store, kind):
        raise ValueError(f"{str(place)!r} is {with_article(store)}. It must be a {kind.__name__}.")
    return store
