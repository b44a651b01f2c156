"""Answers and messages on their way in, and refusals on their way out."""

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from waystation.core import results
from waystation.core.answer import Answer, parse_answer
from waystation.core.entry import Began, Refused
from waystation.core.errors import AnswerRefused, InvalidAnswer, InvalidInput, SessionRefused
from waystation.core.session_data import SessionMessage, parse_message
from waystation.core.signals import NOT_FOUND
from waystation.workflows.ports import data_of, is_elsewhere, raw, result_of

NOTHING = raw(b"null")
"""What stands for an argument that was not given, so that it is our refusal that the sender reads."""
SETTLE_S = 0.001


def beginning(given: RawValue, data: bytes) -> Began | Refused:
    """Return the first entry of an invocation that was started with `data`."""
    if is_elsewhere(given):
        return Refused(NOT_FOUND.message)
    return results.beginning([data], child=workflow.info().parent is not None)


def accepted(given: RawValue) -> Answer:
    """Return the answer in the argument of an update that was accepted.

    Raises:
        ResultElsewhere: Whoever accepted it found it in the store, and this worker does not.
    """
    return parse_answer(result_of(given.payload))


def parsed(given: RawValue) -> Answer:
    """Return the answer in the argument of an update, or raise what tells the sender why it is none."""
    if is_elsewhere(given):
        raise typed(InvalidAnswer(NOT_FOUND.message))
    try:
        return parse_answer(data_of(given.payload))
    except InvalidAnswer as refused:
        raise typed(refused) from None


def parsed_message(given: RawValue) -> SessionMessage:
    """Return the message in the argument of an update, or raise what tells the sender why it is none."""
    try:
        if is_elsewhere(given):
            raise InvalidInput(NOT_FOUND.message)
        return parse_message(data_of(given.payload))
    except InvalidInput as error:
        raise typed(error) from None


def typed(error: AnswerRefused | SessionRefused | InvalidInput) -> ApplicationError:
    """Return a refusal as the error with which an update fails."""
    return ApplicationError(str(error), type=type(error).__name__, non_retryable=True)


async def settled() -> None:
    """Have a message judged, or begin something, in a workflow task after the one that brought it.

    A worker that has the workflow in memory knew of a turn's end before the message. One that has not may be given both
    at once, the message first; and a replay may give them one after the other again.
    """
    await workflow.sleep(SETTLE_S, summary="settles")
