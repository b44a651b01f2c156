"""Answer many calls alike, once somebody has seen which."""

from typing import Any

from rich.text import Text

from waystation.cli.answers import DONE, user
from waystation.cli.asking import lacking
from waystation.cli.exits import Exit, Problem, problem_of
from waystation.cli.output import Output
from waystation.cli.person import NOTHING_SENT, present
from waystation.cli.target import Target
from waystation.cli.waiting import MAX_LISTED, Wanted, listing
from waystation.client import AgentClient, Outcome
from waystation.core.answer import Action
from waystation.presentation import terminal


async def answer_all(
    client: AgentClient,
    out: Output,
    target: Target,
    *,
    action: Action,
    wanted: Wanted,
    by: str | None,
    yes: bool,
    **fields: Any,
) -> Exit:
    """Answer all calls that are meant, each as it was shown; say of each whether the answer counts.

    The exit code is that of the first answer that does not count.

    Raises:
        Problem: Nobody is there to agree, or somebody does not.
    """
    calls = await wanted.calls(client)
    missing = sorted({option for call in calls for option in lacking(action, call, fields)})
    if missing:
        raise Problem(Exit.USAGE, f"`{action}` needs {' and '.join(missing)} here.")
    if not calls:
        if not out.json:
            out.line(f"Nothing like that waits for a person in {target.where()}.")
        return Exit.OK
    if not yes:
        person = None if out.json else present()
        if person is None:
            raise Problem(Exit.USAGE, f"{_many(len(calls))} would be answered; --yes says that they are to be.")
        listing(out, target, calls[:MAX_LISTED], numbered=True)
        if len(calls) > MAX_LISTED:
            out.line(f"… and {len(calls) - MAX_LISTED} more")
        if not person.agrees(f"Send {action!r} for {_many(len(calls))}?"):
            raise Problem(Exit.FAILED, NOTHING_SENT)
    shown = {call.approval_id: call for call in calls}
    exit = Exit.OK
    async for outcome in client.approvals.answer_all(calls, action, by=by or user(), **fields):
        problem = _problem(outcome, target)
        if problem and exit is Exit.OK:
            exit = problem.exit
        call = shown[outcome.approval_id]
        if out.json:
            told = {"receipt": outcome.receipt} if outcome.receipt else {"error": type(outcome.error).__name__}
            out.record({"approval_id": outcome.approval_id, **told, **({"message": str(problem)} if problem else {})})
        elif problem:
            style = ("not answered", "bold red")
            out.line(Text.assemble(style, f" {terminal.safe(call.approval_id)}: {terminal.safe(str(problem))}"))
        else:
            said = f" {terminal.asked(call)} [{terminal.safe(call.approval_id)}]"
            out.line(Text.assemble((DONE[action], "bold"), said))
    return exit


def _problem(outcome: Outcome, target: Target) -> Problem | None:
    return problem_of(outcome.error, target.where(), outcome.approval_id) if outcome.error else None


def _many(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"
