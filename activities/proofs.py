"""Authenticate decisions with the worker keys, and check them again where they are used.

Anyone who may write to the namespace can forge histories, inputs and results of activities, but not what a key has
authenticated. Four decisions count: whether a call needs an approval, that an approver gave it, that it is remembered,
and who requested the invocation. Only calls that verified approvers may have to approve, and requests with a token, are
authenticated; all other histories are unchanged.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog
from temporalio import activity
from temporalio.client import Client

from waystation.activities.log_cache import LogCache
from waystation.agents import ApprovalRule
from waystation.core import ids
from waystation.core.actions import ACTIONS
from waystation.core.approval import (
    TOKEN_LIFETIME_S,
    Answer,
    ApprovalPolicy,
    CompletionGrant,
    Mac,
    Origin,
    RememberedApproval,
    Request,
    SignedApproval,
    SignedRequest,
    Verification,
    Verified,
    call_claims,
    call_digest,
    describe_coverage,
    satisfies_policy,
)
from waystation.core.contract import (
    SESSION_WORKFLOW,
    WORKFLOW,
    Call,
    InvocationInput,
    ToolCallInput,
    ToolOutcome,
    message_request,
)
from waystation.core.errors import IdentityUnavailable, NotAllowed
from waystation.core.log import CallState, Log, MessageJoined, OutcomeRef, approval_of, digest_with, origin_of
from waystation.core.payload import JsonObject
from waystation.history import ScheduledActivity, fetch_activities, list_runs
from waystation.tools import BaseTool

events = structlog.get_logger("waystation.activities")

NO_IDENTITY = (
    "The token cannot be verified: the workers have no identity configuration. Start them with --identity FILE "
    "(`waystation identity init` writes one)."
)
MAX_ANCESTORS = 20
CLOCK_SKEW_S = 300.0


class Keys(Protocol):
    """Signs and verifies; see `waystation.worker_keys.WorkerKeys`."""

    def sign(self, claims: JsonObject) -> Mac:
        """Return a MAC of the claims."""

    def verifies(self, mac: Mac | None, claims: JsonObject) -> bool:
        """Return whether a worker made this MAC of these claims."""


class TokenVerifier(Protocol):
    """Verifies the identity of approvers and requesters; see `waystation.approvers.identity.WorkerIdentity`."""

    async def verify(
        self, token: str, *, namespace: str, approval_id: str, answer: Answer | Request
    ) -> tuple[Verified, str]:
        """Return the sender's identity, and the nonce that makes the token of an answer valid only once.

        Raises:
            NotAllowed: The token is not valid.
            IdentityUnavailable: The token cannot be verified right now.
        """


class CompletionUrls(Protocol):
    """Makes completion URLs; see `waystation.approvers.identity.Completions`."""

    def make_url(self, grant: CompletionGrant) -> str:
        """Return the URL with which a machine answers a call."""


def may_need_verified_approval(tool: BaseTool, rules: Sequence[ApprovalRule]) -> bool:
    """Return whether a policy with verified approvers can apply to a tool."""
    policies = (tool.approval, *(rule.policy for rule in rules if not rule.shadow and rule.names(tool.name)))
    return any(policy is not None and policy.must_verify for policy in policies)


@dataclass(frozen=True, slots=True)
class Proofs:
    """Signs and checks the decisions about the calls of one invocation."""

    keys: Keys
    namespace: str
    invocation_id: str
    run: str
    """ID of the invocation's first run."""
    scope: str | None = None
    """The session, or the invocation outside sessions, in which approvals are remembered; None if it is unknown."""
    clock: Callable[[], float] = time.time

    def signed_call(self, call: Call, root: str, agent: str, tool: str, args: JsonObject) -> Call:
        """Return the call with a MAC that proves that a worker decided whether the call needs an approval."""
        return call.model_copy(update={"mac": self.keys.sign(self._call_claims(call, root, agent, tool, args))})

    def is_authentic(self, call: CallState, root: str) -> bool:
        """Return whether the call's MAC proves that a worker made the recorded decision about the approval it needs,
        by the rules of this root agent. Earlier versions did not name the root.
        """
        claims = (self._call_claims(call.call, signed, call.agent, call.name, call.args) for signed in (root, None))
        return any(self.keys.verifies(call.call.mac, claim) for claim in claims)

    def _call_claims(self, call: Call, root: str | None, agent: str, tool: str, args: JsonObject) -> JsonObject:
        if call.confirmation is not None and call.standing is None:
            args = {}  # an approver may edit them, and every approval includes them
        return call_claims(
            self.namespace,
            ids.approval(self.invocation_id, call.id),
            self.run,
            root,
            call_digest(agent, tool, args, declared=call.declared, policy=call.approval, origin=call.tool_origin),
            asks=call.confirmation is not None,
            covered=call.standing is not None,
        )

    def signed_approval(self, call: CallState, answer: Answer, verification: Verification) -> SignedApproval | None:
        """Return the proof of a verified answer that lets a call run, or None for other answers."""
        if verification.who is None or not ACTIONS[answer.action].runs_tool or call.gate != "waiting":
            return None
        args = (
            (answer.args if verification.args is None else verification.args) if answer.action == "edit" else call.args
        )
        approval = SignedApproval(
            who=verification.who,
            action=answer.action,
            digest=digest_with(call, args or {}),
            asked=call.asked or "",
            wait=call.waits,
            run=self.run,
            remember=answer.remember and call.policy is not None and self.scope is not None,
            at=self.clock(),
        )
        coverage = self._coverage_of(call) if approval.remember else None
        approval_id = ids.approval(self.invocation_id, call.id)
        mac = self.keys.sign(approval.claims(self.namespace, approval_id, coverage))
        return approval.model_copy(update={"mac": mac})

    def signed_request(self, call: CallState, outcome: ToolOutcome) -> ToolOutcome:
        """Return the outcome of a run that requested a confirmation or a credential, with a MAC that proves this."""
        info = activity.info()
        return outcome.model_copy(
            update={"mac": self.keys.sign(self._request_claims(call, info.activity_id, info.scheduled_time))}
        )

    def is_request(self, call: CallState, activity: ScheduledActivity) -> bool:
        """Return whether an activity's result proves that it ended by requesting a confirmation or a credential."""
        try:
            mac = ToolOutcome.model_validate_json(activity.result).mac
        except ValueError:
            return False
        return self.keys.verifies(mac, self._request_claims(call, activity.id, activity.scheduled))

    def _request_claims(self, call: CallState, activity_id: str, scheduled: datetime) -> JsonObject:
        place = {"kind": "request", "namespace": self.namespace, "call": ids.approval(self.invocation_id, call.id)}
        return {**place, "run": self.run, "activity": activity_id, "scheduled": scheduled.isoformat()}

    def is_approved(
        self, call: CallState, args: JsonObject, policy: ApprovalPolicy, requesters: Sequence[str] | None, *, since: int
    ) -> bool:
        """Return whether authentic approvals of a call with these arguments satisfy a policy.

        Args:
            call: The call.
            args: The arguments with which it is about to run.
            policy: The policy.
            requesters: The names of the requesters, or None if they are not verified.
            since: The number of the first of the call's approval requests whose approvals count.
        """
        digest = digest_with(call, args)
        approvals = [
            approval
            for approval in self.authentic_approvals(call)
            if (approval.digest, approval.asked) == (digest, "confirmation") and approval.wait >= since
        ]
        return satisfies_policy(policy, approvals, requesters)

    def authentic_approvals(self, call: CallState) -> list[SignedApproval]:
        """Return the approvals of a call of this invocation, without those that no worker authenticated."""
        approval_id, remembered = ids.approval(self.invocation_id, call.id), self._coverage_of(call)
        return [
            approval
            for approval in call.signed
            if approval.run == self.run
            and self.keys.verifies(approval.mac, approval.claims(self.namespace, approval_id, remembered))
        ]

    def _coverage_of(self, call: CallState) -> JsonObject | None:
        policy = approval_of(call)
        if self.scope is None or policy is None:
            return None
        args, bound_to = policy.alike(call.args), policy.bound_to(call.declared, origin_of(call))
        return describe_coverage(self.scope, call.call.root, call.agent, call.name, args, bound_to)

    def is_remembered(
        self, approval: RememberedApproval, policy: ApprovalPolicy, requesters: Sequence[str] | None
    ) -> bool:
        """Return whether a remembered approval may be used under a policy.

        If the policy requires verified approvers, the remembered approval must be based on authentic approvals in the
        same scope that satisfy the policy and have not expired.
        """
        if not policy.must_verify:
            return True
        if self.scope is None or policy.remember is None:
            return False
        coverage = approval.coverage(self.scope)
        authentic = [
            signed
            for signed in approval.signed
            if signed.remember
            and signed.action == "approve"
            and self.keys.verifies(signed.mac, signed.claims(self.namespace, approval.origin, coverage))
        ]
        expires_at = max((signed.at for signed in authentic), default=0.0) + policy.remember.total_seconds()
        return expires_at + CLOCK_SKEW_S > self.clock() and satisfies_policy(policy, authentic, requesters)


class ProofFactory:
    """Creates the proofs of the invocation whose activity is running."""

    def __init__(
        self,
        keys: Keys | None = None,
        logs: LogCache | None = None,
        client: Client | None = None,
        *,
        identity: TokenVerifier | None = None,
        required: bool = False,
    ) -> None:
        """If `required` is true and the worker has no keys, calls that need verified approvers do not run."""
        self._keys, self._logs, self._client, self._identity = keys, logs, client, identity
        self.required = required
        self.completions: CompletionUrls | None = getattr(identity, "completions", None)  # other verifiers lack it
        """Makes completion URLs for machines. None if this worker has no key for them."""

    async def proofs(self, *, with_scope: bool = False) -> Proofs | None:
        """Return the proofs of the calling invocation, or None if the worker has no keys.

        Args:
            with_scope: Whether to determine the scope of remembered approvals, which may read the histories of callers.

        Raises:
            RPCError: The server cannot be reached.
        """
        if self._keys is None or self._logs is None:
            return None
        info = activity.info()
        workflow_id, run_id = info.workflow_id or "", info.workflow_run_id or ""
        origin = await self._logs.origin(workflow_id, run_id)
        if origin is None:  # the server deleted the history of a running workflow: impossible
            return None
        scope = await _find_scope(self._logs, workflow_id, run_id) if with_scope else None
        return Proofs(self._keys, info.namespace, workflow_id, origin.first_run_id, scope, self._logs.clock)

    async def find_first_run(self) -> str:
        """Return the ID of the first run of the calling invocation, or an empty string if it is unknown.

        Raises:
            RPCError: The server cannot be reached.
        """
        info = activity.info()
        origin = await self._logs.origin(info.workflow_id or "", info.workflow_run_id or "") if self._logs else None
        return origin.first_run_id if origin else ""

    async def may_have_run(self, call: CallState, proofs: Proofs, *, since: int = 0) -> bool:
        """Return whether another activity, or an earlier attempt of this one, may already have run an approved call.

        This considers all runs of the invocation, including those that a reset replaced, but no activities that only
        requested a confirmation or a credential, or that belong to runs of the call before `since`. If it cannot be
        determined, return True.

        Raises:
            RPCError: The server cannot be reached.
        """
        info = activity.info()
        # Do not use the number of the attempt: after someone resets an activity, its attempts are counted from 1 again.
        is_first_attempt = info.current_attempt_scheduled_time == info.scheduled_time
        if self._client is None or self._logs is None or not is_first_attempt:
            return True
        workflow_id, run_id = info.workflow_id or "", info.workflow_run_id or ""
        known = dict[str, float]()
        for run in await list_runs(self._client, workflow_id, run_id):
            origin = await self._logs.origin(workflow_id, run.run_id)
            if origin and origin.first_run_id == proofs.run:
                known[run.run_id] = run.start_time.timestamp()
        approved_at = max((approval.at for approval in proofs.authentic_approvals(call)), default=0.0)
        if run_id not in known or may_lack_runs(known, proofs.run, approved_at):
            return True
        for id in known:
            for other in await fetch_activities(self._client, workflow_id, id, info.activity_type):
                is_self = (other.run_id, other.id, other.scheduled) == (run_id, info.activity_id, info.scheduled_time)
                if not is_self and _is_of(other, call, since) and not proofs.is_request(call, other):
                    return True
        return False

    async def find_new_starts(self, call: CallState, proofs: Proofs, policy: ApprovalPolicy) -> set[int]:
        """Return the runs of a call that operators started, after they had stated that earlier runs took no effect."""
        answers = [signed for signed in call.signed if signed.action == "start_again"]
        starts, logs = set[int](), self._logs
        for run in range(call.run if answers else 0):
            question = ids.child_invocation(proofs.invocation_id, str(OutcomeRef(call.id, run)))
            place = proofs.namespace, ids.approval(question, call.id), None
            for signed in answers:
                is_authentic = proofs.keys.verifies(signed.mac, signed.claims(*place))
                if logs and is_authentic and signed.who.is_among(policy.operators):
                    origin = await logs.origin(question, signed.run)
                    maker = await logs.origin(*origin.parent) if origin and origin.parent else None
                    starts |= {run + 1} if maker and maker.first_run_id == proofs.run else set()
        return starts

    async def verify_token(
        self, token: str, *, namespace: str, approval_id: str, answer: Answer | Request
    ) -> tuple[Verified, str]:
        """Return the identity of the sender of an answer or request, and the token's nonce.

        Raises:
            NotAllowed: The token is not valid, or this worker cannot verify tokens.
            IdentityUnavailable: The token cannot be verified right now.
        """
        if self._identity is None:
            raise NotAllowed(NO_IDENTITY)
        try:
            return await self._identity.verify(token, namespace=namespace, approval_id=approval_id, answer=answer)
        except (NotAllowed, IdentityUnavailable):
            raise
        except Exception as error:  # noqa: BLE001  # libraries raise anything for forged tokens
            events.warning("token.not_verified", error_type=type(error).__name__)
            raise NotAllowed(f"The token could not be verified ({type(error).__name__}).") from None

    async def sign_request(self, log: Log) -> SignedRequest | None:
        """Verify the tokens of new messages to the calling invocation, and return the senders of all its messages.

        If a message that joined the invocation has no valid token, the result names no one, so the requesters count as
        unverified. Return None if the invocation was started without a token or has received no new message, or if this
        worker does not verify identities.

        Raises:
            NotAllowed: The token with which the invocation was started is not valid.
            IdentityUnavailable: A token cannot be verified right now.
            RPCError: The server cannot be reached.
        """
        started, known = log.state.input, log.state.signed_request
        if self._identity is None or self._logs is None or started is None or started.token is None:
            return None  # without an identity configuration, requesters are not verified
        info = activity.info()
        origin = await self._logs.origin(log.invocation_id, info.workflow_run_id or "")
        place = log.invocation_id, origin.first_run_id if origin else ""
        if known and not ((known.invocation_id, known.run) == place and self._is_authentic(known, info.namespace)):
            known = None
        messages = [(started.token, started.request()), *_joined_messages(log, started)]
        if known and known.messages >= len(messages):
            return None
        receiver = started.receiver(log.invocation_id)

        async def verify(token: str | None, request: Request) -> str:
            sender, _ = await self.verify_token(
                token or "", namespace=info.namespace, approval_id=receiver, answer=request
            )
            return sender.subject

        subjects = known.subjects if known else (await verify(*messages[0]),)
        try:
            new = [await verify(*message) for message in messages[known.messages if known else 1 :]] if subjects else []
            subjects = tuple(dict.fromkeys((*subjects, *new)))
        except NotAllowed as error:
            events.warning("request.not_verified", invocation_id=log.invocation_id, problem=str(error))
            subjects = ()
        signed = SignedRequest(subjects=subjects, messages=len(messages), invocation_id=place[0], run=place[1])
        mac = self._keys.sign(signed.claims(info.namespace)) if self._keys else None
        return signed.model_copy(update={"mac": mac})

    async def find_requesters(self, log: Log, signed: SignedRequest | None = None) -> tuple[str, ...] | None:
        """Return the names of the requesters of the calling invocation, or None if the requesters are not verified.

        The names are the verified subjects and those that the input of the invocation and joined messages claim.

        Args:
            log: The invocation's log.
            signed: The requesters that the running activity has verified. By default, those in the log.

        Raises:
            RPCError: The server cannot be reached.
        """
        signed = signed or log.state.signed_request
        if signed is None or not signed.subjects:
            return None
        info, place = activity.info(), (signed.invocation_id, signed.run)
        if not self._is_authentic(signed, info.namespace):
            return None
        run_id = info.workflow_run_id or ""
        if self._keys and self._logs and not await _has_ancestor(self._logs, log.invocation_id, run_id, place):
            return None
        return (*signed.subjects, *log.state.requesters)

    def _is_authentic(self, signed: SignedRequest, namespace: str) -> bool:
        return self._keys is None or self._keys.verifies(signed.mac, signed.claims(namespace))


NO_PROOFS = ProofFactory()


def may_lack_runs(known: Mapping[str, float], first_run: str, approved_at: float) -> bool:
    """Return whether a deleted run of an invocation may have used approvals that were verified at `approved_at`.

    The server deletes the first run before all others. If it has done so, the approvals are certain to be unused only
    if all tokens that a deleted run could have accepted had expired by `approved_at`.

    Args:
        known: The start times of the runs that the server still has, at least one, by run ID.
        first_run: ID of the first run.
        approved_at: When the last approval of the call was verified, in seconds since 1970.
    """
    return first_run not in known and approved_at < min(known.values()) + TOKEN_LIFETIME_S + CLOCK_SKEW_S


def _is_of(other: ScheduledActivity, call: CallState, since: int) -> bool:
    """Return whether an activity may be of run `since` of a call, or of a later one."""
    try:
        params = ToolCallInput.model_validate_json(other.input)
        return params.function_call_id == call.id and params.run >= since
    except ValueError:  # unreadable, so it may be of this call
        return True


def _joined_messages(log: Log, started: InvocationInput) -> list[tuple[str | None, Request]]:
    """Return the token and the content of each message that joined the invocation while it was running.

    Messages that a fork inherits from its source are left out: they are not part of the request for the fork.
    """
    entries = log.entries[started.fork.entries if started.fork else 0 :]
    joined = (entry.body for entry in entries if isinstance(entry.body, MessageJoined))
    return [(body.token, message_request(body.message, body.message_id)) for body in joined]


async def _lineage(logs: LogCache, workflow_id: str, run_id: str) -> AsyncIterator[tuple[str, Origin]]:
    """Yield the IDs and origins of a workflow and its ancestors, at most `MAX_ANCESTORS`, until a history is gone.

    The server records which workflow started another, so this cannot be forged.
    """
    for _ in range(MAX_ANCESTORS):
        if (origin := await logs.origin(workflow_id, run_id)) is None:
            return
        yield workflow_id, origin
        if origin.parent is None:
            return
        workflow_id, run_id = origin.parent


async def _has_ancestor(logs: LogCache, workflow_id: str, run_id: str, ancestor: tuple[str, str]) -> bool:
    """Return whether `ancestor`, a workflow ID and first run ID, is this workflow or one of its nearest ancestors."""
    async for id, origin in _lineage(logs, workflow_id, run_id):
        if (id, origin.first_run_id) == ancestor:
            return True
    return False


async def _find_scope(logs: LogCache, workflow_id: str, run_id: str) -> str | None:
    """Return the workflow ID and first run ID of the topmost caller: a session, or an invocation outside sessions.

    An invocation that neither a session nor another invocation started is its own topmost caller. Return None if a
    history is gone, or if there are more than `MAX_ANCESTORS` levels.
    """
    async for id, origin in _lineage(logs, workflow_id, run_id):
        scope = f"{id}/{origin.first_run_id}"
        if origin.parent is None or origin.workflow_type == SESSION_WORKFLOW:
            return scope
        parent = await logs.origin(*origin.parent)
        if parent is not None and parent.workflow_type not in (WORKFLOW, SESSION_WORKFLOW):
            return scope
    return None
