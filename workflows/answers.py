"""Answers on their way in, and refusals on their way out."""

from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from waystation.core.answer import Answer, parse_answer
from waystation.core.errors import AnswerRefused, InvalidAnswer
from workflows.ports import data_of


def parsed(given: RawValue) -> Answer:
    """Return the answer in the argument of an update, or raise what tells the sender why it is none."""
    try:
        return parse_answer(data_of(given.payload))
    except InvalidAnswer as refused:
        raise typed(refused) from None


def typed(error: AnswerRefused) -> ApplicationError:
    """Return a refusal as the error with which an update fails."""
    return ApplicationError(str(error), type=type(error).__name__, non_retryable=True)
