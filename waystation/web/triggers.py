"""Signed triggers: which deliveries of webhooks are authentic, and what each starts.

A delivery is read only after its signature has been verified. Its content fills the placeholders of the configured
templates and decides nothing else: the agent, the app, the user and the tenant are those of the configuration.
"""

import hashlib
import hmac
import re
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, RootModel, model_validator

from waystation.configuration import ConfigurationTable, read_configuration, read_secret, read_webhook_key
from waystation.core import ids
from waystation.core.approval import MACHINE, Verified
from waystation.core.contract import DEFAULT_APP, MAX_NAME_CHARS, AppName, TenantName
from waystation.core.errors import InvalidConfiguration, InvalidInput, NotAllowed
from waystation.core.payload import JsonObject, Recorded, digest, encode, parse
from waystation.core.session_log import Busy
from waystation.web.logins import Login
from waystation.web.starter import AgentName

MIN_SECRET_BYTES = 16
_PLACEHOLDER = re.compile(r"\{\{ *(\.|[\w-]+(?:\.[\w-]+)*) *\}\}")
"""Matches `{{issue.title}}`, or `{{.}}` for the whole payload."""


def _check_template(template: str) -> str:
    if re.search(r"\{\{|\}\}", _PLACEHOLDER.sub("", template)):
        raise ValueError("has a placeholder that is not a path, such as {{issue.title}}, or {{.}} for the whole")
    return template


Template = Annotated[str, Field(min_length=1), AfterValidator(_check_template)]


class HmacSection(ConfigurationTable):
    """How a sender signs deliveries that does not follow Standard Webhooks."""

    header: str
    """The header with the signature: one or more parts that are separated by commas."""
    prefix: str = ""
    """The text before a signature, such as `sha256=` or `v1=`. Parts without it are ignored."""
    algorithm: Literal["sha256", "sha384", "sha512"] = "sha256"
    timestamp: str | None = Field(default=None, min_length=1)
    """The header with the time of the delivery, in seconds since 1970, or what precedes the time if it is a part of
    `header`, such as `t=`."""
    signed: str = Field(default="{body}", pattern=r"\{body\}$")
    """The text that is signed. With a time, `{timestamp}` stands for it, as in `{timestamp}.{body}`."""
    window_s: int = Field(default=300, ge=1, le=86_400)
    """How many seconds the time of a delivery may differ from now."""

    @model_validator(mode="after")
    def _check_time(self) -> "HmacSection":
        if bool(self.timestamp) != ("{timestamp}" in self.signed):
            raise ValueError("signed must contain {timestamp} if the delivery has a timestamp, and only then")
        return self

    def verify(self, keys: tuple[bytes, ...], headers: Mapping[str, str], body: bytes, *, now: float) -> None:
        """Check that a delivery was signed with one of the keys, and recently if it has a time.

        Raises:
            NotAllowed: It was not.
        """
        parts = [part.strip() for part in headers.get(self.header, "").split(",")]
        sent = [part.removeprefix(self.prefix).encode() for part in parts if part.startswith(self.prefix)]
        times = (
            part.removeprefix(self.timestamp) for part in parts if self.timestamp and part.startswith(self.timestamp)
        )
        time = next(times, headers.get(self.timestamp or "", ""))
        if self.timestamp and not (re.fullmatch("[0-9]{1,12}", time) and abs(now - int(time)) <= self.window_s):
            raise NotAllowed(f"Its time is missing, or differs from now by more than {self.window_s} s.")
        text = self.signed.removesuffix("{body}").replace("{timestamp}", time).encode() + body
        macs = (hmac.digest(key, text, self.algorithm) for key in keys)
        if not any(
            hmac.compare_digest(one, form)
            for mac in macs
            for form in (mac.hex().encode(), b64encode(mac))
            for one in sent
        ):
            raise NotAllowed("Its signature is missing or not valid.")


class TriggerSection(ConfigurationTable):
    """A `[NAME]` section of the file of triggers, or `[triggers.NAME]` of the project file."""

    agent: AgentName
    secret_file: Annotated[
        tuple[str, ...],
        Field(min_length=1),
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    ]
    """Files with the secret, or `env:NAME`. A delivery may be signed with any of them."""
    hmac: HmacSection | None = None
    """How deliveries are signed. By default, as in Standard Webhooks."""
    message: Template
    """The message to the agent. Values are inserted as JSON, so text stays inside its quotation marks."""
    id: Template | None = None
    """The ID of a delivery, if not the signed header `webhook-id` or, with `hmac`, the digest of the body."""
    session: Template | None = None
    """The key of the session that a delivery continues. By default, each starts an invocation outside sessions."""
    when_busy: Busy = "queue"
    app: AppName = DEFAULT_APP
    user_id: str | None = Field(default=None, min_length=1, max_length=MAX_NAME_CHARS)
    """The user that the agent serves. By default, the trigger itself."""
    tenant: TenantName | None = None
    per_minute: int = Field(default=60, ge=1)
    """Maximum number of deliveries per minute."""


_File = RootModel[dict[Annotated[str, Field(pattern=f"^{ids.TENANT}$")], TriggerSection]]


class _Payload(Recorded, extra="allow"):
    pass


@dataclass(frozen=True)
class Trigger:
    """A configured trigger with its secrets."""

    name: str
    section: TriggerSection
    keys: tuple[bytes, ...]

    @property
    def login(self) -> Login:
        """The machine that requests what the trigger starts. It has no role and no name that a person could have."""
        who = Verified(subject=f"{MACHINE}hook:{self.name}", issuer="trigger", tenant=self.section.tenant)
        return Login(who.subject, who, frozenset(), browser=False, answers=False, is_machine=True)

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Check that a delivery is authentic and recent. Return its signed ID, or else the digest of its body.

        Raises:
            NotAllowed: It is not. The message is for logs.
        """
        if self.section.hmac:
            self.section.hmac.verify(self.keys, headers, body, now=now)
            # Other headers are not signed. If they counted, a recorded delivery could be repeated with another ID.
            return hashlib.sha256(body).hexdigest()
        from standardwebhooks import Webhook  # only for this scheme

        for key in self.keys:
            with suppress(Exception):  # forged headers may raise anything
                Webhook(key).verify(body, dict(headers), json_parse=False)
                return headers["webhook-id"]
        raise NotAllowed("Its signature is missing or not valid, or its time differs from now by more than 5 minutes.")

    def read(self, signed_id: str, body: bytes) -> tuple[str, str, str | None]:
        """Return the ID of an authentic delivery, the message, and the ID of the session that it continues, if any.

        Raises:
            InvalidInput: The body is not a JSON object, or lacks a value that the ID or the session needs.
        """
        payload = parse(_Payload, body, InvalidInput, what="The payload", send="of fields").model_extra or {}
        id = _fill(self.section.id, payload, is_key=True) if self.section.id else signed_id
        session = (
            f"hook:{self.name}:{_fill(self.section.session, payload, is_key=True)}" if self.section.session else None
        )
        return digest([self.section.app, self.section.tenant, id]), _fill(self.section.message, payload), session


def _find(payload: JsonObject, path: str) -> Any:
    """Return the value at a path, or None."""
    value: Any = payload
    for part in path.split(".") if path != "." else ():
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value


def _fill(template: str, payload: JsonObject, *, is_key: bool = False) -> str:
    """Insert values as JSON. Placeholders in them have no effect, and text cannot leave its quotation marks."""
    values = {path: _find(payload, path) for path in _PLACEHOLDER.findall(template)}
    if is_key and None in values.values():
        # Deliveries that lack the value would otherwise count as the same one, or meet in one session.
        raise InvalidInput(f"The payload lacks a value for {template!r}, which the trigger needs.")
    return _PLACEHOLDER.sub(lambda match: encode(values[match[1]]).decode(), template)


def read_triggers(file: Path) -> dict[str, Trigger]:
    """Read the file of triggers, and the secrets to which it refers.

    Raises:
        InvalidConfiguration: The file is not valid, or a secret is missing or too short.
    """
    triggers = {}
    for name, section in read_configuration(file, _File).root.items():
        key = f"{name}.secret_file"
        keys = [
            read_secret(file, key, secret).encode() if section.hmac else read_webhook_key(file, key, secret)
            for secret in section.secret_file
        ]
        if min(map(len, keys)) < MIN_SECRET_BYTES:
            raise InvalidConfiguration(file, key, f"needs at least {MIN_SECRET_BYTES} bytes.")
        triggers[name] = Trigger(name, section, tuple(keys))
    return triggers
