"""Check what approvers decide: their answers before they count, and approved calls just before they run.

An answer is verified by an activity: whose token it carries, whether its values fit the tool. Whatever anybody may have
sent becomes a `Review`, and the workflow decides with it.

The workflow says what was approved, as a digest. Before the tool runs it is compared with the arguments as they are
then, with the tool as it is declared then, and with the recorded policy. It is the last moment at which anything can
differ.
"""

import secrets
from collections.abc import Sequence
from typing import Protocol

import structlog
from temporalio import activity

from waystation.activities.activity_attempt import beating, failing_as
from waystation.activities.contexts import Contexts, tools_for
from waystation.activities.log_cache import LogCache
from waystation.activities.session_history import Sessions
from waystation.agents import ApprovalRule, LlmAgent
from waystation.agents.registry import Registry
from waystation.core import (
    MAX_VALUE_BYTES,
    ActivitySettings,
    Answer,
    AnswerRefused,
    CallState,
    DigestMismatch,
    IdentityUnavailable,
    InvalidAnswer,
    JsonObject,
    Log,
    NotAllowed,
    NotJson,
    Review,
    ReviewInput,
    StoreFailed,
    ToolCallInput,
    ToolOutcome,
    UnknownAgent,
    UnknownCall,
    Verified,
    call_digest,
    check_authority,
    encode,
    ids,
    plain,
    responses,
)
from waystation.tools import BaseTool, FunctionTool, ToolContext
from waystation.tools.approval import judged, parameters_digest
from waystation.tools.json_schema import mistakes
from waystation.tools.services import NO_SERVICES, Services

events = structlog.get_logger("waystation.activities")

NO_IDENTITY = (
    "Nobody can say whose token this is, as the workers are not configured for that; start them with --identity FILE "
    "(`waystation identity init` writes one)."
)
GONE = "The arguments cannot be looked into: {problem} Approve the call as it is, or reject it."
CHANGED_ARGUMENTS = (
    "`{tool}` was not run: a person approved it with other arguments, and they were changed since, which only a "
    "callback around tools can do. Approval is needed anew for what is to run."
)
CHANGED_TOOL = (
    "`{tool}` was not run: the parameters that it takes were changed after a person was asked. Call it again if it is "
    "still needed; somebody will be asked again."
)
CHANGED_POLICY = "`{tool}` was not run: what was approved is not this call. Call it again if it is still needed."
UNASKED = (
    "`{tool}` was not run: a callback changed its arguments to such for which a person has to be asked, after it had "
    "been decided that nobody is."
)


class Verifies(Protocol):
    """Verifies who answers; see `waystation.identity.WorkerIdentity`."""

    async def verify(self, token: str, *, namespace: str, approval_id: str, answer: Answer) -> tuple[Verified, str]:
        """Return who answers, and what makes the token usable once.

        Raises:
            NotAllowed: The token proves nothing.
            IdentityUnavailable: The token cannot be verified now.
        """


class Reviewer:
    """Carries out the activity `review_answer`.

    Only what may pass fails the activity, so that the server repeats it: a history that cannot be read now, an identity
    provider that is away.
    """

    def __init__(
        self,
        registry: Registry,
        logs: LogCache,
        sessions: Sessions,
        *,
        services: Services = NO_SERVICES,
        identity: Verifies | None = None,
        limits: ActivitySettings | None = None,
    ) -> None:
        self._registry, self._logs, self._sessions = registry, logs, sessions
        self._services, self._identity, self._limits = services, identity, limits

    async def review(self, params: ReviewInput) -> bytes:
        """Return an encoded `Review`."""
        info = activity.info()
        with beating(), failing_as("answer.not_reviewed", retried=(StoreFailed, IdentityUnavailable)):
            log = await self._logs.at(info.workflow_id or "", info.workflow_run_id or "", params)
            review = await self._reviewed(params, log, info.namespace)
        events.info(
            "answer.reviewed",
            function_call_id=params.call,
            invocation_id=info.workflow_id,
            attempt=info.attempt,
            verified=review.who is not None,
            refused=review.refused,
        )
        return review.model_copy(update={"mark": secrets.token_hex(3)}).encode()

    async def _reviewed(self, params: ReviewInput, log: Log, namespace: str) -> Review:
        review = Review()
        try:
            answer, call = log.state.approvals.submitted.get(params.ref), log.state.calls.get(params.call)
            if answer is None or call is None:
                raise UnknownCall(f"No answer to {params.call!r} is to be looked into.")
            if answer.token is not None:
                approval_id = ids.approval(log.invocation_id, call.id)
                who, nonce = await self._verified(answer, answer.token, namespace, approval_id)
                review = Review(who=who, nonce=nonce)
            # Before anything is said about values: who may not answer does not learn what would fit either.
            check_authority(call, answer, review.who, log.state.input.requesters if log.state.input else ())
            if answer.action == "edit" and call.gate == "waiting" and answer.args is not None:
                args = await self._edited(params.root, log, call, answer.args)
                review = review.model_copy(update={"args": None if args == answer.args else args})
            elif call.gate != "waiting" and answer.response is not None and answer.action in ("respond", "approve"):
                _check_response(call, answer.response)
        except AnswerRefused as refused:
            return review.model_copy(update={"refused": type(refused).__name__, "message": str(refused)})
        return review

    async def _verified(self, answer: Answer, token: str, namespace: str, approval_id: str) -> tuple[Verified, str]:
        """Return who answers.

        Raises:
            NotAllowed: Nobody can say.
            IdentityUnavailable: Nobody can say now.
        """
        if self._identity is None:
            raise NotAllowed(NO_IDENTITY)
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
        conversation = await self._sessions.conversation(log)
        contexts = Contexts.of(
            conversation,
            log.state.runs[call.turn],
            self._services,
            scopes_read=root.state_scopes,
            limits=self._limits,
        )
        try:
            tool = (await tools_for(agent, contexts, wanted=call.name)).get(call.name)
            if tool is None:
                raise InvalidAnswer(GONE.format(problem=f"agent {call.agent!r} has no tool {call.name!r} now."))
            edited = _edited_args(call, tool, args)
            await _check_policy(call, tool, edited, contexts, root.rules_of(agent))
        except AnswerRefused:
            raise
        except Exception as error:  # noqa: BLE001  # author code, called on behalf of somebody outside
            events.warning("edit.failed", tool=call.name, error_type=type(error).__name__)
            problem = f"looking at them raised {type(error).__name__}."
            raise InvalidAnswer(GONE.format(problem=problem)) from None
        return edited


def _edited_args(call: CallState, tool: BaseTool, args: JsonObject) -> JsonObject:
    """Return edited arguments as the tool will take them.

    Raises:
        AnswerRefused: They do not fit.
    """
    if parameters_digest(tool) != call.declared:
        raise DigestMismatch(
            f"The parameters of {call.name!r} were changed after call {call.id!r} was made, so it cannot run any "
            "more; reject it, and the agent may call the tool as it is now."
        )
    try:
        return tool.edited(args, call.args)
    except ValueError as error:
        raise InvalidAnswer(f"The `args` do not fit {call.name!r}: {error}.") from None


async def _check_policy(
    call: CallState, tool: BaseTool, args: JsonObject, contexts: Contexts, rules: Sequence[ApprovalRule]
) -> None:
    """Refuse arguments for which others would have been asked than were: nobody may edit a call past a rule."""
    before, after = [
        await judged(tool, each, contexts.proposed(call.id, tool.name), rules) for each in (call.args, args)
    ]
    if after.confirmation is None or after.policy in (None, before.policy):
        return
    if call.policy is None or not call.policy.satisfies(after.policy):
        raise NotAllowed(
            f"Call {call.id!r} of {call.name!r} with these `args` is for others to approve; reject it, "
            "and have the agent make the call anew."
        )


def _check_response(call: CallState, response: JsonObject) -> None:
    """Check the answer to a long-running call against the tool's schema.

    Raises:
        InvalidAnswer: It does not fit.
    """
    schema = call.call.response_schema
    try:
        wrong = mistakes(schema, response) if schema is not None else []
    except ValueError as error:
        raise InvalidAnswer(f"The `response` to {call.id!r} cannot be checked: its schema is wrong: {error}.") from None
    if wrong:
        raise InvalidAnswer(f"The `response` to {call.id!r} is not what {call.name!r} takes: {'; '.join(wrong)}.")


async def refusal(
    call: CallState,
    params: ToolCallInput,
    tool: BaseTool,
    args: JsonObject,
    context: ToolContext,
    rules: Sequence[ApprovalRule] = (),
) -> ToolOutcome | None:
    """Return what the model is told instead of running the tool; None when the call may run."""
    refused = await _unapproved(call, params, tool, args, context, rules)
    rejected = context.tool_confirmation is not None and not context.tool_confirmation.confirmed
    if rejected and call.answer and (refused is not None or await _ignores_answer(call, tool, args, context, rules)):
        events.warning("tool_call.not_approved", tool=call.name, function_call_id=call.id, reason="Rejected")
        return ToolOutcome(function_call_id=call.id, response=responses.rejected(call.answer))
    return refused


async def _unapproved(
    call: CallState,
    params: ToolCallInput,
    tool: BaseTool,
    args: JsonObject,
    context: ToolContext,
    rules: Sequence[ApprovalRule],
) -> ToolOutcome | None:
    if params.digest is None:
        # Nobody had to approve the call; a callback may have made it one that somebody has to.
        if args == call.args or call.call.confirmation is not None or context.tool_confirmation is not None:
            return None
        needed = (await judged(tool, args, context, rules)).confirmation is not None
        return _refused(call, UNASKED, "ApprovalNeeded") if needed else None
    try:
        shown, declared = plain(args), parameters_digest(tool)
    except NotJson:
        return _refused(call, CHANGED_ARGUMENTS, "DigestMismatch")
    if call_digest(call.agent, call.name, shown, declared=declared, policy=call.policy) == params.digest:
        return None
    if declared != call.declared:
        return _refused(call, CHANGED_TOOL, "DigestMismatch")
    return _refused(call, CHANGED_ARGUMENTS if shown != call.args else CHANGED_POLICY, "DigestMismatch")


async def _ignores_answer(
    call: CallState, tool: BaseTool, args: JsonObject, context: ToolContext, rules: Sequence[ApprovalRule]
) -> bool:
    """Whether a tool would not look at the answer to what it had asked from inside, since a deploy has changed it: now
    its function takes no context, or it is confirmed before it runs."""
    if isinstance(tool, FunctionTool) and tool.signature.context is None:
        return True
    if call.call.confirmation is not None or call.call.standing:
        return False
    return (await judged(tool, args, context, rules)).confirmation is not None


def bind_approval(call: CallState, tool: BaseTool, args: JsonObject, outcome: ToolOutcome) -> ToolOutcome:
    """Return the outcome with what an approver's answer is bound to, when the tool asks for one from inside."""
    if outcome.actions is None or call.id not in outcome.actions.requested_tool_confirmations:
        return outcome
    bound = {
        "approval": call.call.approval or tool.approval,
        "declared": call.declared or parameters_digest(tool),
        "args": None if args == call.args else recordable(args),
    }
    return outcome.model_copy(update=bound)


def recordable(args: JsonObject) -> JsonObject | None:
    """Return arguments as callbacks left them; None when they cannot be recorded, and then the call will not run."""
    try:
        result: JsonObject = plain(args)
    except NotJson:
        return None
    return result if len(encode(result)) <= MAX_VALUE_BYTES else None


def _refused(call: CallState, text: str, error_type: str) -> ToolOutcome:
    events.warning("tool_call.not_approved", tool=call.name, function_call_id=call.id, reason=error_type)
    response = {"error": text.format(tool=call.name), "error_type": error_type}
    return ToolOutcome(function_call_id=call.id, response=response, error_type=error_type)
