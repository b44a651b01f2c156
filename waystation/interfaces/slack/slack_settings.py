"""The file with the settings of Slack."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import PrivateAttr, StringConstraints

from waystation.configuration import ConfigurationTable, read_configuration, read_secret
from waystation.core.errors import InvalidConfiguration
from waystation.core.secrets import is_private_url

SlackId = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9]{1,30}$")]


class SlackSettings(ConfigurationTable):
    """The content of the file."""

    workspace: SlackId
    """The ID of the workspace. Clicks from other workspaces are refused."""
    bot_token: str
    """The file that contains the bot token, or `env:NAME` for a variable."""
    signing_secret: str
    """The file that contains the signing secret, or `env:NAME` for a variable."""
    inbox: str
    """The URL of `waystation web`. Messages link there."""
    store: str = ".waystation/chat.sqlite"
    """The SQLite file or the PostgreSQL database with linked accounts and posted messages."""
    api: str = "https://slack.com/api/"
    """The URL of Slack's Web API."""
    channels: dict[str, SlackId] = {}
    """The IDs of the channels by the names that policies use."""
    default: tuple[str, ...] = ()
    """The channels for calls whose policy does not name any."""
    _file: Path = PrivateAttr(default=Path())

    @classmethod
    def read(cls, file: Path) -> "SlackSettings":
        """Read the file.

        Raises:
            InvalidConfiguration: The file is not valid.
        """
        settings = read_configuration(file, cls)
        settings._file = file
        for name in settings.default:
            if name not in settings.channels:
                raise InvalidConfiguration(file, "default", f"names {name!r}, which is not in [channels].")
        for key in ("inbox", "api"):
            if not is_private_url(getattr(settings, key)):
                raise InvalidConfiguration(file, key, "is not an https URL.")
        return settings

    def secret(self, key: str) -> str:
        """Return a secret that the file names.

        Raises:
            InvalidConfiguration: The secret is missing, or other users can read it.
        """
        name: Any = getattr(self, key)
        return read_secret(self._file, key, name)

    @property
    def place(self) -> str:
        """The place of the store. A path is relative to the folder of the file."""
        return self.store if "://" in self.store else str(self._file.parent / self.store)
