"""Messages of A2A that answer the calls of a waiting task. What a message says counts only if it names its call."""

from collections.abc import Sequence

from a2a.types import Message
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from pydantic import ValidationError

from waystation.core.actions import ACTIONS
from waystation.core.log import Log
from waystation.core.payload import describe_faults, digest
from waystation.interfaces.a2a_server.task_views import describe_call, may_continue, read_data
from waystation.interfaces.open_calls import OpenCall
from waystation.web.call_api import AnswerBody, RefusedAnswer, Unconfirmed
from waystation.web.logins import Login
from waystation.web.web_services import WebServices

HOW = (
    "Send a data part such as "
    '{"action": "approve", "digest": "…"}, with the `digest` of the call in the metadata of the task\'s status.'
)


class TaskAnswer(AnswerBody):
    """A data part that answers a call."""

    call: str | None = None
    """The approval ID of the call. Needed if the task waits for several."""


def parse_answers(message: Message) -> list[TaskAnswer]:
    """Return the answers in the data parts of a message.

    Raises:
        InvalidParamsError: A data part with an action is not a valid answer.
    """
    answers = []
    for part in message.parts:
        data = read_data(part) if part.WhichOneof("content") == "data" else None
        if isinstance(data, dict) and "action" in data:
            try:
                answers.append(TaskAnswer.model_validate(data))
            except ValidationError as error:
                raise InvalidParamsError(message=f"The answer is invalid: {describe_faults(error)}.") from None
    return answers


async def answer_task(
    services: WebServices, login: Login, message: Message, log: Log, calls: Sequence[OpenCall]
) -> bool:
    """Answer the calls of a task with a message. Return whether a worker has confirmed all answers.

    Raises:
        InvalidParamsError: An answer is refused, or the message does not answer the calls.
        UnsupportedOperationError: The calls wait for somebody else.
    """
    key = f"a2a-{digest([message.message_id])}"
    answers = parse_answers(message)
    if not answers:
        # This message has been received before if its answer counts.
        if any(key in call.receipts for call in log.state.calls.values()):
            return True
        answers = [make_reply(login, message, log, calls)]
    confirmed = True
    for answer in answers:
        confirmed &= await send_answer(services, login, answer, key, [call.view.id for call in calls])
    return confirmed


async def send_answer(
    services: WebServices, login: Login, answer: TaskAnswer, key: str, waiting: Sequence[str]
) -> bool:
    """Send one answer, and return whether a worker has confirmed it.

    Raises:
        InvalidParamsError: The answer is refused, or does not name its call or the call's digest.
    """
    if answer.call is None and len(waiting) != 1:
        raise InvalidParamsError(message=f"The task waits for {len(waiting)} calls. Name one of them as `call`.")
    id = answer.call or waiting[0]
    if ACTIONS[answer.action].decides and answer.digest is None and answer.question is None:
        raise InvalidParamsError(message=f"The answer lacks the `digest` of the call, as you saw it. {HOW}")
    (view,) = await services.approvals.answers.view_all(login, [id])
    (outcome,) = await services.calls.answer(login, {id: (view, answer)}, answer, key)
    if isinstance(outcome, RefusedAnswer):
        raise InvalidParamsError(message=outcome.problem.detail)
    return not isinstance(outcome, Unconfirmed)


def make_reply(login: Login, message: Message, log: Log, calls: Sequence[OpenCall]) -> TaskAnswer:
    """Return the answer that a text is to the only question of a task. A text never approves a call.

    Raises:
        InvalidParamsError: The task does not ask this person for a text.
        UnsupportedOperationError: The task waits for somebody else.
    """
    own = [call for call in calls if may_continue(call, login.subject)]
    if not own:
        lines = " ".join(describe_call(call, login.subject) for call in calls)
        raise UnsupportedOperationError(message=f"The task waits for others, so it accepts no message. {lines}")
    questions = [call for call in own if "respond" in call.actions and not call.view.pending.response_schema]
    text = "\n".join(part.text for part in message.parts if part.text)
    if len(calls) != 1 or not questions or not text or questions[0].view.pending.invocation_id != log.invocation_id:
        raise InvalidParamsError(message=f"The task waits for an answer that a text cannot give. {HOW}")
    pending = questions[0].view.pending
    return TaskAnswer(
        action="respond",
        response={"text": text},
        call=pending.approval_id,
        digest=pending.digest,
        question=pending.question,
    )
