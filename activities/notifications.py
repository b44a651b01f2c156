"""Notify approvers of pending calls. Contains the configured channels, the messages and the activity `notify`.

Policies and histories refer to channels by name. Addresses and keys stay in the worker, and messages never contain
secrets.
"""

import asyncio
import functools
import logging
import secrets
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, get_args

import structlog
from pydantic import BeforeValidator, Field
from temporalio import activity

from waystation.activities.activity_attempt import Heartbeater, activity_failure, convert_errors, send_heartbeats
from waystation.activities.log_cache import LogCache
from waystation.configuration import PREFIX, ConfigurationTable, read_configuration, read_secret, read_webhook_key
from waystation.core import ids, summary
from waystation.core.errors import ForeignHistory, InvalidConfiguration, UnknownCall
from waystation.core.log import (
    CallState,
    Endpoints,
    EventKind,
    Log,
    NoticeReport,
    NotifyInput,
    Occasion,
    OutgoingEvent,
    call_url,
    origin_of,
    question_of,
)
from waystation.core.payload import JsonObject, digest, encode
from waystation.core.secrets import is_private_url
from waystation.extensions import (
    CHANNELS,
    ChannelKind,
    NotDelivered,
    Notification,
    Target,
    find_extensions,
    load_extension,
)
from waystation.project_file import CHANNELS_ENV, find_setting
from waystation.tls import default_ssl_context

if TYPE_CHECKING:
    from apprise import Apprise
    from standardwebhooks import Webhook

events = structlog.get_logger("waystation.activities")

WEBHOOK_LIMIT_S = 10.0
TARGET_LIMIT_S = 60.0
_SENDERS = ThreadPoolExecutor(8, thread_name_prefix="apprise")
"""Separate threads for Apprise, which may block them for a long time, so that other blocking work need not wait."""
GIVE_UP_AFTER = timedelta(minutes=50)
"""How long to retry failed deliveries, measured from when the activity was scheduled. Shorter than the activity's
schedule-to-close timeout (60 minutes), so that the activity can still report the failures."""
UNKNOWN = "UnknownChannel"
MAX_LINE = 300
_RETRYABLE_STATUSES = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_MISSING_PACKAGE = "needs {name!r}; install it with: pip install 'waystation[notify]'"
_TITLES: dict[Occasion, str] = {
    "asked": "Approval needed",
    "reminder": "Still pending",
    "escalation": "Escalated",
    "decided": "Answered",
    "expired": "Not answered in time",
}

LinkSigner = Callable[[str, str | None], str]
"""A function that takes an approval ID and a person, and returns the token for the link to that call. If the person is
None, the link works for anyone who has it."""


class WebhookSection(ConfigurationTable):
    """The `webhook` section: a URL that receives notifications as signed JSON, as specified by Standard Webhooks."""

    url: str
    secret_file: str
    """The file that contains the secret (`whsec_…`), or `env:NAME` for an environment variable that contains it."""


class ChannelSection(ConfigurationTable, extra="allow"):
    """A `[channels.NAME]` section: people who are notified together. Other packages may provide further keys."""

    urls: Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)] = ()
    """Apprise URLs, or `env:NAME` for an environment variable that contains them."""
    webhook: WebhookSection | None = None
    person: str | None = Field(default=None, min_length=1, max_length=300)
    """The owner of a personal channel. Links are signed for this person."""

    @classmethod
    def list_further_keys(cls) -> Collection[str]:
        """Return the names of the kinds of channels that other packages provide."""
        return find_extensions(CHANNELS)


class EndpointSection(WebhookSection):
    """An `[endpoints.NAME]` section: a program that receives events of invocations."""

    events: tuple[EventKind, ...] = get_args(EventKind)
    agents: tuple[str, ...] | None = None
    """The names of the root agents. By default, all."""


class _File(ConfigurationTable):
    endpoints: dict[str, EndpointSection] = {}
    channels: dict[str, ChannelSection] = {}
    default: tuple[str, ...] = ()
    """The channels to notify of a pending call if its policy does not name any."""
    operators: tuple[str, ...] = ()
    """The channels to notify of a call whose outcome is unknown. Defaults to the channels in `default`."""
    inbox: str | None = None
    """The URL of `waystation web`. Links in notifications lead there."""


@dataclass(frozen=True, slots=True)
class Channel:
    """A configured channel, which notifies people at one or more addresses together."""

    targets: Sequence[Target]
    person: str | None = None


class Channels:
    """The channels of a worker, by name."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        *,
        default: Sequence[str] = (),
        operators: Sequence[str] = (),
        inbox: str | None = None,
        endpoints: Mapping[str, tuple[EndpointSection, Target]] = MappingProxyType({}),
    ) -> None:
        self._channels, self.endpoints = channels, endpoints
        self.default, self.operators = tuple(default), tuple(operators)
        self.inbox = inbox.rstrip("/") if inbox else None
        """The URL of the inbox, or None if it is not configured."""

    def get(self, name: str) -> Channel | None:
        """Return the channel with this name, or None if this worker does not have it."""
        return self._channels.get(name)

    def list_endpoints(self, agent: str) -> Endpoints:
        """Return the endpoints that receive the events of a root agent."""
        sections = {name: section for name, (section, _) in self.endpoints.items()}
        wanted = [name for name, section in sections.items() if section.agents is None or agent in section.agents]
        by_event = {kind: tuple(n for n in wanted if kind in sections[n].events) for kind in get_args(EventKind)}
        return {kind: names for kind, names in by_event.items() if names}

    @classmethod
    def read(cls, file: str | Path) -> "Channels":
        """Read the channels from a configuration file.

        Raises:
            InvalidConfiguration: The file is not valid. The error message does not contain an address.
        """
        path = Path(file)
        content = read_configuration(path, _File)
        for key in ("default", "operators"):
            for name in getattr(content, key):
                if name not in content.channels:
                    raise InvalidConfiguration(path, key, f"names {name!r}, but there is no [channels.{name}].")
        if content.inbox is not None and not is_private_url(content.inbox):
            raise InvalidConfiguration(path, "inbox", "is not an https URL. Links must not be sent over plain HTTP.")
        channels = {name: _channel(path, f"channels.{name}", section) for name, section in content.channels.items()}
        endpoints = {
            name: (section, functools.partial(_deliver, target))
            for name, section in content.endpoints.items()
            for target in _create_webhook_target(section, file=path, key=f"endpoints.{name}")
        }
        defaults = {"default": content.default, "operators": content.operators}
        return cls(channels, **defaults, inbox=content.inbox, endpoints=endpoints)


def read_channels(file: Path | None) -> Channels | None:
    """Read the channels from `file`, or from the file named by WAYSTATION_CHANNELS. Return None if neither is set.

    Raises:
        InvalidConfiguration: The file is not valid.
    """
    name = file or find_setting(CHANNELS_ENV)
    return Channels.read(name) if name else None


async def _deliver(target: Target, notice: Notification, id: str, *, limit_s: float = TARGET_LIMIT_S) -> None:
    """Deliver a notification to one address, and convert all exceptions, because they may quote the address.

    Raises:
        NotDelivered: The target raised an exception, or took too long.
    """
    try:
        async with asyncio.timeout(limit_s):
            await target(notice, id)
    except NotDelivered:
        raise
    except Exception as error:  # noqa: BLE001  # from another package, or from any of a hundred plugins of Apprise
        raise NotDelivered(type(error).__name__) from None


async def _notify_by_apprise(apprise: "Apprise", notice: Notification, id: str) -> None:
    """Deliver a notification by email, chat or phone.

    Raises:
        NotDelivered: Apprise did not deliver the notification.
    """
    # `notify` blocks, so it runs in a thread.
    send = functools.partial(apprise.notify, body=notice.text, title=notice.title, body_format="text")
    if not await asyncio.get_running_loop().run_in_executor(_SENDERS, send):
        raise NotDelivered("Refused")


async def _post_to_webhook(url: str, signing: "Webhook", notice: Notification, id: str) -> None:
    """Deliver a notification to a program as a signed request. Only the status of the response is read.

    Raises:
        NotDelivered: The program did not accept the notification.
    """
    import httpx2

    body, now = encode(notice.record), datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signing.sign(id, now, body.decode()),
    }
    async with (
        asyncio.timeout(WEBHOOK_LIMIT_S),
        httpx2.AsyncClient(timeout=WEBHOOK_LIMIT_S, follow_redirects=False, verify=default_ssl_context()) as client,
        client.stream("POST", url, content=body, headers=headers) as response,
    ):
        status = response.status_code
    if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        retryable = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _RETRYABLE_STATUSES
        raise NotDelivered(f"Status{status}", retryable=retryable)


def _channel(file: Path, key: str, section: ChannelSection) -> Channel:
    targets = list[Target]()
    for name, value in {"urls": section.urls, "webhook": section.webhook, **(section.model_extra or {})}.items():
        kind: ChannelKind = KINDS.get(name) or load_extension(find_extensions(CHANNELS)[name])
        try:
            created = kind(value, file=file, key=f"{key}.{name}") if value else ()
        except InvalidConfiguration:
            raise
        except Exception as error:  # noqa: BLE001  # from another package; its message may contain a secret
            problem = str(error) if isinstance(error, ValueError) else f"{type(error).__name__} was raised."
            raise InvalidConfiguration(file, f"{key}.{name}", problem) from None
        targets += [functools.partial(_deliver, target) for target in created]
    if not targets:
        raise InvalidConfiguration(file, key, "has neither `urls` nor a `webhook`.")
    return Channel(targets, section.person)


def _create_apprise_targets(urls: Sequence[str], /, *, file: Path, key: str) -> Sequence[Target]:
    return [
        _create_apprise_target(file, f"{key}.{number}", url)
        for number, entry in enumerate(urls)
        for url in (read_secret(file, f"{key}.{number}", entry) if entry.startswith(PREFIX) else entry).split()
    ]


def _create_apprise_target(file: Path, key: str, url: str) -> Target:
    try:
        from apprise import Apprise, AppriseAsset
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(file, key, _MISSING_PACKAGE.format(name=error.name)) from None
    # Silence Apprise's logger, because its messages contain parts of addresses.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    # A redirect would send the notification, with its link, to an address that nobody configured.
    asset = AppriseAsset(app_id="Waystation", app_desc="Waystation", storage_mode="memory", http_redirects=False)
    apprise = Apprise(asset=asset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised by modules that apprise imports here
        is_valid = apprise.add(url)
    if not is_valid:
        raise InvalidConfiguration(file, key, "is not a URL that apprise supports.")
    return functools.partial(_notify_by_apprise, apprise)


def _create_webhook_target(section: WebhookSection, /, *, file: Path, key: str) -> Sequence[Target]:
    try:
        import httpx2  # noqa: F401  # needed for deliveries; a missing package must fail at startup
        from standardwebhooks import Webhook
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(file, key, _MISSING_PACKAGE.format(name=error.name)) from None
    if not is_private_url(section.url):
        raise InvalidConfiguration(
            file, f"{key}.url", "is not an https URL. What is sent must not travel over plain HTTP."
        )
    key_bytes = read_webhook_key(file, f"{key}.secret_file", section.secret_file)
    return [functools.partial(_post_to_webhook, section.url, Webhook(key_bytes))]


KINDS: Mapping[str, ChannelKind] = {"urls": _create_apprise_targets, "webhook": _create_webhook_target}
"""Waystation's own kinds of channels, by the keys that set them."""


class Notifier:
    """Runs the activity `notify`, which notifies each address only once even if the activity is retried.

    Heartbeats record completed and permanently refused deliveries for the next attempt. If a worker is lost between a
    delivery and its heartbeat, the notification is delivered again with the same ID.
    """

    def __init__(
        self,
        logs: LogCache,
        channels: Channels | None,
        sign: LinkSigner | None = None,
        *,
        give_up_after: timedelta = GIVE_UP_AFTER,
    ) -> None:
        self._logs, self._sign, self._give_up_after = logs, sign, give_up_after
        self._channels = channels or Channels({})

    async def notify(self, params: NotifyInput) -> bytes:
        """Return an encoded `NoticeReport`.

        Raises:
            ApplicationError: A delivery failed but may succeed later, or the call is not in the log.
        """
        info = activity.info()
        with send_heartbeats(details_interval_s=0.5) as heart:  # a lost worker repeats what it has not reported
            with convert_errors("notice.failed", final=(ForeignHistory, UnknownCall)):
                log = await self._logs.at(info.workflow_id or "", info.workflow_run_id or "", params)
                call = log.state.calls.get(params.function_call_id)
                if call is None:
                    raise UnknownCall("The call is not found.")
            deliveries = _Deliveries(heart, *info.heartbeat_details)
            notifying = asyncio.gather(*(self._notify(name, params, log, call, deliveries) for name in params.channels))
            try:
                failures = await asyncio.shield(notifying)
            except asyncio.CancelledError:
                if not _has_ended():
                    notifying.cancel()
                    raise
                heart.stop()
                failures = await notifying
        failed = {name: error for name, error in zip(params.channels, failures, strict=True) if error}
        again = datetime.now(UTC) - info.scheduled_time < self._give_up_after and not _has_ended()
        if again and any(error.retryable for error in failed.values()):
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

    async def deliver_event(self, event: OutgoingEvent) -> bytes:
        """Deliver an event to the endpoint that it names. Return an encoded `NoticeReport`.

        Raises:
            ApplicationError: The endpoint did not accept the event. The server retries the activity, unless the
                endpoint has responded that it is gone.
        """
        [name], info = event.endpoints, activity.info()
        _, target = self._channels.endpoints.get(name, (None, _find_nothing))
        id = f"msg_{digest([info.namespace, info.workflow_id, event.time, name])}"
        stamp = datetime.fromtimestamp(event.time, UTC).isoformat().replace("+00:00", "Z")
        data = event.model_dump(mode="json", exclude={"event", "endpoints", "key", "time"})
        record = {"type": f"waystation.invocation.{event.event}", "timestamp": stamp, "data": data}
        try:
            await target(Notification(title="", text="", record=record), id)
        except NotDelivered as error:
            retry = str(error) != f"Status{HTTPStatus.GONE}"
            raise activity_failure("event.failed", "NotDelivered", str(error), retry=retry, endpoint=name) from None
        return NoticeReport(delivered=(name,)).encode()

    async def _notify(
        self, name: str, params: NotifyInput, log: Log, call: CallState, deliveries: "_Deliveries"
    ) -> NotDelivered | None:
        """Notify all addresses of one channel. Return an error, preferably a retryable one, or None if all succeed."""
        channel = self._channels.get(name)
        if channel is None:
            return NotDelivered(UNKNOWN, retryable=False)
        info = activity.info()
        link = None
        if self._channels.inbox is not None:
            # A link without a token leads to the login page.
            approval_id = ids.approval(log.invocation_id, call.id)
            token = self._sign(approval_id, channel.person) if self._sign else None
            link = call_url(self._channels.inbox, approval_id, token)
        message = build_notice(
            log, call, params, namespace=info.namespace, link=link, at=info.scheduled_time.timestamp()
        )
        event = [info.namespace, info.workflow_id, info.activity_id, name]
        failures = await asyncio.gather(
            *(deliveries.deliver(target, message, [*event, number]) for number, target in enumerate(channel.targets))
        )
        # Retryable errors come first.
        return max((error for error in failures if error), key=lambda error: error.retryable, default=None)


async def _find_nothing(_notice: Notification, _id: str) -> None:
    # Retried, because another worker may have a newer configuration.
    raise NotDelivered("UnknownEndpoint")


def _has_ended() -> bool:
    """Return whether the activity was canceled because its invocation has ended.

    If so, deliveries in progress are completed but not retried.
    """
    details = activity.cancellation_details()
    return details is not None and details.not_found


class _Deliveries:
    """The deliveries that this attempt and earlier ones completed, or that were permanently refused."""

    def __init__(
        self, heart: Heartbeater, delivered: Sequence[str] = (), refused: Mapping[str, str] | None = None
    ) -> None:
        self._heart, self._delivered, self._refused = heart, set(delivered), dict(refused or {})
        self._beat()

    async def deliver(self, target: Target, notice: Notification, event: list[object]) -> NotDelivered | None:
        """Deliver a notification to one address, unless it was already delivered or permanently refused.

        Return the error, if any, which may be that of an earlier attempt.
        """
        id = f"msg_{digest(event)}"
        if id in self._delivered:
            return None
        if id in self._refused:
            return NotDelivered(self._refused[id], retryable=False)
        try:
            await target(notice, id)
        except NotDelivered as error:
            if not error.retryable:
                self._refused[id] = str(error)
                self._beat()
            return error
        self._delivered.add(id)
        self._beat()
        return None

    def _beat(self) -> None:
        if self._delivered or self._refused:
            self._heart.send(lambda: [sorted(self._delivered), self._refused])


def build_notice(
    log: Log, call: CallState, params: NotifyInput, *, namespace: str, link: str | None, at: float
) -> Notification:
    """Build the notification of a pending or decided call.

    Args:
        log: The invocation's log.
        call: The pending or decided call.
        params: The occasion of the notification, its number and the deadline.
        namespace: The Temporal namespace.
        link: The URL of the call's page, or None if no inbox is configured.
        at: When the activity was scheduled, as a Unix timestamp. It is the same for all attempts.
    """
    call_summary, title = summary.call(call.name, call.args), summary.title(call.call.title, call.args)
    requester = (log.state.input.requester or log.state.input.user_id) if log.state.input else ""
    lines = [*([title] if title else []), call_summary, f"Agent: {_line(call.agent)}, for {_line(requester)}"]
    if origin := summary.origin(origin_of(call)):
        lines.append(f"Origin of the tool: {_line(origin)}")
    if call.asks and call.asks.hint and not call.asks.hint.startswith("Please approve or reject the tool call"):
        lines.append(f"Reason: {_line(call.asks.hint)}")
    if params.occasion in ("decided", "expired"):
        lines.append(_outcome(call))
    elif params.deadline is not None:
        lines.append(f"Until: {datetime.fromtimestamp(params.deadline, UTC):%Y-%m-%d %H:%M} UTC")
    if params.occasion == "escalation" and call.policy:
        lines.append(f"Approvers: {_line(', '.join(call.policy.asked(call.level)))}")
    if link:
        lines.append(link)
    data: JsonObject = {
        "approval_id": ids.approval(log.invocation_id, call.id),
        "namespace": namespace,
        "invocation_id": log.invocation_id,
        "function_call_id": call.id,
        "agent": call.agent,
        "tool": call.name,
        "tool_origin": origin_of(call),
        "title": title,
        "summary": call_summary,
        "digest": call.digest,
        "question": question_of(call),
        "user_id": log.state.input.user_id if log.state.input else "",
        "tenant": log.state.input.tenant if log.state.input else None,
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
    heading = "Outcome unknown" if call.asked == "unknown" and call.answer is None else _TITLES[params.occasion]
    return Notification(
        title=summary.clip(f"{heading}: {title or call_summary}"),
        text="\n".join(lines),
        record={"type": f"waystation.approval.{params.occasion}", "timestamp": stamp, "data": data},
    )


def _outcome(call: CallState) -> str:
    if call.answer is None:
        return "The deadline has passed; it was not approved."
    approver = call.decided_by.subject if call.decided_by else call.answer.by
    suffix = "" if call.decided_by or not approver else " (not verified)"
    return f"Answer: {call.answer.action}, by {_line(approver or 'an unnamed approver')}{suffix}"


def _line(text: str) -> str:
    return summary.clip(text, MAX_LINE)
