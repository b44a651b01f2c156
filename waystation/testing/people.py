"""People for tests of approval policies, whose identity workers verify as in production."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from waystation.approvers import Gatekeeper, Person
from waystation.client import Approvals, Invocation
from waystation.core import ids
from waystation.core.actions import Action
from waystation.core.approval import MACHINE, CompletionGrant, TokenSigner, Verified
from waystation.core.payload import JsonObject

if TYPE_CHECKING:
    from waystation.approvers.identity import Completions


class People:
    """A gateway that signs for people, and the configuration with which workers verify its tokens.

    The keys are new, and in a temporary folder. Pass `identity` to `AgentEnvironment` or `create_worker`, and call this
    object with a name to get a person. It requires the extra `identity`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        """Create keys. `clock` returns the time at which tokens are signed and verified, in seconds since 1970."""
        try:
            from waystation.approvers.identity import WorkerIdentity, write_examples
        except ModuleNotFoundError as error:
            problem = f"Verified people need {error.name!r}. Install it with: pip install 'waystation[identity]'"
            raise ModuleNotFoundError(problem, name=error.name) from None
        folder = Path(mkdtemp(prefix="waystation-people-"))
        write_examples(folder)
        self._gatekeeper = Gatekeeper.from_file(folder / "gateway.toml", "default", interface="web", clock=clock)
        self.identity = WorkerIdentity.load(folder / "workers.toml", clock=clock)
        """Verifies the tokens of these people, for the worker's option `identity`."""
        # Remove the folder with the identity, which reads a key when it verifies the first token.
        finalize(self.identity, shutil.rmtree, folder, ignore_errors=True)

    def __call__(self, subject: str, *, roles: Sequence[str] = ()) -> "VerifiedPerson":
        """Return a person with a verified subject and roles, which policies name as `role:NAME`."""
        return VerifiedPerson(Verified(subject=subject, roles=tuple(roles)), self._gatekeeper)

    def machine(self, name: str) -> "Machine":
        """Return a machine whose answers these workers accept as if they came through a completion URL."""
        return Machine(name, self.identity.completions)


class Machine:
    """A machine that answers the calls of tools with `answered_by=External(name)`."""

    def __init__(self, name: str, completions: "Completions | None" = None) -> None:
        """Create a machine. If the worker has a key for completion URLs, `completions` needs the same key."""
        self.name, self._completions = name, completions

    async def respond(
        self, invocation: Invocation, response: JsonObject, function_call_id: str | None = None
    ) -> JsonObject:
        """Wait until a call is pending or the invocation ends, send the final response, and return the receipt.

        Without a `function_call_id`, the only call that is pending for this machine is answered.

        Raises:
            AnswerRefused: The worker did not accept the answer; the subclass gives the reason.
        """
        return await self._answer(invocation, response, function_call_id, final=True)

    async def progress(
        self, invocation: Invocation, response: JsonObject, function_call_id: str | None = None
    ) -> JsonObject:
        """Report progress; see `respond`."""
        return await self._answer(invocation, response, function_call_id, final=False)

    async def _answer(
        self, invocation: Invocation, response: JsonObject, function_call_id: str | None, *, final: bool
    ) -> JsonObject:
        call_id = await _wait_for_call(invocation, function_call_id, machine=self.name)
        if self._completions is None:
            by = f"{MACHINE}{self.name}"
            return await invocation.answer("respond" if final else "progress", call_id, response=response, by=by)
        pending = next(call for call in await invocation.pending() if call.function_call_id == call_id)
        grant = replace(CompletionGrant.of(pending, invocation.client.temporal.namespace), machine=self.name)
        answer = self._completions.make_answer(grant, response, final=final)
        return await Approvals(invocation.client).answer(**answer)


class VerifiedPerson:
    """A person whose answers contain a token that workers verify."""

    def __init__(self, verified: Verified, gatekeeper: Gatekeeper) -> None:
        self.subject, self.verified, self.gatekeeper = verified.subject, verified, gatekeeper
        token = gatekeeper.make_signer(Person(self.subject, verified))
        assert token is not None, "the gateway has both keys"
        self.token: TokenSigner = token
        """Signs and encrypts for this person. Pass it as `token=` where a client accepts one: to start an invocation as
        its requester, to send a message or to answer."""

    async def approve(self, invocation: Invocation, function_call_id: str | None = None, **fields: Any) -> JsonObject:
        """Approve a call; see `answer`."""
        return await self.answer(invocation, "approve", function_call_id, **fields)

    async def reject(self, invocation: Invocation, function_call_id: str | None = None, **fields: Any) -> JsonObject:
        """Reject a call; see `answer`."""
        return await self.answer(invocation, "reject", function_call_id, **fields)

    async def edit(
        self, invocation: Invocation, args: JsonObject, function_call_id: str | None = None, **fields: Any
    ) -> JsonObject:
        """Approve a call with other arguments; see `answer`."""
        return await self.answer(invocation, "edit", function_call_id, args=args, **fields)

    async def answer(
        self, invocation: Invocation, action: Action, function_call_id: str | None = None, **fields: Any
    ) -> JsonObject:
        """Wait until a call is pending or the invocation ends, answer the call, and return the receipt.

        A call that was pending before is answered at once, so that a test can expect the refusal. Without a
        `function_call_id`, the only pending call is answered. The other fields are those of `Invocation.answer`.

        Raises:
            AnswerRefused: The worker did not accept the answer; the subclass gives the reason.
        """
        call_id = await _wait_for_call(invocation, function_call_id)
        return await invocation.answer(action, call_id, token=self.token, **fields)


async def _wait_for_call(
    invocation: Invocation, function_call_id: str | None, *, machine: str | None = None
) -> str | None:
    """Return the ID of the call to answer once the call has waited, or the given ID once the invocation has ended."""
    async for log in invocation.follow():
        if function_call_id is None:
            if pending := [call for call in log.state.pending() if call.machine == machine]:
                return pending[0].function_call_id if len(pending) == 1 else None
        elif (call := log.state.calls.get(ids.requesting_call(function_call_id))) and call.requested_at is not None:
            break
    return function_call_id
