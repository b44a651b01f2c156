"""Find the ID that a user means: one that begins with the text, or a similar one to suggest."""

from collections.abc import AsyncIterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from temporalio.service import RPCError, RPCStatusCode

from waystation.cli.command_context import CommandContext, CommandProblem, Exit
from waystation.cli.terminal_input import NOTHING_SENT, find_person
from waystation.client import AgentClient
from waystation.core import errors

_READING = frozenset(
    ("events", "state", "pending", "prompt", "diff", "report", "history", "replay", "debug", "export", "forks", "show")
)
"""Commands that change nothing, so that they accept the beginning of an ID without asking."""
_IDS = ("id", "source", "sources", "left", "right", "below")
"""Command parameters that contain invocation IDs, approval IDs or files."""
MAX_NAMED = 5
"""Maximum number of IDs to name in an error."""


async def complete_ids(ctx: CommandContext, error: Exception) -> bool:
    """Replace each ID of a command that does not exist by the only one that begins with it. Return whether any was.

    A command that changes something asks first, because another invocation may have had the ID that the user typed.

    Raises:
        Problem: Several IDs begin with the text, only similar ones exist, or the user did not confirm.
    """
    completed = False
    for name in ("name",) if isinstance(error, errors.UnknownSession) else _IDS:
        match ctx.params.get(name):
            case str(typed):
                ctx.params[name] = await _complete_id(ctx, name, typed)
                completed = completed or ctx.params[name] != typed
            case list() | tuple() as texts:
                ctx.params[name] = [await _complete_id(ctx, name, typed) for typed in texts]
                completed = completed or ctx.params[name] != list(texts)
    return completed


async def _complete_id(ctx: CommandContext, name: str, typed: str) -> str:
    """Return the ID that a user means, or the text itself if it exists, is a file or resembles no ID."""
    if name == "name":
        kind, (matches, similar) = "Session", await _match_session(ctx, typed)
    elif _is_file(typed):
        return typed
    else:
        kind, (matches, similar) = "Invocation", await _match_workflow(await ctx.connect(), typed)
    if typed in matches or not (matches or similar):
        return typed
    if len(matches) > 1:
        names = ", ".join([*matches[:MAX_NAMED], *(["…"] if len(matches) > MAX_NAMED else [])])
        raise CommandProblem(Exit.UNKNOWN, f"Several IDs begin with {typed!r}: {names}. Type more of the ID.")
    is_reading = ctx.info_name in _READING
    person = None if ctx.out.json or is_reading else find_person()
    if not matches or not (is_reading or person):
        choices = " or ".join(map(repr, matches or similar))
        raise CommandProblem(
            Exit.UNKNOWN, f"{kind} {typed!r} not found at {ctx.target.describe()}. Did you mean {choices}?"
        )
    if person and not person.agrees(f"{kind} {typed!r} does not exist. Use {matches[0]!r}?"):
        raise CommandProblem(Exit.FAILED, NOTHING_SENT)
    ctx.out.remark(f"{typed} is short for {matches[0]}.")
    return matches[0]


def _is_file(text: str) -> bool:
    return text.endswith(".json") or Path(text).exists()


async def _match_workflow(client: AgentClient, typed: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the IDs that begin with the text, or only the text itself if it exists, and similar IDs."""
    # An approval ID ends with a call ID, which is kept.
    workflow_id, slash, call = typed.rpartition("/")
    for id, rest in ((typed, ""), (workflow_id, slash + call)):
        if id and await _exists(client, id):
            return (typed,), ()
        if matches := [match + rest for match in await client.invocations.find(id, limit=MAX_NAMED + 1)]:
            return matches, ()
    return (), await client.invocations.suggest(typed)


async def _exists(client: AgentClient, id: str) -> bool:
    try:
        await client.invocation(id).handle.describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


async def _match_session(ctx: CommandContext, typed: str) -> tuple[Sequence[str], Sequence[str]]:
    names = [name async for name in _list_sessions(ctx)]
    return [name for name in names if name.startswith(typed)], get_close_matches(typed, names)


async def _list_sessions(ctx: CommandContext) -> AsyncIterator[str]:
    client, params = await ctx.connect(), ctx.params
    async for entry in client.sessions.list(user_id=params["user"], app=params["app"], tenant=params["tenant"]):
        yield entry.session_id
