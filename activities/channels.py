"""The channels by which a worker tells people, as a file configures them, and how each is reached.

Policies and histories know channels by name only: addresses and keys stay in the worker.
"""

import asyncio
import base64
import logging
import os
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

from pydantic import BeforeValidator, Field, ValidationError

from waystation.activities.notices import Notice
from waystation.configuration import PREFIX, Section, first_fault, take
from waystation.core.errors import InvalidConfiguration, WaystationError
from waystation.core.payload import encode
from waystation.core.places import trusted

if TYPE_CHECKING:
    from apprise import Apprise
    from standardwebhooks import Webhook

CHANNELS_ENV = "WAYSTATION_CHANNELS"
WEBHOOK_LIMIT_S = 10.0
MIN_SECRET_BYTES = 24
"""As Standard Webhooks asks for."""
_WORTH_ANOTHER = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_NEEDED = "needs {name!r}; install it with: pip install 'waystation[notify]'"


class NotDelivered(WaystationError):
    """A notice did not arrive. The message holds no address."""

    def __init__(self, problem: str, *, passing: bool = True) -> None:
        self.passing = passing
        """Whether another attempt may succeed."""
        super().__init__(problem)


class WebhookSection(Section):
    """`webhook`: where notices are posted as JSON, signed as Standard Webhooks has it."""

    url: str
    secret_file: str
    """A file, or `env:NAME`, with `whsec_…`."""


class ChannelSection(Section):
    """`[channels.NAME]`: people who are told together."""

    urls: Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)] = ()
    """Addresses as apprise knows them, or `env:NAME` for a variable that holds some."""
    webhook: WebhookSection | None = None
    person: str | None = Field(default=None, min_length=1, max_length=300)
    """Whose channel it is, when it is one person's: links are made for that person."""


class _File(Section):
    channels: dict[str, ChannelSection] = {}
    default: tuple[str, ...] = ()
    """Who is told of whatever waits, unless a policy names others."""
    inbox: str | None = None
    """Where `waystation web` is reached: links lead there."""


class Target(Protocol):
    """One address of a channel."""

    async def deliver(self, notice: Notice, id: str) -> None:
        """Deliver a notice; the same `id` is the same notice again.

        Raises:
            NotDelivered: It did not arrive.
        """


class Channel:
    """People who are told together."""

    def __init__(self, targets: Sequence[Target], person: str | None = None) -> None:
        self.targets, self.person = targets, person


class Channels:
    """All channels that a worker knows."""

    def __init__(
        self, channels: Mapping[str, Channel], *, default: Sequence[str] = (), inbox: str | None = None
    ) -> None:
        self._channels, self.default = channels, tuple(default)
        self.inbox = inbox.rstrip("/") if inbox else None
        """Where people find what waits; None when nobody said."""

    def get(self, name: str) -> Channel | None:
        """Return a channel; None when this worker knows none of that name."""
        return self._channels.get(name)

    @classmethod
    def read(cls, file: str | Path) -> "Channels":
        """Read a configuration.

        Raises:
            InvalidConfiguration: It cannot be used. The message holds no address.
        """
        path = Path(file)
        try:
            content = _File.model_validate(tomllib.loads(path.read_text()))
        except ValidationError as error:
            raise InvalidConfiguration(path, *first_fault(error)) from None
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfiguration(path, "", f"is not TOML: {error}.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfiguration(path, "", f"cannot be read ({type(error).__name__}).") from None
        for name in content.default:
            if name not in content.channels:
                raise InvalidConfiguration(path, "default", f"names {name!r}, but there is no [channels.{name}].")
        if content.inbox is not None and not trusted(content.inbox):
            raise InvalidConfiguration(path, "inbox", "is no https address; links would be seen by others.")
        found = {name: _channel(path, f"channels.{name}", section) for name, section in content.channels.items()}
        return cls(found, default=content.default, inbox=content.inbox)


def channels_of(file: Path | None) -> Channels | None:
    """Return the channels of a file, or of the one that the environment names; None when there is none.

    Raises:
        InvalidConfiguration: It cannot be used.
    """
    name = file or os.environ.get(CHANNELS_ENV)
    return Channels.read(name) if name else None


class AppriseTarget:
    """An address that apprise knows: e-mail, a chat, a telephone."""

    def __init__(self, apprise: "Apprise") -> None:
        self._apprise = apprise

    async def deliver(self, notice: Notice, id: str) -> None:
        """Deliver a notice; see `Target`."""
        # It blocks; and what it raises may quote the address, though it rarely raises anything.
        try:
            delivered = await asyncio.to_thread(
                self._apprise.notify, body=notice.text, title=notice.title, body_format="text"
            )
        except Exception as error:  # noqa: BLE001  # of any of a hundred plugins
            raise NotDelivered(type(error).__name__) from None
        if not delivered:
            raise NotDelivered("Refused")


class WebhookTarget:
    """A program that is told by a signed request."""

    def __init__(self, url: str, signing: "Webhook") -> None:
        self._url, self._signing = url, signing

    async def deliver(self, notice: Notice, id: str) -> None:
        """Deliver a notice; see `Target`."""
        import httpx2

        body, now = encode(notice.record), datetime.now(UTC)
        headers = {
            "content-type": "application/json",
            "webhook-id": id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signing.sign(id, now, body.decode()),
        }
        try:
            async with (
                asyncio.timeout(WEBHOOK_LIMIT_S),
                httpx2.AsyncClient(timeout=WEBHOOK_LIMIT_S, follow_redirects=False) as client,
            ):
                status = (await client.post(self._url, content=body, headers=headers)).status_code
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            raise NotDelivered(type(error).__name__) from None
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            passing = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _WORTH_ANOTHER
            raise NotDelivered(f"Status{status}", passing=passing)


def _channel(file: Path, key: str, section: ChannelSection) -> Channel:
    targets: list[Target] = [
        AppriseTarget(_apprise(file, f"{key}.urls.{number}", url))
        for number, given in enumerate(section.urls)
        for url in _secret(file, f"{key}.urls.{number}", given).split()
    ]
    if section.webhook is not None:
        targets.append(_webhook(file, f"{key}.webhook", section.webhook))
    if not targets:
        raise InvalidConfiguration(file, key, "has neither `urls` nor a `webhook`.")
    return Channel(targets, section.person)


def _apprise(file: Path, key: str, url: str) -> "Apprise":
    try:
        from apprise import Apprise, AppriseAsset
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(file, key, _NEEDED.format(name=error.name)) from None
    # What it logs has parts of addresses.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    made = Apprise(asset=AppriseAsset(app_id="Waystation", app_desc="Waystation", storage_mode="memory"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of modules that it imports now
        known = made.add(url)
    if not known:
        raise InvalidConfiguration(file, key, "is no address that apprise knows.")
    return made


def _webhook(file: Path, key: str, section: WebhookSection) -> WebhookTarget:
    try:
        import httpx2  # noqa: F401  # needed when something is told, and better missed now
        from standardwebhooks import Webhook
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(file, key, _NEEDED.format(name=error.name)) from None
    if not trusted(section.url):
        raise InvalidConfiguration(file, f"{key}.url", "is no https address; others would read what waits.")
    name = section.secret_file
    if name.startswith(PREFIX):
        secret = _secret(file, f"{key}.secret_file", name)
    else:
        try:
            secret = (file.parent / Path(name).expanduser()).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = f"{name} cannot be read ({type(error).__name__})."
            raise InvalidConfiguration(file, f"{key}.secret_file", problem) from None
    try:
        # The library's own reading passes over whatever is no base64.
        key_bytes = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key_bytes = b""
    if len(key_bytes) < MIN_SECRET_BYTES:
        problem = f"holds no base64 of {MIN_SECRET_BYTES} bytes or more, such as `openssl rand -base64 32` makes."
        raise InvalidConfiguration(file, f"{key}.secret_file", problem)
    return WebhookTarget(section.url, Webhook(key_bytes))


def _secret(file: Path, key: str, given: str) -> str:
    if not given.startswith(PREFIX):
        return given
    text = (take(given.removeprefix(PREFIX)) or "").strip()
    if not text:
        raise InvalidConfiguration(file, key, f"the variable {given.removeprefix(PREFIX)} is not set.")
    return text
