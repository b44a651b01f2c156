"""Arguments that author code gives to a context, looked at where they are given.

Deeper down a wrong one would end in an error about our own code.
"""

import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from waystation.core.naming import a

if TYPE_CHECKING:
    from waystation.auth.auth_tool import AuthConfig


def text_given(method: str, name: str, value: object) -> None:
    """Refuse what is no text.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"`{name}` of `{method}` is {reprlib.repr(value)}; use text.")


def version_given(method: str, value: object) -> None:
    """Refuse what is no number of a version, and not None.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, int | None):
        raise TypeError(
            f"`version` of `{method}` is {reprlib.repr(value)}; use a whole number, or None for the latest."
        )


def list_given(method: str, name: str, value: object, kind: str) -> None:
    """Refuse what is no list of things with a content, as events and memories have it.

    Raises:
        TypeError: It is none.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"`{name}` of `{method}` is {reprlib.repr(value)}; use a list of {kind} objects.")
    # By attribute, since ADK's own types will do. An iterator could be looked at only once.
    for item in value if isinstance(value, list | tuple) else ():
        if not hasattr(item, "content"):
            text = f"`{name}` of `{method}` has {reprlib.repr(item)} in it; use a list of {kind} objects."
            raise TypeError(text)


def config_given(method: str, value: object) -> "AuthConfig":
    """Return what is an AuthConfig. What is none is not shown, since it may be a credential.

    Raises:
        TypeError: It is none.
    """
    from waystation.auth.auth_tool import AuthConfig

    if not isinstance(value, AuthConfig):
        raise TypeError(f"`auth_config` of `{method}` is {a(value)}; use an AuthConfig.")
    return value
