"""The file with the settings of Slack."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, StringConstraints

from waystation.configuration import ConfigurationTable, read_configuration, read_secret
from waystation.core.errors import InvalidConfiguration
from waystation.core.secrets import is_private_url
from waystation.interfaces.chat.message_board import ChannelRoutes

SlackId = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9]{1,30}$")]


class SlackChannel(ConfigurationTable):
    """A section `[channels.NAME]`."""

    id: SlackId
    """The ID of the channel in Slack."""


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
    link_days: float = Field(default=30.0, gt=0, le=365)
    """How long a linked account may answer before the person has to log in again."""
    api: str = "https://slack.com/api/"
    """The URL of Slack's Web API."""
    channels: dict[str, SlackChannel] = {}
    """The channels by the names that policies use."""
    default: tuple[str, ...] = ()
    """The channels for calls whose policy does not name any."""
    operators: tuple[str, ...] = ()
    """The channels for calls whose outcome is unknown. Defaults to those in `default`."""
    _file: Path = PrivateAttr(default=Path())

    @classmethod
    def read(cls, file: Path) -> "SlackSettings":
        """Read the file.

        Raises:
            InvalidConfiguration: The file is not valid.
        """
        settings = read_configuration(file, cls)
        settings._file = file
        for key in ("default", "operators"):
            for name in getattr(settings, key):
                if name not in settings.channels:
                    raise InvalidConfiguration(file, key, f"names {name!r}, but there is no [channels.{name}].")
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

    @property
    def routes(self) -> ChannelRoutes:
        """Which channels show a call."""
        ids = {name: channel.id for name, channel in self.channels.items()}
        return ChannelRoutes(channels=ids, default=self.default, operators=self.operators)
