"""Find the line of user code that raised an exception."""

import sysconfig
import traceback
from pathlib import Path

_OTHERS = (
    str(Path(__file__).parent.parent),
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    "<frozen ",
)
"""Path prefixes of code that is not user code: Waystation, Python and installed packages."""


def find_author_line(error: BaseException) -> str | None:
    """Return the file and line of the innermost user code in a traceback, or None if there is no traceback.

    That line is where the mistake usually is, even if the exception was raised in a library that the user code called.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    place = next((frame for frame in reversed(frames) if _is_own(frame)), frames[-1])
    cause = error.__cause__ or error.__context__
    if place is not frames[-1] and cause is not None:  # raised by Waystation or a library because of another exception
        below = [frame for frame in traceback.extract_tb(cause.__traceback__) if _is_own(frame)]
        place = below[-1] if below else place
    return f"{place.filename}:{place.lineno}"


def _is_own(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(_OTHERS)
