"""Find the line of author code that raised an exception."""

import sysconfig
import traceback
from pathlib import Path

_OTHERS = (
    str(Path(__file__).parent.parent),
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    "<frozen ",
)
"""Path prefixes of code that is not the author's: Waystation, Python, installed packages."""


def find_author_line(error: BaseException) -> str | None:
    """Return file and line of the innermost author code in a traceback; None without a traceback.

    The mistake is there, even if a library that the author called raised the exception.
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
