"""Where author code raised."""

import sysconfig
import traceback
from pathlib import Path

_OTHERS = (
    str(Path(__file__).parent.parent),
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    "<frozen ",
)
"""Where code lies that is not the author's: ours, Python's, that of installed packages."""


def place_of(error: BaseException) -> str | None:
    """Return file and line of what the author wrote last on the way to an exception; None when nobody knows.

    That is where the mistake is, and not where a library that was called there noticed it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    place = next((frame for frame in reversed(frames) if _is_own(frame)), frames[-1])
    cause = error.__cause__ or error.__context__
    if place is not frames[-1] and cause is not None:  # we, or a library, raised it on behalf of another
        below = [frame for frame in traceback.extract_tb(cause.__traceback__) if _is_own(frame)]
        place = below[-1] if below else place
    return f"{place.filename}:{place.lineno}"


def _is_own(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(_OTHERS)
