"""See what waits for a person, and answer it."""

import contextlib
import getpass
import time
from typing import Any

from rich.text import Text

from waystation.cli import render
from waystation.cli.exits import Exit
from waystation.cli.output import Output
from waystation.cli.target import Target
from waystation.client.agent_client import AgentClient
from waystation.core import summary
from waystation.core.answer import Action, PendingCall

_DONE: dict[Action, str] = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "approved",
    "respond": "answered",
    "progress": "told the progress of",
}


async def pending(client: AgentClient, out: Output, target: Target, *, id: str | None) -> Exit:
    """Write what waits: in one invocation and the agents it called, or in the whole namespace."""
    if id is None:
        waiting = await client.pending()
    else:
        waiting = [*await client.invocation(id).pending(), *await client.pending(below=id)]
    if out.json:
        for call in waiting:
            out.record(call.model_dump(mode="json"))
    elif id is not None and waiting:
        out.waits(waiting, target)
    elif waiting:
        for call in waiting:
            _brief(out, target, call)
    else:
        out.line(f"Nothing waits for a person in {render.safe(id) if id else target.where()}.")
    return Exit.OK


def _brief(out: Output, target: Target, call: PendingCall) -> None:
    since, until = render.clock(call.requested_at), render.until(call.deadline, time.time())
    out.line(Text(render.asked(call), style="bold yellow"))
    out.hanging(Text("  asked    ", style="dim"), [Text(f"{since}, by {render.safe(call.agent)}; until {until}")])
    out.command("answer", target.answer_command(render.answers(call)[0], call.invocation_id, call.function_call_id))


async def answer(
    client: AgentClient, out: Output, *, action: Action, id: str, call_id: str | None, by: str | None, **fields: Any
) -> Exit:
    """Answer a call and say whether the answer counts; `fields` are further ones of the answer."""
    invocation = client.invocation(id)
    shown = next((call for call in await invocation.pending() if call_id in (None, call.function_call_id)), None)
    receipt = await invocation.answer(
        action,
        call_id,
        by=by or _user(),
        # What was looked up is what is answered, should the call be another by the time the answer arrives.
        digest=shown.digest if shown and call_id else None,
        **fields,
    )
    if out.json:
        out.record(receipt)
    else:
        said = render.asked(shown) if shown else render.safe(str(receipt.get("tool")))
        if shown and action == "edit":
            said += f" as {render.safe(summary.call(shown.tool, fields['args']))}"
        number = render.safe(str(receipt.get("function_call_id")))
        out.line(Text.assemble((_DONE[action], "bold"), f" {said} [{number}] of {render.safe(id)}"))
    return Exit.OK


def _user() -> str | None:
    with contextlib.suppress(OSError, KeyError, ImportError):  # which of them depends on the Python version
        return getpass.getuser()
    return None
