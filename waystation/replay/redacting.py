"""What stands in place of a value that a rule hides: as long, of the same type, and the same for the same value.

Equal values stay equal and different ones different, so that whatever the engine compares compares alike; nothing leads
back from what stands there to what stood there.
"""

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from waystation.core.errors import WaystationError
from waystation.core.policy import OPERATOR, ROLE
from waystation.core.sealed import is_sealed
from waystation.core.secrets import looks_secret, named_secret
from waystation.core.summary import SECRET_NAMES
from waystation.core.wire import DEFAULT_APP, DEFAULT_USER

SECRETS, TEXT, FIELD = "secrets", "text", "field:"
MIN_FOUND_CHARS = 4
"""A hidden value that is shorter is not looked for in other texts: it would be found in innocent ones."""
_KEPT = frozenset({DEFAULT_USER, DEFAULT_APP, OPERATOR, OPERATOR.removeprefix(ROLE)})
"""Defaults, which histories leave out and the engine compares with."""
_PLAIN_KEY = re.compile(r"[A-Za-z_$][\w$.:-]{0,63}", re.ASCII)
_TOKENS = re.compile(
    r"\b(?:sk|pk|rk|gh[pousr]|xox[abprs]|glpat|hf)[-_][A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{35}"
    r"|\beyJ[\w-]{8,}|://[^/\s:@]+:[^/\s@]+@|-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:Bearer|Basic)\s+\S{6,}"
)
"""What the keys of well-known services look like, beside what no history takes in the first place."""
_USED_UP = re.compile(r"max_\w+: the limit of [\d.]+ [a-z ]{,20} is used up", re.ASCII)
"""What the engine says of a budget; whoever else says so tells nothing."""
# One letter for each length that a character may have in UTF-8, so that what is written stays as long.
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "àáâãäåæçèéêëìíîï",
    "一丁七万丈三上下不与丐丑专且世丘",
    "😀😁😂😃😄😅😆😇😈😉😊😋😌😍😎😏",
)
_HARMLESS = frozenset({"credentialKey", "credential_key", "requestedAuthConfigs", "requested_auth_configs"})
_ESCAPED = frozenset('"\\')


class InvalidRule(WaystationError):
    """A rule of redaction is none."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What is hidden."""

    text: bool = False
    """All text that people, models and tools wrote."""
    fields: tuple[tuple[str, ...], ...] = ()
    """Fields by name, or by the last names of their paths."""

    @classmethod
    def of(cls, rules: Iterable[str]) -> "Rules":
        """Read rules: `secrets`, `text`, `field:NAME`, `field:some.path`. Secrets are hidden under each of them.

        Raises:
            InvalidRule: One is none.
        """
        text, fields = False, list[tuple[str, ...]]()
        for rule in rules:
            path = tuple(rule.removeprefix(FIELD).split("."))
            if rule == TEXT:
                text = True
            elif rule.startswith(FIELD) and all(path):
                fields.append(path)
            elif rule != SECRETS:
                raise InvalidRule(
                    f"{rule!r} is no rule; there are `secrets`, `text` and `field:NAME`, such as field:email."
                )
        return cls(text, tuple(fields))

    def hides(self, path: Sequence[str]) -> bool:
        """Whether whatever is at a path is hidden, by a name in it."""
        return named_secret(path[-1]) or any(tuple(path[-len(each) :]) == each for each in self.fields)

    def hides_texts(self, name: str) -> bool:
        """Whether texts under a name are hidden, though a number may be a count, as in `total_tokens`."""
        return SECRET_NAMES.search(name) is not None and name not in _HARMLESS


@dataclass
class Redactor:
    """Hides values by rules; the same value in the same way wherever it stands."""

    rules: Rules
    key: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    """Without it nobody can try out what a value was."""
    digests: dict[str, str] = field(default_factory=dict)
    """Digests of what was approved, with those of what stands there now."""
    derived: dict[str, str] = field(default_factory=dict)
    """Texts that the engine made of what was recorded, with those that it makes of what stands there now."""
    hidden: set[str] = field(default_factory=set)
    """Texts that were hidden, other than by the rule for all text; they are looked for in other texts."""
    in_ids: set[str] = field(default_factory=set)
    """Names of which ids are made, which stay, and so do these."""
    _given: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _pattern: re.Pattern[str] | None = None

    def look_for_hidden(self) -> None:
        """From now on hide in other texts, too, what was hidden so far."""
        wanted = sorted((text for text in self.hidden if len(text) >= MIN_FOUND_CHARS), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, wanted))) if wanted else None

    def free(self, value: Any, path: tuple[str, ...] = (), *, covered: bool = False, texts: bool = False) -> Any:
        """Return JSON of no known type; `covered` when a name above it is hidden, `texts` when for texts only."""
        match value:
            case dict():
                return {
                    self.name(key): self.free(
                        item,
                        at,
                        covered=covered or self.rules.hides(at),
                        texts=texts or self.rules.hides_texts(key),
                    )
                    for key, item in value.items()
                    for at in [(*path, key)]
                }
            case list():
                return [self.free(item, path, covered=covered, texts=texts) for item in value]
            case str():
                return self.hide(value) if covered or texts else self.text(value)
            case int() | float() if covered and not isinstance(value, bool):
                return self._number(value)
            case _:
                return value

    def name(self, key: str) -> str:
        """Return a key of JSON: what is a name stays, what is a text does not."""
        if self.rules.text and not _PLAIN_KEY.fullmatch(key):
            return self.stand_in(key)
        return key if _PLAIN_KEY.fullmatch(key) else self._found(key)

    def text(self, text: str) -> str:
        """Return a text."""
        if known := self.digests.get(text) or self.derived.get(text):
            return known
        if self.rules.text or text in self.hidden:
            return self.stand_in(text)
        if looks_secret(text) or _TOKENS.search(text):
            return self.hide(text)
        return self._found(text)

    def hide(self, text: str) -> str:
        """Return what stands for a text that is hidden everywhere."""
        self.hidden.add(text)
        return self.stand_in(text)

    def _found(self, text: str) -> str:
        return self._pattern.sub(lambda found: self.stand_in(found[0]), text) if self._pattern else text

    def stand_in(self, text: str) -> str:
        """Return what stands for a text, without looking for it in others."""
        if known := self.digests.get(text) or self.derived.get(text):
            return known
        if text in _KEPT or text in self.in_ids or not text.strip() or _USED_UP.fullmatch(text):
            return text
        if text.startswith(ROLE):
            return ROLE + self.stand_in(text.removeprefix(ROLE))
        if (made := self._given.get(text)) is None:
            for attempt in range(20):  # until it is no other's; of one letter there are not many
                made = self._made(text, attempt)
                if made not in self._taken:
                    break
            assert made is not None
            self._given[text] = made
            self._taken.add(made)
        return made

    def _made(self, text: str, attempt: int) -> str:
        stream = hashlib.shake_256(self.key + attempt.to_bytes(2, "big") + text.encode()).digest(len(text))
        letters = "".join(map(_letter, text, stream))
        if is_sealed(text):  # an answer with any other token would have been refused
            head, *parts = text.split(".")
            head = base64.urlsafe_b64encode(json.dumps({"enc": "x"}).encode()).decode().rstrip("=") if head else ""
            return ".".join([head, *(letters[: len(part)] for part in parts)])
        # An answer that looked like a secret was refused for that, and has to look like one.
        return f"?code={letters[6:]}" if looks_secret(text) else letters

    def _number(self, value: float) -> float:
        """Return another number with as many digits."""
        written = repr(value)
        if "e" in written or "n" in written:
            return value
        stream = hashlib.shake_256(self.key + written.encode()).digest(len(written))
        digits = "".join(
            str(1 + byte % 9) if char.isdigit() else char for char, byte in zip(written, stream, strict=True)
        )
        return type(value)(digits)


def _letter(char: str, byte: int) -> str:
    if char in _ESCAPED or char < " ":  # written as two characters or more
        return " " if char == "\x7f" else char
    alphabet = _ALPHABETS[len(char.encode()) - 1]
    return alphabet[byte % len(alphabet)]
