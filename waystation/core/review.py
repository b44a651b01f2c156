"""The look at an answer that needs more than the log: whose token it carries, whether its values fit the tool."""

from waystation.core.answer import Answer
from waystation.core.model_call import Position
from waystation.core.payload import JsonObject, Recorded
from waystation.core.policy import Verified

REVIEW_ACTIVITY = "review_answer"


class ReviewInput(Position):
    """Input of the activity that looks at an answer. The answer is read from the log."""

    ref: str
    """Of the signal or update that brought it."""
    call: str
    """Id of the function call. Not under the name that the input of a tool's activity has for it: a worker that knows
    no reviews would carry out the call instead."""
    root: str = ""


class Review(Recorded):
    """What was found."""

    who: Verified | None = None
    """Who answered, when the answer carried a token."""
    nonce: str | None = None
    """What makes the token usable once."""
    refused: str | None = None
    """Name of an `AnswerRefused` class; None when nothing speaks against the answer."""
    message: str = ""
    """Why it was refused; nothing secret."""
    args: JsonObject | None = None
    """For `edit`: the arguments as the tool will take them, when that is not what was sent."""
    mark: str = ""
    """Tells the attempts of one review apart."""

    def applied_to(self, answer: Answer) -> Answer:
        """Return an answer as it counts."""
        return answer if self.args is None else answer.model_copy(update={"args": self.args})
