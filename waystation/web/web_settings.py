"""The settings of the web application, for `waystation web` and for applications that contain it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from waystation.core.contract import Stores
from waystation.extensions import WebInterface
from waystation.web.access import FindPerson
from waystation.web.limits import Limits

if TYPE_CHECKING:
    from waystation.artifacts import BaseArtifactService
    from waystation.storage import QuotaStore
    from waystation.web.triggers import Trigger


@dataclass(frozen=True, kw_only=True)
class WebSettings:
    """The settings of the web application. The options of `waystation web` set the same values."""

    url: str | None = None
    """The address that users enter, with the path where the application is mounted, if any. Required in another
    application, unless only this machine reaches it."""
    hosts: Sequence[str] = ()
    """Host names of the server in addition to localhost and that of `url`. Requests for other names are refused,
    because another site could point its own name at this address."""
    identity: str | Path | None = None
    """The identity file, with which answers are signed, and people and programs are identified."""
    person: str | None = None
    """Name recorded for the person who uses the printed login link. Defaults to the operating system user."""
    find_person: FindPerson | None = None
    """Returns the person that the application around this one, the host, has logged in. With it, this application has
    no logins of its own, and the section `[oidc]` of the identity file counts only for access tokens."""
    login_url: str = ""
    """Where the host logs people in. The page to return to is added as the parameter `next`."""
    logout_url: str = ""
    """A page of the host on which people log out. Without it, pages have no such link."""
    token: str | None = field(default=None, repr=False)
    """The token that programs send as `Authorization: Bearer …`."""
    allow_any_account: bool = False
    """Whether anyone with an account at a public provider may log in."""
    origins: Sequence[str] = ()
    """Origins of other sites, such as `https://app.example.com`, whose pages may send requests with an access token.
    Their requests never use cookies."""
    temporal_ui: str | None = None
    """Address of the Temporal Web UI that pages link to."""
    artifacts: "str | Path | BaseArtifactService" = Stores().artifacts
    """The folder, object store or service where workers store artifacts."""
    usage: "QuotaStore | None" = None
    """The workers' store of what tenants and users have used."""
    triggers: "Mapping[str, Trigger]" = field(default_factory=dict)
    """The triggers with which signed requests of other systems start agents, by name; see
    `waystation.web.triggers.read_triggers`."""
    interfaces: Mapping[str, WebInterface] = field(default_factory=dict)
    """The interfaces for other protocols, by name; see `waystation.extensions.load_interfaces`."""
    limits: Limits = field(default_factory=Limits)
    """Limits on what the application accepts and shows."""

    @property
    def names(self) -> list[str]:
        """The host names of the server in addition to localhost."""
        return [*self.hosts, *([urlsplit(self.url).hostname or ""] if self.url else [])]
