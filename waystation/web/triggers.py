"""Signed triggers: which deliveries of webhooks are authentic, and what each starts.

A delivery is read only after its signature has been verified. Its content fills the placeholders of the configured
templates and decides nothing else: the agent, the app, the user and the tenant are those of the configuration.
"""

import hashlib
import hmac
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, RootModel, model_validator

from waystation.configuration import ConfigurationTable, read_configuration, read_secret, read_webhook_key
from waystation.core import ids
from waystation.core.approval import MACHINE, Verified
from waystation.core.contract import DEFAULT_APP, MAX_NAME_CHARS, AppName, TenantName
from waystation.core.errors import InvalidConfiguration, InvalidInput, NotAllowed
from waystation.core.payload import JsonObject, Recorded, digest, encode, parse, repeated_key
from waystation.core.session_log import Busy
from waystation.web.logins import Login
from waystation.web.starter import AgentName

MIN_SECRET_CHARS = 16
MAX_KEY_CHARS = 200
"""Maximum length of the ID of a delivery, and of the key of a session."""
_PATH = r"\.|[\w-]+(?:\.[\w-]+)*"
_PLACEHOLDER = re.compile(rf"\{{\{{ *({_PATH}) *\}}\}}")
"""Matches `{{issue.title}}`, or `{{.}}` for the whole payload."""


def _check_template(template: str) -> str:
    rest = _PLACEHOLDER.sub("", template)
    if "{{" in rest or "}}" in rest:
        raise ValueError("has a placeholder that is not a path, such as {{issue.title}}, or {{.}} for the whole")
    return template


Template = Annotated[str, Field(min_length=1), AfterValidator(_check_template)]
TriggerName = Annotated[str, Field(pattern=f"^{ids.TENANT}$")]


class HmacSection(ConfigurationTable):
    """How a sender signs deliveries that does not follow Standard Webhooks."""

    header: str
    """The header with the signature: one or more parts that are separated by commas."""
    prefix: str = ""
    """What precedes a signature, such as `sha256=` or `v1=`. Parts without it are ignored."""
    algorithm: Literal["sha256", "sha384", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    timestamp_header: str | None = None
    """The header with the time of the delivery, in seconds since 1970."""
    timestamp_prefix: str | None = None
    """What precedes the time if it is a part of `header`, such as `t=`."""
    signed: str = Field(default="", pattern=r"^$|\{body\}$")
    """The text that is signed. By default `{timestamp}.{body}`, or `{body}` if there is no time."""
    window_s: int = Field(default=300, ge=1, le=86_400)
    """How many seconds the time of a delivery may differ from now."""

    @property
    def is_timed(self) -> bool:
        """Whether deliveries have a time."""
        return bool(self.timestamp_header or self.timestamp_prefix)

    @property
    def before_body(self) -> str:
        """The signed text before the body."""
        return (self.signed or ("{timestamp}.{body}" if self.is_timed else "{body}")).removesuffix("{body}")

    @model_validator(mode="after")
    def _check_time(self) -> "HmacSection":
        if self.is_timed != ("{timestamp}" in self.before_body):
            raise ValueError("signed must contain {timestamp} if there is a timestamp, and only then")
        return self

    def verify(self, keys: tuple[bytes, ...], headers: Mapping[str, str], body: bytes, *, now: float) -> None:
        """Check that a delivery was signed with one of the keys, and recently if it has a time.

        Raises:
            NotAllowed: It was not.
        """
        parts = [part.strip() for part in headers.get(self.header, "").split(",")]
        sent = [part.removeprefix(self.prefix).encode() for part in parts if part.startswith(self.prefix)]
        time = headers.get(self.timestamp_header or "", "")
        if prefix := self.timestamp_prefix:
            time = next((part.removeprefix(prefix) for part in parts if part.startswith(prefix)), "")
        if self.is_timed and not (re.fullmatch("[0-9]{1,12}", time) and abs(now - int(time)) <= self.window_s):
            raise NotAllowed(f"Its time is missing, or differs from now by more than {self.window_s} s.")
        text = self.before_body.replace("{timestamp}", time).encode() + body
        macs = [hmac.digest(key, text, self.algorithm) for key in keys]
        right = [mac.hex().encode() if self.encoding == "hex" else b64encode(mac) for mac in macs]
        if not any(hmac.compare_digest(one, other) for one in sent for other in right):
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
    when: dict[Annotated[str, Field(pattern=f"^({_PATH})$")], Any] = {}
    """Values that the payload must have, by path. Other deliveries start nothing. A list has alternatives."""
    when_busy: Busy = "queue"
    app: AppName = DEFAULT_APP
    user_id: str | None = Field(default=None, min_length=1, max_length=MAX_NAME_CHARS)
    """The user that the agent serves. By default, the trigger itself."""
    tenant: TenantName | None = None
    per_minute: int = Field(default=60, ge=1)
    """Maximum number of deliveries per minute."""


class _File(RootModel[dict[TriggerName, TriggerSection]]):
    pass


class _Payload(Recorded, extra="allow"):
    pass


@dataclass(frozen=True)
class Delivery:
    """What an authentic delivery starts."""

    id: str
    """The digest of its ID, app and tenant. Deliveries with the same one start only one invocation."""
    message: str
    session: str | None


@dataclass(frozen=True)
class Trigger:
    """A configured trigger with its secrets."""

    name: str
    section: TriggerSection
    keys: tuple[bytes, ...]

    @property
    def login(self) -> Login:
        """The machine that requests what the trigger starts. It has no role and no name that a person could have."""
        subject = f"{MACHINE}hook:{self.name}"
        who = Verified(subject=subject, issuer="trigger", tenant=self.section.tenant)
        return Login(subject, who, frozenset(), browser=False, answers=False, is_machine=True)

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
        """Check that a delivery is authentic and recent. Return its signed ID, or else the digest of its body.

        Raises:
            NotAllowed: It is not. The message is for logs.
        """
        if self.section.hmac:
            self.section.hmac.verify(self.keys, headers, body, now=now)
            # Other headers are not signed. If they counted, a recorded delivery could be repeated with another ID.
            return hashlib.sha256(body).hexdigest()
        for key in self.keys:
            if _is_standard(key, headers, body):
                return headers["webhook-id"]
        raise NotAllowed("Its signature is missing or not valid, or its time differs from now by more than 5 minutes.")

    def read(self, signed_id: str, body: bytes) -> Delivery | None:
        """Return what an authentic delivery starts, or None if the payload lacks the values of `when`.

        Raises:
            InvalidInput: The body is not a JSON object, or lacks a value that a template needs.
        """
        payload = parse(_Payload, body, InvalidInput, what="The payload", send="of fields").model_extra or {}
        if (key := repeated_key(body)) is not None:
            raise InvalidInput(f"The payload contains the key {key[:100]!r} twice in one object. Send it only once.")
        section = self.section
        for path, value in section.when.items():
            if _find(payload, path, None) not in (value if isinstance(value, list) else [value]):
                return None
        id = _fill_key(section.id, payload) if section.id else signed_id
        session = f"hook:{self.name}:{_fill_key(section.session, payload)}" if section.session else None
        return Delivery(digest([section.app, section.tenant, id]), _fill(section.message, payload), session)


def _is_standard(key: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    from standardwebhooks import Webhook  # only for this scheme

    try:
        Webhook(key).verify(body, dict(headers), json_parse=False)
    except Exception:  # noqa: BLE001  # forged headers may raise anything
        return False
    return True


_MISSING = object()


def _find(payload: JsonObject, path: str, default: Any = _MISSING) -> Any:
    value: Any = payload
    for part in path.split(".") if path != "." else ():
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif default is _MISSING:
            raise InvalidInput(f"The payload has no {path!r}, which the trigger needs.")
        else:
            return default
    return value


def _fill(template: str, payload: JsonObject) -> str:
    """Insert values as JSON. Placeholders in them have no effect, and text cannot leave its quotation marks."""
    return _PLACEHOLDER.sub(lambda match: encode(_find(payload, match[1])).decode(), template)


def _fill_key(template: str, payload: JsonObject) -> str:
    if len(key := _fill(template, payload)) > MAX_KEY_CHARS:
        raise InvalidInput(f"The ID or the session of the delivery has more than {MAX_KEY_CHARS} characters.")
    return key


def read_triggers(file: Path) -> dict[str, Trigger]:
    """Read the file of triggers, and the secrets to which it refers.

    Raises:
        InvalidConfiguration: The file is not valid, or a secret is missing or too short.
    """
    triggers = {}
    for name, section in read_configuration(file, _File).root.items():
        key = f"{name}.secret_file"
        if section.hmac is None:
            keys = [read_webhook_key(file, key, secret) for secret in section.secret_file]
        else:
            keys = [read_secret(file, key, secret).encode() for secret in section.secret_file]
            if min(map(len, keys)) < MIN_SECRET_CHARS:
                raise InvalidConfiguration(file, key, f"needs at least {MIN_SECRET_CHARS} characters.")
        triggers[name] = Trigger(name, section, tuple(keys))
    return triggers
