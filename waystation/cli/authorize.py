"""Let a user log in, or give a key, for a call that waits for it."""

import asyncio
import getpass
import sys
from typing import Any

from rich.text import Text

from waystation.cli.answers import named
from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.client import AgentClient
from waystation.core.answer import PendingCall
from waystation.presentation import terminal


async def authorize(
    client: AgentClient, out: Output, *, id: str, call_id: str | None, credentials: str, by: str | None
) -> Exit:
    """Ask for what a call waits for, keep it in the store, and have the call go on."""
    call = await _asking(client, id, call_id)
    uri = terminal.login_uri(call)
    if uri is not None:
        out.remark("Log in here, then give the address of the page at which the login ended:")
        out.remark(terminal.safe(uri))
    # In a thread: reading from a terminal blocks.
    given = (await asyncio.to_thread(_hidden, f"{_wanted(call)} (not shown): ")).strip()
    if not given:
        raise Problem(Exit.USAGE, "Nothing was given; the call waits on.")
    from waystation.auth import store_at  # loads what tools know of authentication

    invocation = client.invocation(call.invocation_id)
    what: dict[str, Any] = {"credential": given} if uri is None else {"auth_response_uri": given}
    try:
        receipt = await invocation.authorize(call.function_call_id, store=store_at(credentials), by=by, **what)
    except ValueError as error:  # of a text that is no credential for the scheme; it does not quote it
        raise Problem(Exit.USAGE, str(error)) from None
    if out.json:
        out.record(receipt)
    else:
        number = terminal.safe(call.function_call_id)
        out.line(Text.assemble(("authorized", "bold"), f" {terminal.asked(call)} [{number}] of {terminal.safe(id)}"))
    return Exit.OK


async def _asking(client: AgentClient, id: str, call_id: str | None) -> PendingCall:
    if call_id is None:
        id, call_id = await named(client, id)
    waiting = [*await client.invocation(id).pending(), *await client.approvals.pending(below=id)]
    asking = [call for call in waiting if call.kind == "credential" and call_id in (None, call.function_call_id)]
    if not asking:
        which = f"Call {call_id!r} does not wait" if call_id else "No call waits"
        raise Problem(Exit.UNKNOWN, f"{which} for a credential in {id!r}.")
    if len(asking) > 1:
        listed = ", ".join(f"{call.invocation_id} {call.function_call_id}" for call in asking)
        raise Problem(Exit.UNKNOWN, f"Say which call is meant; waiting for a credential: {listed}.")
    return asking[0]


def _wanted(call: PendingCall) -> str:
    scheme = terminal.auth_scheme(call)
    match scheme.get("type"):
        case "apiKey":
            return f"API key for the {terminal.safe(str(scheme.get('in')))} {terminal.safe(str(scheme.get('name')))}"
        case "http" if scheme.get("scheme") == "basic":
            return "user:password"
        case "http":
            return "Token"
        case _:
            return "Address"


def _hidden(prompt: str) -> str:
    """Read one line: from a terminal without showing it, or from standard input."""
    if sys.stdin.isatty():
        return getpass.getpass(prompt)
    return sys.stdin.readline()
