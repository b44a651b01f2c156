"""Detect and mask secrets, so that none of them ends up in a history.

Histories cannot be edited: once recorded, a secret stays readable to everyone with access to the namespace.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

HIDDEN = "<secret>"
"""Placeholder that replaces a masked secret."""
MIN_MASKED_CHARS = 6
"""Secrets shorter than this are not masked, because ordinary text could contain them by chance."""

SECRET_KEYS = frozenset(
    {
        "accesskey",
        "accesstoken",
        "additionalheaders",
        "apikey",
        "assertion",
        "authcode",
        "authorization",
        "authorizationcode",
        "authresponseuri",
        "authtoken",
        "bearer",
        "bearertoken",
        "clientassertion",
        "clientsecret",
        "code",
        "codeverifier",
        "cookie",
        "idtoken",
        "passphrase",
        "passwd",
        "password",
        "privatekey",
        "privatekeyid",
        "refreshtoken",
        "secret",
        "secretkey",
        "sessiontoken",
        "token",
        "xapikey",
    }
)
"""Names of JSON fields that hold secrets: ADK's credential fields and common alternatives. The names are lowercase and
have no `_` or `-`."""

SECRET_NAMES = re.compile(r"pass(word|wd|phrase)?$|secret|token|api_?key|credential|authorization", re.IGNORECASE)
"""Matches names whose values are hidden wherever people see them, except token counts. The pattern is broader than
`SECRET_KEYS`, because hiding a value by mistake costs less than refusing an answer by mistake. However, it does not
match `code`, because approvers must see code."""

_COUNTS = re.compile(r"tokens$|token_?count$", re.IGNORECASE)
"""Matches names of token counts, such as `max_output_tokens`. A number with such a name is displayed, even though
`SECRET_NAMES` matches the name, too."""

_SECRET_TEXTS = re.compile(
    r"[?&#](?:code|access_token|id_token|refresh_token)=[^&#\s]"  # redirect URLs of logins
    r"|^(?:Bearer|Basic)\s+\S{6,}$"
    r"|\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*"  # a signed token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


class Secret(str):
    """Part of a credential: an ordinary string with a masked `repr`.

    `payload.to_plain_json` rejects it, so a tool cannot return it or write it to state. Strings built from a `Secret`
    are not protected.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return HIDDEN


def named_secret(name: str) -> bool:
    """Return whether the name is one of `SECRET_KEYS`. Case, `_` and `-` are ignored."""
    return re.sub(r"[_-]", "", name).lower() in SECRET_KEYS


def is_hidden(name: str, value: Any) -> bool:
    """Return whether to hide a value from display because its name suggests a secret. Token counts are not hidden."""
    return SECRET_NAMES.search(name) is not None and not (isinstance(value, int | float) and _COUNTS.search(name))


def hide_named_secrets(value: Any, name: str = "") -> Any:
    """Return a JSON value for display, with "…" in place of each value whose name suggests a secret.

    It is used for all text that people read, in commands, web pages, reports and notifications. The JSON output of
    commands and of the web is meant for programs and is complete.

    Args:
        value: The value.
        name: The name of the value, such as the name of an argument or a state key.
    """
    if is_hidden(name, value):
        return "…"
    match value:
        case dict():
            return {key: hide_named_secrets(item, str(key)) for key, item in value.items()}
        case list():
            return [hide_named_secrets(item, name) for item in value]
        case _:
            return value


def hide_secrets_at(place: str, value: Any) -> Any:
    """Return the value at a place such as `args.login[0].password` for display, with secrets hidden.

    If any name in `place` suggests a secret, the whole value is hidden.
    """
    names = re.findall(r"[^.\[\]]+", place)
    return "…" if any(is_hidden(name, value) for name in names) else hide_named_secrets(value)


def has_named_secret(value: Any, name: str = "") -> bool:
    """Return whether `hide_named_secrets` hides at least a part of a value."""
    return bool(hide_named_secrets(value, name) != value)


def looks_secret(text: str) -> bool:
    """Return whether a string has the form of a secret, such as a bearer token or a private key."""
    return _SECRET_TEXTS.search(text) is not None


def secret_keys(response: Any) -> list[str]:
    """Return the paths in a JSON value that look like secrets, such as `oauth2.accessToken`.

    A value looks like a secret if it is a string or number in a field with a secret's name, or if it is a string in
    the form of a secret.
    """
    return list(_secret_paths(response, "", named=False))


def _secret_paths(value: Any, path: str, *, named: bool) -> Iterable[str]:
    match value:
        case dict():
            for key, item in value.items():
                yield from _secret_paths(item, f"{path}.{key}" if path else str(key), named=named_secret(str(key)))
        case list():
            for number, item in enumerate(value):
                yield from _secret_paths(item, f"{path}[{number}]", named=named)
        case str() if value and (named or looks_secret(value)):
            yield path
        case int() | float() if named and not isinstance(value, bool):
            yield path


def mask(value: Any, secrets: Iterable[str]) -> Any:
    """Return a JSON value with `secrets` masked, both in strings and in keys, except those that are too short.

    Their usual encodings are masked, too.
    """
    forms = {form for text in secrets if len(text) >= MIN_MASKED_CHARS for form in _encode(text)}
    maskable = sorted(forms, key=len, reverse=True)
    if not maskable:
        return value
    return _masked(value, re.compile("|".join(map(re.escape, maskable))))


def _encode(secret: str) -> Iterator[str]:
    """Yield a secret as it is, percent-encoded, escaped in JSON, hexadecimal, and in a text in Base64."""
    data = secret.encode(errors="surrogatepass")
    yield from (secret, quote(data, safe=""), json.dumps(secret)[1:-1], data.hex(), data.hex().upper())
    for before in range(3):  # in Base64, a text depends on its position modulo 3
        encoded = b64encode(bytes(before) + data).decode()
        # Leave out the characters at both ends that also depend on what precedes and follows.
        text = encoded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        yield from (text, text.translate(str.maketrans("+/", "-_")))


def token_parts(token: str) -> tuple[str, ...]:
    """Return a signed token and its parts that have secrets. The first one is the same in all tokens of its kind."""
    return token, *token.split(".")[1:]


def _masked(value: Any, pattern: re.Pattern[str]) -> Any:
    match value:
        case dict():
            return {_masked(key, pattern): _masked(item, pattern) for key, item in value.items()}
        case list():
            return [_masked(item, pattern) for item in value]
        case tuple():
            return tuple(_masked(item, pattern) for item in value)
        case str():
            return pattern.sub(HIDDEN, value)
        case _:
            return value


def is_private_url(url: str) -> bool:
    """Return whether HTTP traffic to a URL is private, because it uses TLS or does not leave this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(host)
    return parts.scheme == "http" and host in ("localhost", "127.0.0.1", "::1")
