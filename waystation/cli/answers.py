"""Answer what waits for a person."""

import contextlib
import getpass
from dataclasses import dataclass
from typing import Any

from rich.text import Text
from temporalio.service import RPCError, RPCStatusCode

from waystation.cli import asking
from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.cli.person import Person, present
from waystation.cli.target import Target
from waystation.client import AgentClient
from waystation.core import ids, summary
from waystation.core.answer import Action, PendingCall
from waystation.presentation import terminal

DONE: dict[Action, str] = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "approved",
    "respond": "answered",
    "progress": "told the progress of",
    "claim": "took on",
    "release": "gave back",
    "waive": "waived the approval of",
    "cancel": "cancelled",
}


@dataclass(frozen=True, slots=True)
class _Meant:
    """What is answered."""

    invocation_id: str
    call_id: str | None
    call: PendingCall | None = None
    """As it was looked up; None when it does not wait, or several do."""
    chosen: bool = False
    """Whether a person chose it here, and has not seen it yet."""


async def answer(
    client: AgentClient,
    out: Output,
    target: Target,
    *,
    action: Action,
    id: str | None,
    call_id: str | None,
    by: str | None,
    **fields: Any,
) -> Exit:
    """Answer a call and say whether the answer counts; a person in a terminal is asked for what is missing.

    Args:
        client: Connected.
        out: Where to write.
        target: What the commands that are shown name.
        action: What to do.
        id: An invocation, or an approval id; None has the person choose.
        call_id: Which call of the invocation.
        by: Who answers; the login name unless given.
        fields: Further fields of the answer.

    Raises:
        Problem: Something is missing, and nobody is there to be asked; or nothing is to be sent.
    """
    person = None if out.json else present()
    meant = await _meant(client, out, target, person, id, call_id)
    call = meant.call
    missing = asking.lacking(action, call, fields)
    if person and call and (missing or meant.chosen):
        call = await client.approvals.get(call.approval_id)
        asking.show(out, call)
        fields = asking.fill(person, out, call, action, fields)
    elif missing:
        raise Problem(Exit.USAGE, f"`{action}` needs {' and '.join(missing)} here.")
    receipt = await client.invocation(meant.invocation_id).answer(
        action,
        meant.call_id,
        by=by or user(),
        # What was shown is what is answered, should the call be another by the time the answer arrives.
        digest=call.digest if call else None,
        **fields,
    )
    if out.json:
        out.record(receipt)
        return Exit.OK
    said = terminal.asked(call) if call else terminal.safe(str(receipt.get("tool")))
    if call and action == "edit":
        said += f" as {terminal.safe(summary.call(call.tool, fields['args']))}"
    number = terminal.safe(str(receipt.get("function_call_id")))
    out.line(Text.assemble((DONE[action], "bold"), f" {said} [{number}] of {terminal.safe(meant.invocation_id)}"))
    if lacking := receipt.get("lacking"):
        out.line(f"It still waits: {lacking} more {'person has' if lacking == 1 else 'people have'} to approve it.")
    elif call and call.kind == "credential" and action == "approve":
        # The answer is right where the credential came into the store by another way.
        out.line("The tool runs again, and asks anew unless the credential is in the workers' store; to put it there:")
        out.command("authorize", target.answer_command("authorize", call.invocation_id, call.function_call_id))
    return Exit.OK


async def _meant(
    client: AgentClient, out: Output, target: Target, person: Person | None, id: str | None, call_id: str | None
) -> _Meant:
    if id is None:
        if person is None:
            raise Problem(Exit.USAGE, "Say which call is answered, by its approval id; `pending` lists them.")
        waiting = await client.approvals.pending()
        if not waiting:
            raise Problem(Exit.UNKNOWN, f"Nothing waits for a person in {target.where()}.")
        return _chosen(asking.choose(person, out, target, waiting))
    invocation_id, call_id = (id, call_id) if call_id is not None else await named(client, id)
    wanted = ids.requesting_call(call_id) if call_id is not None else None
    pending = await client.invocation(invocation_id).pending()
    waiting = [call for call in pending if wanted in (None, call.function_call_id)]
    if len(waiting) > 1 and person:
        return _chosen(asking.choose(person, out, target, waiting))
    if len(waiting) == 1:
        return _Meant(invocation_id, waiting[0].function_call_id, waiting[0])
    return _Meant(invocation_id, call_id)


def _chosen(call: PendingCall) -> _Meant:
    return _Meant(call.invocation_id, call.function_call_id, call, chosen=True)


async def named(client: AgentClient, id: str) -> tuple[str, str | None]:
    """Return which invocation, and which call of it, an id stands for that names either."""
    try:
        await client.invocation(id).handle.describe()
    except RPCError as error:
        # An agent that is called has the id of the call. Where there is such an invocation, it is meant.
        if error.status is not RPCStatusCode.NOT_FOUND or "/" not in id:
            raise
        with contextlib.suppress(ValueError):
            return ids.approved_call(id)
        raise
    return id, None


def user() -> str | None:
    """Return who is logged in."""
    with contextlib.suppress(OSError, KeyError, ImportError):  # which of them depends on the Python version
        return getpass.getuser()
    return None
