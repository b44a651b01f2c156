"""Answer calls for the users of a chat, by the rules of the web application."""

from http import HTTPStatus

from waystation.core.errors import AnswerRefused, AuthorizationFailed, IdentityUnavailable, NotAllowed, StoreFailed
from waystation.interfaces.chat.account_links import AccountLinks
from waystation.interfaces.chat.chat_store import Account
from waystation.web.approval_pages import parse_answer
from waystation.web.call_answers import CallAnswers, CallView, problem_of
from waystation.web.forms import Form, InvalidForm
from waystation.web.http_responses import RequestRefused
from waystation.web.logins import Login

REFUSALS = (
    AnswerRefused,
    AuthorizationFailed,
    IdentityUnavailable,
    InvalidForm,
    NotAllowed,
    RequestRefused,
    StoreFailed,
)
"""Errors whose messages are for the person who clicked."""


class ChatAnswers:
    """Reads and answers calls for the users of a chat. Each time, the person is identified again."""

    def __init__(self, answers: CallAnswers, links: AccountLinks) -> None:
        self._answers, self._links = answers, links

    async def read(self, user: Account, id: str, version: str) -> tuple[Login, CallView]:
        """Return who a user is, and an open call that this person may answer, if it is still as it was shown.

        The version is that of the `CallView` that was shown.

        Raises:
            Exception: One of `REFUSALS`.
        """
        login = await self._links.identify(user)
        view = await self._answers.view(login, id)
        if view.standing != "open":
            raise NotAllowed(view.decision)
        if view.version != version:
            raise NotAllowed("The call has changed since this message was posted. Read the call again.")
        if problem := self._answers.why_not(login, view, "reject"):
            raise NotAllowed(problem)
        return login, view

    async def answer(self, user: Account, id: str, version: str, form: Form, *, answer_id: str) -> None:
        """Send the answer in a form. Return once a worker has confirmed that it counts.

        Raises:
            Exception: One of `REFUSALS`.
        """
        login, view = await self.read(user, id, version)
        action, fields = parse_answer(form, view)
        self._answers.check(login, view, action, comment=fields["comment"], digest=view.pending.digest)
        call = view.with_version(version)
        (outcome,) = await self._answers.send(login, [(view, call)], action, answer_id=answer_id, **fields)
        status, problem = problem_of(outcome)
        if problem:
            raise RequestRefused(HTTPStatus(status), "NotAnswered", problem)
