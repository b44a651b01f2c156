"""Exit codes, and the one line that says what went wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from temporalio.service import RPCError, RPCStatusCode

from waystation.core import errors


class Exit(IntEnum):
    """What a command's exit code means."""

    OK = 0
    FAILED = 1
    """The invocation failed, was cancelled or stopped early; or a history does not replay, or two of them differ."""
    USAGE = 2
    ALREADY_ANSWERED = 3
    EXPIRED = 4
    NOT_ALLOWED = 5
    UNKNOWN = 6
    """There is no such invocation or session, or no such call waits or waited in it."""
    UNCONFIRMED = 7
    """No worker said in time whether an answer counts."""
    NO_SERVER = 8
    SESSION_CLOSED = 9
    SESSION_BUSY = 10
    """The session works on another message, or too many wait."""
    INTERRUPTED = 130
    """By Ctrl-C, as shells have it."""


class Problem(errors.WaystationError):
    """A command cannot go on, for a reason that its user can do something about."""

    def __init__(self, exit: Exit, message: str) -> None:
        self.exit = exit
        super().__init__(message)


_OF_ERRORS: dict[type[errors.WaystationError], Exit] = {
    errors.AlreadyAnswered: Exit.ALREADY_ANSWERED,
    errors.Expired: Exit.EXPIRED,
    errors.NotAllowed: Exit.NOT_ALLOWED,
    errors.DigestMismatch: Exit.NOT_ALLOWED,
    errors.UnknownCall: Exit.UNKNOWN,
    errors.InvalidAnswer: Exit.USAGE,
    errors.UnknownSession: Exit.UNKNOWN,
    errors.SessionClosed: Exit.SESSION_CLOSED,
    errors.SessionBusy: Exit.SESSION_BUSY,
    errors.QueueFull: Exit.SESSION_BUSY,
    errors.InvalidInput: Exit.USAGE,
    errors.NotJson: Exit.USAGE,
    errors.NoAgents: Exit.USAGE,
    errors.InvalidConfiguration: Exit.USAGE,
    errors.AnswerUnconfirmed: Exit.UNCONFIRMED,
    errors.MessageUnconfirmed: Exit.UNCONFIRMED,
    errors.ForeignHistory: Exit.UNKNOWN,
    errors.NoSuchEvent: Exit.UNKNOWN,
    errors.NotReplayable: Exit.FAILED,
}


def problem_of(error: errors.WaystationError | RPCError, where: str, invocation: str | None) -> Problem:
    """Return what an error means to the user of a command.

    Args:
        error: What was raised.
        where: The server and the namespace, for the message.
        invocation: The invocation that the command is about.
    """
    if isinstance(error, errors.WaystationError):
        return Problem(_OF_ERRORS.get(type(error), Exit.FAILED), str(error))
    match error.status:
        case RPCStatusCode.NOT_FOUND if "namespace" in error.message.lower():
            return Problem(Exit.NO_SERVER, f"{error.message} Asked: {where}; --namespace names another.")
        case RPCStatusCode.NOT_FOUND:
            text = f"No invocation {invocation!r} in {where}. `waystation pending` lists those that wait."
            folder = invocation is not None and Path(invocation).is_dir()
            return Problem(
                Exit.UNKNOWN, f"{text} The folder {invocation!r} is none; name a file in it." if folder else text
            )
        case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNAUTHENTICATED:
            return Problem(Exit.NOT_ALLOWED, f"{where} refused: {error.message}")
        case RPCStatusCode.UNAVAILABLE | RPCStatusCode.DEADLINE_EXCEEDED | RPCStatusCode.CANCELLED:
            return Problem(Exit.NO_SERVER, f"{where} does not answer any more: {error.message}")
        case RPCStatusCode.INVALID_ARGUMENT | RPCStatusCode.RESOURCE_EXHAUSTED:
            return Problem(Exit.USAGE, f"{where} refused: {error.message}")
        case _:
            return Problem(Exit.FAILED, f"{where} answered {error.status.name}: {error.message}")


@contextmanager
def file_problems(path: str | Path, done: str = "read", *, option: str = "") -> Iterator[None]:
    """Turn the error of a file that cannot be read, or `written`, into a usage error."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        text = f"{str(path)!r} cannot be {done}: {why}."
        raise Problem(Exit.USAGE, f"{option}: {text}" if option else text) from None
