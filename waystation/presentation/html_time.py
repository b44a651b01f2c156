"""How a moment reads on a page: in the server's time zone, which is named, and as programs read it."""

from datetime import UTC, datetime

from markupsafe import Markup

from waystation.presentation import terminal


def zone() -> str:
    """Return the name of the server's time zone now."""
    return datetime.now(UTC).astimezone().strftime("%Z")


def moment(seconds: float) -> Markup:
    """Return a moment, given in seconds since 1970, as a page has it."""
    exact = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    return Markup('<time datetime="{}">{}</time>').format(exact, terminal.clock(seconds, zone=True))
