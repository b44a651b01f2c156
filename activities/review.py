"""Look into an answer that needs more than the log: whose token it carries, whether its values fit the tool.

Whatever anybody may have sent becomes a `Review`, and the workflow decides with it. Only what may pass fails the
activity, so that the server repeats it: a history that cannot be read now, an identity provider that is away.
"""

import secrets
from dataclasses import dataclass

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from waystation.activities.contexts import Contexts
from waystation.activities.heartbeat import beating
from waystation.activities.identity import Verifies
from waystation.activities.request import tools_for
from waystation.activities.sessions import Sessions
from waystation.activities.view import Views
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Registry, Root
from waystation.core import ids
from waystation.core.answer import Answer
from waystation.core.authority import check_authority
from waystation.core.call import CallState
from waystation.core.errors import (
    AnswerRefused,
    DigestMismatch,
    ForeignHistory,
    IdentityUnavailable,
    InvalidAnswer,
    NotAllowed,
    StoreFailed,
    UnknownAgent,
    UnknownCall,
)
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.policy import Verified
from waystation.core.review import Review, ReviewInput
from waystation.core.settings import ActivitySettings
from waystation.tools.approval import judged, parameters_digest
from waystation.tools.base_tool import BaseTool
from waystation.tools.json_schema import mistakes
from waystation.tools.services import NO_SERVICES, Services

events = structlog.get_logger("waystation.activities")

NO_IDENTITY = (
    "Nobody can say whose token this is, as the workers are not configured for that; start them with --identity FILE "
    "(`waystation identity init` writes one)."
)
GONE = "The arguments cannot be looked into: {problem} Approve the call as it is, or reject it."


class Reviewer:
    """Carries out the activity `review_answer`."""

    def __init__(
        self,
        registry: Registry,
        views: Views,
        sessions: Sessions,
        *,
        services: Services = NO_SERVICES,
        identity: Verifies | None = None,
        limits: ActivitySettings | None = None,
    ) -> None:
        self._registry, self._views, self._sessions = registry, views, sessions
        self._services, self._identity, self._limits = services, identity, limits

    async def review(self, given: ReviewInput) -> bytes:
        """Return an encoded `Review`."""
        info = activity.info()
        with beating():
            try:
                log = await self._views.at(info.workflow_id or "", info.workflow_run_id or "", given)
                review = await self._reviewed(given, log, info.namespace)
            except ForeignHistory as error:
                raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None
            except (StoreFailed, IdentityUnavailable) as error:
                raise ApplicationError(str(error), type=type(error).__name__) from None
        events.info(
            "answer.reviewed",
            function_call_id=given.call,
            invocation_id=info.workflow_id,
            attempt=info.attempt,
            verified=review.who is not None,
            refused=review.refused,
        )
        return review.model_copy(update={"mark": secrets.token_hex(3)}).encode()

    async def _reviewed(self, given: ReviewInput, log: Log, namespace: str) -> Review:
        answer, call = log.submitted.get(given.ref), log.calls.get(given.call)
        if answer is None or call is None:
            return _refused(UnknownCall(f"No answer to {given.call!r} is to be looked into."))
        review = Review()
        try:
            if answer.token is not None:
                who, nonce = await self._verified(answer, answer.token, namespace, log, call)
                review = Review(who=who, nonce=nonce)
            # Whoever may not answer is not told what would fit either.
            requester = (log.input.requester or log.input.user_id) if log.input else ""
            check_authority(call, answer, review.who, requester)
            if answer.action == "edit" and call.gate == "waiting" and answer.args is not None:
                args = await self._edited(given.root, log, call, answer.args)
                review = review.model_copy(update={"args": None if args == answer.args else args})
            elif call.gate != "waiting" and answer.response is not None and answer.action in ("respond", "approve"):
                check_response(call, answer.response)
        except AnswerRefused as refused:
            return _refused(refused, review)
        return review

    async def _verified(
        self, answer: Answer, token: str, namespace: str, log: Log, call: CallState
    ) -> tuple[Verified, str]:
        """Return who answers.

        Raises:
            NotAllowed: Nobody can say.
            IdentityUnavailable: Nobody can say now.
        """
        if self._identity is None:
            raise NotAllowed(NO_IDENTITY)
        approval_id = ids.approval(log.invocation_id, call.id)
        try:
            return await self._identity.verify(token, namespace=namespace, approval_id=approval_id, answer=answer)
        except (NotAllowed, IdentityUnavailable):
            raise
        except Exception as error:  # noqa: BLE001  # a forged token may have a library raise anything
            events.warning("token.not_verified", error_type=type(error).__name__)
            raise NotAllowed(f"The token could not be verified ({type(error).__name__}).") from None

    async def _edited(self, root_name: str, log: Log, call: CallState, args: JsonObject) -> JsonObject:
        """Return the arguments as the tool will take them.

        Raises:
            AnswerRefused: They do not fit, or nobody can say.
        """
        try:
            root, agent = self._registry.find(root_name, call.agent)
        except UnknownAgent as error:  # a deploy has taken it away
            raise InvalidAnswer(GONE.format(problem=error)) from None
        if not isinstance(agent, LlmAgent):
            raise InvalidAnswer(GONE.format(problem=f"agent {call.agent!r} has no tools now."))
        said = await self._sessions.conversation(log)
        work = log.works[call.turn]
        contexts = Contexts.of(log, work, self._services, scopes_read=root.state_scopes, said=said, limits=self._limits)
        try:
            tool = (await tools_for(agent, contexts, wanted=call.name)).get(call.name)
            if tool is None:
                raise InvalidAnswer(GONE.format(problem=f"agent {call.agent!r} has no tool {call.name!r} now."))
            return await Edit(call, tool, agent, root, contexts).taken(args)
        except AnswerRefused:
            raise
        except Exception as error:  # noqa: BLE001  # author's code, looked at on behalf of somebody outside
            events.warning("edit.failed", tool=call.name, error_type=type(error).__name__)
            problem = f"looking at them raised {type(error).__name__}."
            raise InvalidAnswer(GONE.format(problem=problem)) from None


@dataclass(frozen=True, slots=True)
class Edit:
    """Other arguments for a call, and what they have to fit."""

    call: CallState
    tool: BaseTool
    agent: LlmAgent
    root: Root
    contexts: Contexts

    async def taken(self, args: JsonObject) -> JsonObject:
        """Return the arguments as the tool will take them.

        Raises:
            AnswerRefused: They do not fit.
        """
        call, tool = self.call, self.tool
        if parameters_digest(tool) != call.declared:
            raise DigestMismatch(
                f"The parameters of {call.name!r} were changed after call {call.id!r} was made, so it cannot run any "
                "more; reject it, and the agent may call the tool as it is now."
            )
        try:
            taken = tool.edited(args, call.args)
        except ValueError as error:
            raise InvalidAnswer(f"The `args` do not fit {call.name!r}: {error}.") from None
        await self._check_policy(taken)
        return taken

    async def _check_policy(self, args: JsonObject) -> None:
        """Refuse arguments for which others would have been asked than were: nobody may edit a call past a rule."""
        rules = self.root.rules_of(self.agent)
        before, after = [
            await judged(self.tool, each, self.contexts.proposed(self.call.id, self.tool.name), rules)
            for each in (self.call.args, args)
        ]
        if after.confirmation is None or after.policy in (None, before.policy):
            return
        if self.call.policy is None or not self.call.policy.satisfies(after.policy):
            raise NotAllowed(
                f"Call {self.call.id!r} of {self.call.name!r} with these `args` is for others to approve; reject it, "
                "and have the agent make the call anew."
            )


def check_response(call: CallState, response: JsonObject) -> None:
    """Look whether the answer to a long-running call is what the tool says that it is.

    Raises:
        InvalidAnswer: It is not.
    """
    schema = call.call.response_schema
    try:
        wrong = mistakes(schema, response) if schema is not None else []
    except ValueError as error:
        raise InvalidAnswer(f"The `response` to {call.id!r} cannot be checked: its schema is wrong: {error}.") from None
    if wrong:
        raise InvalidAnswer(f"The `response` to {call.id!r} is not what {call.name!r} takes: {'; '.join(wrong)}.")


def _refused(refused: AnswerRefused, found: Review | None = None) -> Review:
    update = {"refused": type(refused).__name__, "message": str(refused)}
    return (found or Review()).model_copy(update=update)
