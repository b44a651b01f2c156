"""Tell the text of a model call while it grows, to whoever reads; see `waystation.core.partial`."""

import secrets
from collections.abc import Callable

from waystation.activities.heartbeat import Heart
from waystation.activities.hooks import Hooks
from waystation.core.log import Log
from waystation.core.partial import TextWindow


def telling(heart: Heart, log: Log, hooks: Hooks, *, number: int, attempt: int) -> Callable[[str], None] | None:
    """Return what a model is to call with pieces of its text; None when nobody is to see them.

    A callback that may change what the model said may hide something of it. So nobody sees it before.
    """
    wanted = log.input is not None and log.input.streaming
    if not wanted or hooks.has("after_model_callback", "on_model_error_callback"):
        return None
    window = TextWindow(agent=hooks.agent.name, number=number, attempt=attempt, mark=secrets.token_hex(3))

    def on_text(text: str) -> None:
        window.add(text)
        heart.tell(lambda: [window.told().model_dump(mode="json")])

    return on_text
