"""`waystation approve`, `reject`, `edit`, `respond`, `progress` and `authorize`: their options."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waystation.cli.identity import TokenFile, token_of

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target
    from waystation.client.agent_client import AgentClient
    from waystation.core.answer import Action

CREDENTIALS = Path(".waystation") / "credentials"
"""Where workers keep credentials unless told otherwise; as in `tools.services`, which takes long to load."""

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line, and nothing else.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of an invocation.")]
CallId = Annotated[
    str | None, typer.Argument(metavar="CALL", help="Id of the call, such as fc-1; needed when several wait.")
]
Comment = Annotated[str | None, typer.Option(help="Told to the agent.")]
By = Annotated[str | None, typer.Option(help="Who answers; recorded as a claim. Default: your login name.")]
More = Annotated[str | None, typer.Option(metavar="JSON", help="Further fields of the response, an object.")]
Response = Annotated[str, typer.Option(metavar="JSON", help="What the agent is told, an object.")]


def approve(
    ctx: typer.Context,
    id: Id,
    call: CallId = None,
    comment: Comment = None,
    by: By = None,
    response: More = None,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """Approve a call that waits, and say whether the answer counts."""
    _answer(
        ctx,
        "approve",
        id,
        call,
        comment=comment,
        by=by,
        response=_object("--response", response),
        token_file=token_file,
        json=json,
    )


def reject(
    ctx: typer.Context,
    id: Id,
    call: CallId = None,
    comment: Comment = None,
    by: By = None,
    response: More = None,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """Reject a call that waits, and say whether the answer counts."""
    _answer(
        ctx,
        "reject",
        id,
        call,
        comment=comment,
        by=by,
        response=_object("--response", response),
        token_file=token_file,
        json=json,
    )


def edit(
    ctx: typer.Context,
    id: Id,
    args: Annotated[
        str, typer.Option(metavar="JSON", help="All arguments with which the tool runs instead, an object.")
    ],
    call: CallId = None,
    comment: Comment = None,
    by: By = None,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """Have a call that waits for a confirmation run with other arguments."""
    _answer(
        ctx, "edit", id, call, comment=comment, by=by, args=_object("--args", args), token_file=token_file, json=json
    )


def respond(
    ctx: typer.Context,
    id: Id,
    response: Response,
    call: CallId = None,
    comment: Comment = None,
    by: By = None,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """Give a long-running call its response, exactly as it stands."""
    _answer(
        ctx,
        "respond",
        id,
        call,
        comment=comment,
        by=by,
        response=_object("--response", response),
        token_file=token_file,
        json=json,
    )


def progress(
    ctx: typer.Context,
    id: Id,
    response: Response,
    call: CallId = None,
    comment: Comment = None,
    by: By = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Do not have the agent called for it: it hears of it when it is next.")
    ] = False,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> None:
    """Tell how a long-running call is getting on; it stays open."""
    given = {"response": _object("--response", response), "wake": False if quiet else None}
    _answer(ctx, "progress", id, call, comment=comment, by=by, token_file=token_file, json=json, **given)


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
    from waystation.cli.main import _perform

    async def action(client: "AgentClient", out: "Output", _target: "Target") -> int:
        from waystation.cli.authorize import authorize

        return await authorize(client, out, id=id, call_id=call, credentials=credentials, by=by)

    _perform(ctx, action, json=json, invocation=id)


def _answer(
    ctx: typer.Context,
    action: "Action",
    id: str,
    call: str | None,
    *,
    by: str | None,
    token_file: Path | None,
    json: bool,
    **fields: Any,
) -> None:
    from waystation.cli.main import _perform

    async def perform(client: "AgentClient", out: "Output", _target: "Target") -> int:
        from waystation.cli.answers import answer

        token = token_of(token_file)
        return await answer(client, out, action=action, id=id, call_id=call, by=by, token=token, **fields)

    _perform(ctx, perform, json=json, invocation=id)


def _object(option: str, text: str | None) -> Any:
    from waystation.cli.main import _object

    return _object(option, text)
