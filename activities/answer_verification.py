"""Verify answers before they take effect, and approved calls right before they run.

An activity verifies an answer's token, if it has one, and checks the answer's values against the tool. The result is a
`Verification`, no matter what was sent. The workflow then decides.

The workflow passes a digest of the approved call. Right before the tool runs, the digest is compared with the current
arguments, the tool's current declaration and the recorded policy.
"""

import secrets
from collections.abc import Sequence

import structlog
from temporalio import activity

from waystation.activities.activity_attempt import HOLD_AFTER, convert_errors, send_heartbeats
from waystation.activities.contexts import Contexts, tools_for
from waystation.activities.log_cache import LogCache
from waystation.activities.name_scripts import find_mixed_scripts
from waystation.activities.proofs import NO_PROOFS, ProofFactory, may_need_verified_approval
from waystation.activities.session_history import SessionHistories
from waystation.agents import ApprovalRule, LlmAgent
from waystation.apps.registry import Registry
from waystation.core import ids
from waystation.core.actions import ACTIONS
from waystation.core.approval import Answer, Verification, Verified, call_digest, is_machine
from waystation.core.contract import ActivitySettings, ToolCallInput, ToolOutcome, VerificationInput
from waystation.core.errors import (
    AnswerRefused,
    DigestMismatch,
    IdentityUnavailable,
    InvalidAnswer,
    NotAllowed,
    NotJson,
    StoreFailed,
    UnknownAgent,
    UnknownCall,
)
from waystation.core.log import (
    CallState,
    Log,
    approval_of,
    check_authority,
    digest_with,
    origin_of,
    question_of,
    responses,
)
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, encode, to_plain_json
from waystation.tools import BaseTool, FunctionTool, ToolContext
from waystation.tools.approval import find_required_approval, parameters_digest
from waystation.tools.json_schema import find_mistakes
from waystation.tools.services import NO_SERVICES, Services

events = structlog.get_logger("waystation.activities")

OTHER_RUN = (
    "An answer with a token must contain `run`, the ID of the invocation's first run. The answer has none or a "
    "different one. Fetch the pending call again."
)
OTHER_DIGEST = (
    "An answer with a token must contain the `digest` of the call. The answer has none or a different one. Fetch the "
    "pending call again."
)
UNVERIFIABLE = "The edited arguments cannot be verified: {problem} Approve the call unchanged, or reject it."
CHANGED_ARGUMENTS = (
    "`{tool}` was not run: a tool callback changed the arguments after they were approved. The call needs a new "
    "approval."
)
CHANGED_TOOL = (
    "`{tool}` was not run: its parameters changed after approval was requested. Call it again if it is still needed; "
    "approval will be requested again."
)
CHANGED_ORIGIN = (
    "`{tool}` was not run: it was called as a tool of another origin ({recorded}) than the tool that now has this name "
    "({now}). Call it again if it is still needed."
)
CHANGED_POLICY = "`{tool}` was not run: a different call was approved. Call it again if it is still needed."
UNPROVEN = (
    "`{tool}` was not run: its approval could not be verified. Call it again if it is still needed; approval will be "
    "requested again."
)
MAY_HAVE_RUN = (
    "`{tool}` may already have run with this approval, for example before the invocation was reset. Whether it took "
    "effect is unknown; it was not repeated."
)
NO_KEYS = "`{tool}` was not run: its approvals cannot be verified, because the worker has no keys."
UNASKED = (
    "`{tool}` was not run: a tool callback changed its arguments, and the new arguments need approval, which was not "
    "requested."
)


class AnswerVerifier:
    """Runs the activity `review_answer`.

    If the answer or its token is invalid, the activity completes with a refusal. It fails if the history is damaged. It
    also fails, and is retried, for temporary problems such as an unreachable store or identity provider.
    """

    def __init__(
        self,
        registry: Registry,
        logs: LogCache,
        sessions: SessionHistories,
        *,
        services: Services = NO_SERVICES,
        limits: ActivitySettings | None = None,
        proofs: ProofFactory = NO_PROOFS,
    ) -> None:
        self._proofs = proofs
        self._registry, self._logs, self._sessions = registry, logs, sessions
        self._services, self._limits = services, limits

    async def verify(self, params: VerificationInput) -> bytes:
        """Return an encoded `Verification`."""
        info = activity.info()
        with (
            send_heartbeats(),
            convert_errors("answer.not_reviewed", retried=(StoreFailed, IdentityUnavailable, UnknownAgent)),
        ):
            log = await self._logs.at(info.workflow_id or "", info.workflow_run_id or "", params)
            verification = await self._verify_answer(params, log, info.namespace)
            if verification.who and not verification.refused:
                verification = await self._sign(params, log, verification)
        events.info(
            "answer.reviewed",
            function_call_id=params.call,
            invocation_id=info.workflow_id,
            attempt=info.attempt,
            verified=verification.who is not None,
            refused=verification.refused,
        )
        return verification.model_copy(update={"mark": secrets.token_hex(3)}).encode()

    async def _sign(self, params: VerificationInput, log: Log, verification: Verification) -> Verification:
        answer, call = log.state.approvals.submitted[params.ref], log.state.calls[params.call]
        if call.call.root != log.state.root:  # an earlier version recorded the call, or its record is forged
            answer = answer.model_copy(update={"remember": False})
        proofs = await self._proofs.proofs(with_scope=answer.remember)
        return verification.model_copy(
            update={"signed": proofs.signed_approval(call, answer, verification) if proofs else None}
        )

    async def _verify_answer(self, params: VerificationInput, log: Log, namespace: str) -> Verification:
        verification = Verification()
        try:
            answer, call = log.state.approvals.submitted.get(params.ref), log.state.calls.get(params.call)
            if answer is None or call is None:
                raise UnknownCall(f"There is no answer to verify for call {params.call!r}.")
            verification = Verification(question=question_of(call))
            if answer.token is not None:
                approval_id = ids.approval(log.invocation_id, call.id)
                who, nonce = await self._proofs.verify_token(
                    answer.token, namespace=namespace, approval_id=approval_id, answer=answer
                )
                if is_machine(who.subject) and nonce != str(call.revoked):
                    raise NotAllowed(f"The completion URL for call {call.id!r} was revoked.")
                # A machine may report progress any number of times with the same URL.
                about = {"who": who, "nonce": None if is_machine(who.subject) else nonce}
                verification = verification.model_copy(update=about)
                await self._check_binding(call, answer)
                if log.state.input and not who.may_access(log.state.input.tenant):
                    raise NotAllowed(f"{who.subject!r} does not belong to the tenant of call {call.id!r}.")
            # Check authority before the values: an unauthorized sender must not learn which values would be valid.
            requesters: Sequence[str] | None = log.state.requesters
            if call.policy and call.policy.not_requester and call.policy.must_verify:
                requesters = await self._proofs.find_requesters(log)
            check_authority(call, answer, verification.who, requesters)
            _check_scripts(call, answer, verification.who)
            if answer.action == "edit" and call.gate == "waiting" and answer.args is not None:
                args = await self._check_edit(log, call, answer.args)
                verification = verification.model_copy(update={"args": None if args == answer.args else args})
            elif call.gate != "waiting" and answer.response is not None and ACTIONS[answer.action].completes:
                _check_response(call, answer.response)
        except AnswerRefused as refused:
            return verification.model_copy(update={"refused": type(refused).__name__, "message": str(refused)})
        return verification

    async def _check_binding(self, call: CallState, answer: Answer) -> None:
        """Check that an answer with a token names this invocation and, if it decides the call, the call's digest.

        Otherwise, anyone who can read the history could send the answer again: to a later invocation with the same ID
        or, after a reset, to a call with different arguments. The digest is computed here, because logs can be forged.

        Raises:
            DigestMismatch: The answer lacks the run or the digest, or contains a different one.
        """
        info = activity.info()
        origin = await self._logs.origin(info.workflow_id or "", info.workflow_run_id or "")
        if origin is None or answer.run != origin.first_run_id:
            raise DigestMismatch(OTHER_RUN)
        digest = digest_with(call, call.args) if call.gate == "waiting" else call.digest
        if ACTIONS[answer.action].decides and answer.digest != digest:
            raise DigestMismatch(OTHER_DIGEST)

    async def _check_edit(self, log: Log, call: CallState, args: JsonObject) -> JsonObject:
        """Return the edited arguments in the form that the tool receives.

        Raises:
            AnswerRefused: The arguments are not valid for the tool, require different approvers, or cannot be checked.
        """
        try:
            root, agent = self._registry.find(log.state.root, call.agent)
        except UnknownAgent as error:
            if activity.info().attempt < HOLD_AFTER:  # another worker may have the agent
                raise
            raise InvalidAnswer(UNVERIFIABLE.format(problem=error)) from None
        if not isinstance(agent, LlmAgent):
            raise InvalidAnswer(UNVERIFIABLE.format(problem=f"agent {call.agent!r} no longer has tools."))
        conversation = await self._sessions.conversation(log)
        contexts = Contexts.of(
            conversation,
            log.state.runs[call.turn],
            self._services.for_app(root.lifespan),
            scopes_read=root.state_scopes,
            limits=self._limits,
        )
        try:
            tools = await tools_for(agent, contexts, wanted=call.name)
            tool = tools.get(call.name)
            if tool is None:
                problem = f"agent {call.agent!r} no longer has a tool named {call.name!r}."
                raise InvalidAnswer(UNVERIFIABLE.format(problem=problem))
            edited = _parse_edited_args(call, tool, args, tools.origins.get(call.name))
            await _check_policy(call, tool, edited, contexts, root.rules_of(agent))
        except AnswerRefused:
            raise
        except Exception as error:  # noqa: BLE001  # user code raises anything, and the sender is external
            events.warning("edit.failed", tool=call.name, error_type=type(error).__name__)
            problem = f"the tool raised {type(error).__name__} while checking them."
            raise InvalidAnswer(UNVERIFIABLE.format(problem=problem)) from None
        return edited


def _check_scripts(call: CallState, answer: Answer, who: Verified | None) -> None:
    """Check that the name of an approver, if the policy compares names, cannot look like another one.

    Raises:
        NotAllowed: The name mixes scripts whose letters can look the same.
    """
    policy, row, mixed = call.policy, ACTIONS[answer.action], find_mixed_scripts(who.subject) if who else []
    is_compared = policy is not None and (policy.quorum > 1 or policy.not_requester)
    if who and mixed and is_compared and row.advances and not row.operators_only:
        names = " and ".join(script.title() for script in mixed)
        raise NotAllowed(
            f"{who.subject!a} may not {answer.action} call {call.id!r}: the name mixes the scripts {names}, so it can "
            "look like another person's. Use a `subject_claim` whose values have one script, such as `sub`."
        )


def _parse_edited_args(call: CallState, tool: BaseTool, args: JsonObject, origin: str | None) -> JsonObject:
    """Return edited arguments in the form that the tool receives.

    Raises:
        AnswerRefused: The arguments are not valid for the tool, or its parameters or its origin have changed.
    """
    if parameters_digest(tool) != call.declared or origin_of(call) not in (None, origin):
        raise DigestMismatch(
            f"The parameters or the origin of {call.name!r} changed after call {call.id!r} was made, so the call can "
            "no longer run. Reject it; the agent may call the tool again."
        )
    try:
        return tool.edited(args, call.args)
    except ValueError as error:
        raise InvalidAnswer(f"The `args` do not fit {call.name!r}: {error}.") from None


async def _check_policy(
    call: CallState, tool: BaseTool, args: JsonObject, contexts: Contexts, rules: Sequence[ApprovalRule]
) -> None:
    """Check that edited arguments do not require different approvers, because an edit must not bypass a rule.

    Raises:
        NotAllowed: They require approvers that the call's policy does not include.
    """
    original, edited = [
        await find_required_approval(tool, variant, contexts.proposed(call.id, tool.name), rules)
        for variant in (call.args, args)
    ]
    if edited.confirmation is None or edited.policy in (None, original.policy):
        return
    if call.policy is None or not call.policy.satisfies(edited.policy):
        raise NotAllowed(
            f"With these `args`, call {call.id!r} of {call.name!r} needs different approvers. Reject it and have the "
            "agent call the tool again."
        )


def _check_response(call: CallState, response: JsonObject) -> None:
    """Check the answer to a long-running call against the tool's response schema.

    Raises:
        InvalidAnswer: The answer does not match the schema, or the schema itself is invalid.
    """
    schema = call.call.response_schema
    try:
        wrong = find_mistakes(schema, response) if schema is not None else []
    except ValueError as error:
        raise InvalidAnswer(
            f"The `response` to {call.id!r} cannot be checked because the tool's response schema is invalid: {error}."
        ) from None
    if wrong:
        raise InvalidAnswer(f"The `response` to {call.id!r} is not what {call.name!r} takes: {'; '.join(wrong)}.")


async def find_refusal(
    call: CallState,
    params: ToolCallInput,
    tool: BaseTool,
    args: JsonObject,
    context: ToolContext,
    rules: Sequence[ApprovalRule] = (),
    *,
    origin: str | None = None,
) -> ToolOutcome | None:
    """Return the outcome to record instead of running the tool, or None if the tool may run.

    The tool must not run if it has another origin than the tool that was called, if the call differs from what was
    approved, if it now needs an approval that was never requested, or if it was rejected and the tool would ignore the
    rejection.
    """
    is_other = origin_of(call) not in (None, origin)
    mismatch = (
        _refused(call, CHANGED_ORIGIN, "DigestMismatch", recorded=origin_of(call), now=origin)
        if is_other
        else await _find_mismatch(call, params, tool, args, context, rules)
    )
    rejected = context.tool_confirmation is not None and not context.tool_confirmation.confirmed
    if (
        rejected
        and call.answer
        and (mismatch is not None or await _can_ignore_answer(call, tool, args, context, rules))
    ):
        events.warning("tool_call.not_approved", tool=call.name, function_call_id=call.id, reason="Rejected")
        return ToolOutcome(function_call_id=call.id, response=responses.rejected())
    return mismatch


async def find_missing_proof(
    call: CallState,
    tool: BaseTool,
    args: JsonObject,
    context: ToolContext,
    rules: Sequence[ApprovalRule],
    factory: ProofFactory,
    log: Log,
) -> ToolOutcome | None:
    """Return a refusal to record if a call lacks the required proof of approval by verified approvers, or else None.

    A call with effect `once` is also refused if it may already have run.

    The log is not trusted here: anyone who may write to the namespace can forge it. A worker that has no keys, and does
    not have to have any, requires no proof.
    """
    if not may_need_verified_approval(tool, rules):
        return None
    proofs = await factory.proofs(with_scope=any(approval.remember for approval in call.signed))
    if proofs and proofs.is_authentic(call, log.state.root):
        gate = call.call.approval if call.call.confirmation and not call.call.standing else None
    else:
        required = await find_required_approval(tool, args, context, rules)
        gate = required.policy if required.confirmation else None
    confirmation, policy = context.tool_confirmation, gate
    if confirmation is not None and gate is None:
        # The tool requested the confirmation itself, and handles a rejection.
        policy = tool.approval if confirmation.confirmed else None
    if policy is None or not policy.must_verify or (proofs is None and not factory.required):
        return None
    starts = await factory.find_new_starts(call, proofs, policy) if proofs else set()
    asked_again = gate is not None and call.run > len(starts) and call.asked == "confirmation"
    since, current_args = 2 if asked_again else 1, to_recordable(args)
    requesters = await factory.find_requesters(log) if policy.not_requester else ()
    if proofs and current_args is not None and proofs.is_approved(call, current_args, policy, requesters, since=since):
        if tool.effect_when(confirmed=True) == "once" and await factory.may_have_run(
            call, proofs, since=call.run if call.run in starts else 0
        ):
            return _refused(call, MAY_HAVE_RUN, "OutcomeUnknown")
        return None
    return _refused(call, UNPROVEN if proofs else NO_KEYS, "ApprovalNotProven")


async def _find_mismatch(
    call: CallState,
    params: ToolCallInput,
    tool: BaseTool,
    args: JsonObject,
    context: ToolContext,
    rules: Sequence[ApprovalRule],
) -> ToolOutcome | None:
    if params.digest is None:
        # The call did not need approval, but a callback may have changed its arguments to ones that do.
        if args == call.args or call.call.confirmation is not None or context.tool_confirmation is not None:
            return None
        needed = (await find_required_approval(tool, args, context, rules)).confirmation is not None
        return _refused(call, UNASKED, "ApprovalNeeded") if needed else None
    try:
        current_args, declared = to_plain_json(args), parameters_digest(tool)
    except NotJson:
        return _refused(call, CHANGED_ARGUMENTS, "DigestMismatch")
    about = {"declared": declared, "origin": origin_of(call)}
    if call_digest(call.agent, call.name, current_args, policy=approval_of(call), **about) == params.digest:
        return None
    if declared != call.declared:
        return _refused(call, CHANGED_TOOL, "DigestMismatch")
    return _refused(call, CHANGED_ARGUMENTS if current_args != call.args else CHANGED_POLICY, "DigestMismatch")


async def _can_ignore_answer(
    call: CallState, tool: BaseTool, args: JsonObject, context: ToolContext, rules: Sequence[ApprovalRule]
) -> bool:
    """Return whether a tool that requested confirmation in its own code would now ignore the answer.

    After a deployment, the tool's function may no longer take a context, or the tool may require confirmation before it
    runs.
    """
    if isinstance(tool, FunctionTool) and tool.signature.context is None:
        return True
    if call.call.confirmation is not None or call.call.standing:
        return False
    return (await find_required_approval(tool, args, context, rules)).confirmation is not None


def bind_approval(
    call: CallState, tool: BaseTool, args: JsonObject, outcome: ToolOutcome, *, origin: str | None = None
) -> ToolOutcome:
    """If the tool's own code requested confirmation, add to the outcome what an answer will apply to.

    The added values are the policy, the digest of the tool's parameters, the tool's origin, and the arguments if
    callbacks changed them.
    """
    if outcome.actions is None or call.id not in outcome.actions.requested_tool_confirmations:
        return outcome
    update = {
        "approval": call.call.approval or tool.approval,
        "declared": call.declared or parameters_digest(tool),
        "tool_origin": origin_of(call) or origin,
        "args": None if args == call.args else to_recordable(args),
    }
    return outcome.model_copy(update=update)


def to_recordable(args: JsonObject) -> JsonObject | None:
    """Return arguments as JSON, or None if they cannot be recorded. In that case, a call that needs approval does not
    run.
    """
    try:
        result: JsonObject = to_plain_json(args)
    except NotJson:
        return None
    return result if len(encode(result)) <= MAX_VALUE_BYTES else None


def _refused(call: CallState, text: str, error_type: str, **values: str | None) -> ToolOutcome:
    events.warning("tool_call.not_approved", tool=call.name, function_call_id=call.id, reason=error_type)
    response = {"error": text.format(tool=call.name, **values), "error_type": error_type}
    return ToolOutcome(function_call_id=call.id, response=response, error_type=error_type)
