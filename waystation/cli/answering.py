"""`waystation pending`, the commands that answer what it lists, and `authorize`: their options."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waystation.cli.command import parse_object, run_command
from waystation.cli.identity import TokenFile, token_of
from waystation.cli.looking import At, Called, look_at_pending
from waystation.core.settings import Stores

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target
    from waystation.client import AgentClient
    from waystation.core.answer import Action

CREDENTIALS = Stores().credentials
"""Where workers keep credentials unless told otherwise; as in `tools.services`, which takes long to load."""

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line, and nothing else.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Approval id, as `pending` lists it, or an invocation.")]
AnyId = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="Approval id, as `pending` lists it, or an invocation; asked for in a terminal."),
]
CallId = Annotated[
    str | None, typer.Argument(metavar="CALL", help="With an invocation: the call, such as fc-1, when several wait.")
]
Comment = Annotated[str | None, typer.Option(help="Told to the agent.")]
By = Annotated[str | None, typer.Option(help="Who answers; recorded as a claim. Default: your login name.")]
More = Annotated[str | None, typer.Option(metavar="JSON", help="Further fields of the response, an object.")]
Response = Annotated[
    str | None, typer.Option(metavar="JSON", help="What the agent is told, an object. Asked for in a terminal.")
]
Args = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="All arguments with which the tool runs instead. Asked for in a terminal."),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Do not have the agent called for it: it hears of it when it is next.")
]
Remember = Annotated[
    bool, typer.Option("--remember", help="Have calls like this one run unasked, for as long as its policy says.")
]
All = Annotated[bool, typer.Option("--all", help="Answer all calls that the following options leave.")]
Yes = Annotated[bool, typer.Option("--yes", help="With --all: do not ask first.")]
ByAgent = Annotated[str | None, typer.Option("--agent", help="Only in invocations of this agent.")]
ByTool = Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")]
ByPerson = Annotated[
    str | None,
    typer.Option("--person", metavar="NAME[,ROLE...]", help="Only what this person may answer; roles as role:finance."),
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="AGE", help="Only what has waited longer, such as 30m, 2h or 1d.")
]
Below = Annotated[
    str | None, typer.Option("--below", metavar="ID", help="Only in what this invocation or session has started.")
]
FILTERS = {"agent": ByAgent, "tool": ByTool, "person": ByPerson, "older_than": OlderThan, "below": Below}


def pending(
    ctx: typer.Context,
    id: Annotated[str | None, typer.Argument(metavar="ID|FILE", help="An invocation; all of them if left out.")] = None,
    at: At = None,
    called: Called = None,
    agent: ByAgent = None,
    tool: ByTool = None,
    person: ByPerson = None,
    older_than: OlderThan = None,
    below: Below = None,
    json: AsJson = False,
) -> None:
    """Print what waits for a person. No worker has to run."""
    if look_at_pending(ctx, id, at, called, filters=FILTERS, json=json):
        return

    async def action(client: "AgentClient", out: "Output", target: "Target") -> int:
        from waystation.cli.waiting import Wanted, pending

        return await pending(client, out, target, id=id, wanted=Wanted(agent, tool, person, older_than, below))

    run_command(ctx, action, json=json, invocation=id or below)


def _answering(action: "Action", text: str, **own: Any) -> Callable[..., None]:
    """Return the command for an action; `own` are the options that only some actions have, with their types."""

    def command(ctx: typer.Context, **given: Any) -> None:
        _answer(ctx, action, own, **given)

    options: dict[str, tuple[Any, Any]] = {
        **{"id": (AnyId, None), "call": (CallId, None), "comment": (Comment, None), "by": (By, None)},
        **{name: (kind, False if kind in (Quiet, Remember) else None) for name, kind in own.items()},
        **{"token_file": (TokenFile, None), "all": (All, False)},
        **{name: (kind, None) for name, kind in FILTERS.items()},
        **{"yes": (Yes, False), "json": (AsJson, False)},
    }
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in options.items()
    ]
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {"ctx": typer.Context, **{name: kind for name, (kind, _) in options.items()}}
    command.__name__, command.__doc__ = action, text
    return command


ANSWERING = (
    _answering(
        "approve", "Approve a call that waits, and say whether the answer counts.", response=More, remember=Remember
    ),
    _answering("reject", "Reject a call that waits, and say whether the answer counts.", response=More),
    _answering("edit", "Have a call that waits for a confirmation run with other arguments.", args=Args),
    _answering("respond", "Give a long-running call its response, exactly as it stands.", response=Response),
    _answering(
        "progress", "Tell how a long-running call is getting on; it stays open.", response=Response, quiet=Quiet
    ),
    _answering("claim", "Take a call on: others see it, and cannot answer it until it is given back."),
    _answering("release", "Give back a call that was taken on."),
    _answering("waive", "As an operator, have a call run without the approval that its policy asks for."),
    _answering("cancel", "As an operator, close a call that waits; its invocation goes on."),
)
"""The commands that answer."""


def _answer(
    ctx: typer.Context,
    action: "Action",
    own: dict[str, Any],
    *,
    id: str | None,
    call: str | None,
    comment: str | None,
    by: str | None,
    token_file: Path | None,
    all: bool,
    yes: bool,
    json: bool,
    **given: Any,
) -> None:

    wanted = [given[name] for name in FILTERS]
    if all and id is not None:
        raise typer.BadParameter("names one call; leave it out with --all", param_hint="ID")
    if not all and (yes or any(wanted)):
        raise typer.BadParameter("is for many calls; give --all with it", param_hint="--yes" if yes else "--agent …")
    fields: dict[str, Any] = {"comment": comment}
    for name in own:
        match name:
            case "quiet":
                fields["wake"] = False if given[name] else None
            case "remember":
                fields[name] = given[name] or None
            case _:
                fields[name] = parse_object(f"--{name}", given[name])

    async def perform(client: "AgentClient", out: "Output", target: "Target") -> int:
        from waystation.cli.answers import answer
        from waystation.cli.bulk import answer_all
        from waystation.cli.waiting import Wanted

        fields["token"] = token_of(token_file)
        if all:
            meant = Wanted(*wanted)
            return await answer_all(client, out, target, action=action, wanted=meant, by=by, yes=yes, **fields)
        return await answer(client, out, target, action=action, id=id, call_id=call, by=by, **fields)

    run_command(ctx, perform, json=json, invocation=id)


def authorize(
    ctx: typer.Context,
    id: Id,
    call: CallId = None,
    credentials: Annotated[str, typer.Option(metavar="STORE", help="The credential store of the workers.")] = str(
        CREDENTIALS
    ),
    by: By = None,
    json: AsJson = False,
) -> None:
    """Log in, or give a key, for a call that waits for it. It is asked for, and goes into the credential store."""

    async def action(client: "AgentClient", out: "Output", _target: "Target") -> int:
        from waystation.cli.authorize import authorize

        return await authorize(client, out, id=id, call_id=call, credentials=credentials, by=by)

    run_command(ctx, action, json=json, invocation=id)
