"""Notify approvers of pending calls: the channels that a worker is configured with, the texts, the activity `notify`.

Policies and histories know channels by name only: addresses and keys stay in the worker, and no text holds a secret.
"""

import asyncio
import base64
import functools
import logging
import os
import secrets
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import structlog
from pydantic import BeforeValidator, Field
from temporalio import activity

from waystation.activities.activity_attempt import Heart, activity_failure, beating, failing_as
from waystation.activities.log_cache import LogCache
from waystation.configuration import PREFIX, Section, read_configuration, read_secret
from waystation.core import (
    CallState,
    ForeignHistory,
    InvalidConfiguration,
    JsonObject,
    Log,
    NoticeReport,
    NotifyInput,
    Occasion,
    UnknownCall,
    WaystationError,
    address,
    digest,
    encode,
    ids,
    summary,
    trusted,
)

if TYPE_CHECKING:
    from apprise import Apprise
    from standardwebhooks import Webhook

events = structlog.get_logger("waystation.activities")

CHANNELS_ENV = "WAYSTATION_CHANNELS"
WEBHOOK_LIMIT_S = 10.0
MIN_SECRET_BYTES = 24
"""As Standard Webhooks asks for."""
GIVE_UP_AFTER = timedelta(minutes=50)
"""So long, from when it was asked for, a channel that does not take a notice is tried again. The workflow waits 60."""
UNKNOWN = "UnknownChannel"
MAX_LINE = 300
_WORTH_ANOTHER = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_NEEDED = "needs {name!r}; install it with: pip install 'waystation[notify]'"
_TITLES: dict[Occasion, str] = {
    "asked": "Waits for you",
    "reminder": "Still waits",
    "escalation": "Nobody has answered",
    "decided": "Answered",
    "expired": "Not answered in time",
}

SignsLinks = Callable[[str, str | None], str]
"""Returns the token of a link to a call, for a person or for whoever has the link."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """What is delivered to one channel."""

    title: str
    text: str
    record: JsonObject
    """What programs are sent; see the contract."""


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


Target: TypeAlias = Callable[[Notice, str], Awaitable[None]]
"""Delivers a notice to one address of a channel. The same id is the same notice again. Raises NotDelivered."""


@dataclass(frozen=True, slots=True)
class Channel:
    """People who are notified together."""

    targets: Sequence[Target]
    person: str | None = None


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
        content = read_configuration(path, _File)
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


async def _notify_by_apprise(apprise: "Apprise", notice: Notice, id: str) -> None:
    """Deliver a notice by e-mail, a chat or a telephone."""
    # It blocks; and what it raises may quote the address, though it rarely raises anything.
    try:
        delivered = await asyncio.to_thread(apprise.notify, body=notice.text, title=notice.title, body_format="text")
    except Exception as error:  # noqa: BLE001  # of any of a hundred plugins
        raise NotDelivered(type(error).__name__) from None
    if not delivered:
        raise NotDelivered("Refused")


async def _post_to_webhook(url: str, signing: "Webhook", notice: Notice, id: str) -> None:
    """Deliver a notice to a program, in a signed request."""
    import httpx2

    body, now = encode(notice.record), datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signing.sign(id, now, body.decode()),
    }
    try:
        async with (
            asyncio.timeout(WEBHOOK_LIMIT_S),
            httpx2.AsyncClient(timeout=WEBHOOK_LIMIT_S, follow_redirects=False) as client,
        ):
            status = (await client.post(url, content=body, headers=headers)).status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
        raise NotDelivered(type(error).__name__) from None
    if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        passing = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _WORTH_ANOTHER
        raise NotDelivered(f"Status{status}", passing=passing)


def _channel(file: Path, key: str, section: ChannelSection) -> Channel:
    targets = [
        _apprise_target(file, f"{key}.urls.{number}", url)
        for number, given in enumerate(section.urls)
        for url in (read_secret(file, f"{key}.urls.{number}", given) if given.startswith(PREFIX) else given).split()
    ]
    if section.webhook is not None:
        targets.append(_webhook_target(file, f"{key}.webhook", section.webhook))
    if not targets:
        raise InvalidConfiguration(file, key, "has neither `urls` nor a `webhook`.")
    return Channel(targets, section.person)


def _apprise_target(file: Path, key: str, url: str) -> Target:
    try:
        from apprise import Apprise, AppriseAsset
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(file, key, _NEEDED.format(name=error.name)) from None
    # What it logs has parts of addresses.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    apprise = Apprise(asset=AppriseAsset(app_id="Waystation", app_desc="Waystation", storage_mode="memory"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of modules that it imports now
        known = apprise.add(url)
    if not known:
        raise InvalidConfiguration(file, key, "is no address that apprise knows.")
    return functools.partial(_notify_by_apprise, apprise)


def _webhook_target(file: Path, key: str, section: WebhookSection) -> Target:
    try:
        import httpx2  # noqa: F401  # needed when something is told, and better missed now
        from standardwebhooks import Webhook
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(file, key, _NEEDED.format(name=error.name)) from None
    if not trusted(section.url):
        raise InvalidConfiguration(file, f"{key}.url", "is no https address; others would read what waits.")
    secret = read_secret(file, f"{key}.secret_file", section.secret_file)
    try:
        # The library's own reading passes over whatever is no base64.
        key_bytes = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key_bytes = b""
    if len(key_bytes) < MIN_SECRET_BYTES:
        problem = f"holds no base64 of {MIN_SECRET_BYTES} bytes or more, such as `openssl rand -base64 32` makes."
        raise InvalidConfiguration(file, f"{key}.secret_file", problem)
    return functools.partial(_post_to_webhook, section.url, Webhook(key_bytes))


class Notifier:
    """Carries out the activity `notify`: each channel once, however often the activity is tried.

    What was delivered, or refused for good, is kept in the heartbeats, which the next attempt is given. A worker that
    is lost in between may deliver a notice again: by its id a program sees that it is the same one.
    """

    def __init__(
        self,
        logs: LogCache,
        channels: Channels | None,
        sign: SignsLinks | None = None,
        *,
        give_up_after: timedelta = GIVE_UP_AFTER,
    ) -> None:
        self._logs, self._sign, self._give_up_after = logs, sign, give_up_after
        self._channels = channels or Channels({})

    async def notify(self, params: NotifyInput) -> bytes:
        """Return an encoded `NoticeReport`.

        Raises:
            ApplicationError: Some channel did not take the notice, and may yet.
        """
        info = activity.info()
        with beating() as heart:
            with failing_as("notice.failed", final=(ForeignHistory, UnknownCall)):
                log = await self._logs.at(info.workflow_id or "", info.workflow_run_id or "", params)
                call = log.state.calls.get(params.function_call_id)
                if call is None:
                    raise UnknownCall("The call is not found.")
            deliveries = _Deliveries(heart, *info.heartbeat_details)
            notifying = asyncio.gather(*(self._notify(name, params, log, call, deliveries) for name in params.channels))
            try:
                failures = await asyncio.shield(notifying)
            except asyncio.CancelledError:
                if not _is_over():
                    notifying.cancel()
                    raise
                heart.stop()
                failures = await notifying
        failed = {name: error for name, error in zip(params.channels, failures, strict=True) if error}
        again = datetime.now(UTC) - info.scheduled_time < self._give_up_after and not _is_over()
        if again and any(error.passing for error in failed.values()):
            names = ", ".join(f"{name} ({error})" for name, error in failed.items())
            raise activity_failure("notice.failed", "NotDelivered", f"Not delivered to: {names}.", retry=True)
        report = NoticeReport(
            delivered=tuple(name for name in params.channels if name not in failed),
            failed={name: str(error) for name, error in failed.items()},
            mark=secrets.token_hex(3),
        )
        events.info(
            "notice.completed",
            invocation_id=log.invocation_id,
            function_call_id=call.id,
            occasion=params.occasion,
            attempt=info.attempt,
            delivered=report.delivered,
            failed=tuple(failed),
        )
        return report.encode()

    async def _notify(
        self, name: str, params: NotifyInput, log: Log, call: CallState, deliveries: "_Deliveries"
    ) -> NotDelivered | None:
        """Notify one channel, at all of its addresses; return why one of them did not take it."""
        channel = self._channels.get(name)
        if channel is None:
            return NotDelivered(UNKNOWN, passing=False)
        info = activity.info()
        link = None
        if self._channels.inbox is not None:
            # Without a key that signs links, they lead to a login.
            approval_id = ids.approval(log.invocation_id, call.id)
            token = self._sign(approval_id, channel.person) if self._sign else None
            link = address(self._channels.inbox, approval_id, token)
        text = notice(log, call, params, namespace=info.namespace, link=link, at=info.scheduled_time.timestamp())
        event = [info.namespace, info.workflow_id, info.activity_id, name]
        failures = await asyncio.gather(
            *(deliveries.deliver(target, text, [*event, number]) for number, target in enumerate(channel.targets))
        )
        # One that is worth another attempt counts most.
        return max((error for error in failures if error), key=lambda error: error.passing, default=None)


def _is_over() -> bool:
    """Whether the invocation has ended: nothing is tried again then, but what was begun is finished."""
    details = activity.cancellation_details()
    return details is not None and details.not_found


class _Deliveries:
    """Which addresses have taken the notice, and which refuse it for good, in this attempt and those before."""

    def __init__(self, heart: Heart, taken: Sequence[str] = (), refused: Mapping[str, str] | None = None) -> None:
        self._heart, self._taken, self._refused = heart, set(taken), dict(refused or {})
        self._beat()

    async def deliver(self, target: Target, notice: Notice, event: list[object]) -> NotDelivered | None:
        """Deliver a notice to one address, unless an earlier attempt has; return why it did not take it."""
        id = f"msg_{digest(event)}"
        if id in self._taken:
            return None
        if id in self._refused:
            return NotDelivered(self._refused[id], passing=False)
        try:
            await target(notice, id)
        except NotDelivered as error:
            if not error.passing:
                self._refused[id] = str(error)
                self._beat()
            return error
        self._taken.add(id)
        self._beat()
        return None

    def _beat(self) -> None:
        if self._taken or self._refused:
            self._heart.tell(lambda: [sorted(self._taken), self._refused])


def notice(log: Log, call: CallState, params: NotifyInput, *, namespace: str, link: str | None, at: float) -> Notice:
    """Return what a channel is sent.

    Args:
        log: Of the invocation.
        call: The call that waits, or waited.
        params: On which occasion.
        namespace: Of Temporal.
        link: Where the call is shown.
        at: When, in seconds since 1970: it does not change from attempt to attempt.
    """
    asked = summary.call(call.name, call.args)
    requester = (log.state.input.requester or log.state.input.user_id) if log.state.input else ""
    lines = [asked, f"Agent: {_line(call.agent)}, for {_line(requester)}"]
    if call.asks and call.asks.hint and not call.asks.hint.startswith("Please approve or reject the tool call"):
        lines.append(f"Why: {_line(call.asks.hint)}")
    if params.occasion in ("decided", "expired"):
        lines.append(_outcome(call))
    elif params.deadline is not None:
        lines.append(f"Until: {datetime.fromtimestamp(params.deadline, UTC):%Y-%m-%d %H:%M} UTC")
    if params.occasion == "escalation" and call.policy:
        lines.append(f"Asked: {_line(', '.join(call.policy.asked(call.level)))}")
    if link:
        lines.append(link)
    data: JsonObject = {
        "approval_id": ids.approval(log.invocation_id, call.id),
        "namespace": namespace,
        "invocation_id": log.invocation_id,
        "function_call_id": call.id,
        "agent": call.agent,
        "tool": call.name,
        "summary": asked,
        "digest": call.digest,
        "user_id": log.state.input.user_id if log.state.input else "",
        "requester": requester,
        "requested_at": params.requested_at,
        "deadline": params.deadline,
        "occasion": params.occasion,
        "number": params.number,
        "link": link,
    }
    if params.occasion == "decided" and call.answer:
        verified = call.decided_by.model_dump(mode="json") if call.decided_by else None
        data["decision"] = {"action": call.answer.action, "by": call.answer.by, "verified": verified}
    stamp = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    return Notice(
        title=summary.clip(f"{_TITLES[params.occasion]}: {asked}"),
        text="\n".join(lines),
        record={"type": f"waystation.approval.{params.occasion}", "timestamp": stamp, "data": data},
    )


def _outcome(call: CallState) -> str:
    if call.answer is None:
        return "The deadline has passed; it was not approved."
    who = call.decided_by.subject if call.decided_by else call.answer.by
    claimed = "" if call.decided_by or not who else ", as the answer claims"
    return f"Answer: {call.answer.action}, by {_line(who or 'nobody who gave a name')}{claimed}"


def _line(text: str) -> str:
    return summary.clip(text, MAX_LINE)
