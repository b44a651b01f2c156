"""The configured locations of stores: a path, a URL, or `python:MODULE:NAME` for an author's own store.

Other packages may provide the stores at URLs of further schemes.
"""

import pkgutil
import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from waystation.core.naming import with_article
from waystation.extensions import STORES, find_extensions, load_extension
from waystation.import_path import add_project

T = TypeVar("T")

PYTHON = "python:"
OWN_SCHEMES = frozenset(
    {
        *("file", "memory", "postgres", "postgresql", "s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss"),
        *("http", "https"),
    }
)
"""The schemes of the URLs of Waystation's own stores."""
_LOGIN = re.compile(r"(?<=://)\S*@|\?\S*")
"""Matches the user and password in a URL, and its query string, which may contain a password or a signature."""


def local_path(place: str | Path) -> Path | None:
    """Return the path of the local file or folder that a location refers to, or None for any other kind of store."""
    text = str(place)
    if text.startswith("file://"):
        return Path(unquote(urlsplit(text).path))
    return None if "://" in text or text.startswith(PYTHON) else Path(place)


def is_on_this_machine(place: str | Path) -> bool:
    """Return whether only this machine can use the store at a location."""
    return local_path(place) is not None or str(place).startswith("memory:")


def describe_place(place: str | Path) -> str:
    """Return a location as a URL without credentials, or unchanged if it is not a path or URL."""
    path = local_path(place)
    return _LOGIN.sub("", str(place)).rstrip("/") if path is None else path.absolute().as_uri()


def load_store(place: str | Path, kind: type[T], opener: str) -> T | None:
    """Return the store at `python:MODULE:NAME`, or at a URL whose scheme another package provides, or None.

    The name must be a store, or a class or function that returns one. Its module may be in the current folder.
    `opener` is the method of `StoreScheme` that opens such stores.

    Raises:
        ValueError: The name or the method does not exist, or yields no store of this kind.
        ExtensionFailed: The package cannot be loaded.
    """
    text = str(place)
    try:
        if text.startswith(PYTHON):
            add_project(Path.cwd())
            value = pkgutil.resolve_name(text.removeprefix(PYTHON))
            store = value if isinstance(value, kind) else value()
        elif entry := _find_scheme(text):
            store = getattr(load_extension(entry), opener)(text)
        else:
            return None
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(_LOGIN.sub("", f"{text!r} is not a {kind.__name__}: {error}.")) from None
    if not isinstance(store, kind):
        raise ValueError(f"{_LOGIN.sub('', text)!r} is {with_article(store)}. It must be a {kind.__name__}.")
    return store


def _find_scheme(url: str) -> EntryPoint | None:
    scheme, is_url, _ = url.partition("://")
    return find_extensions(STORES).get(scheme) if is_url and scheme not in OWN_SCHEMES else None
