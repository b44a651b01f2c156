"""`waystation chat`, `sessions` and `session`: their options. What they do is in the modules that they load."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waystation.cli.command import run_command
from waystation.core.settings import Stores
from waystation.core.wire import DEFAULT_APP, DEFAULT_USER

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target
    from waystation.client import AgentClient

ARTIFACTS, MEMORY = Stores().artifacts, Stores().memory
"""Where workers keep them unless told otherwise; as in `activities.services`, which takes long to load."""

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line, and nothing else.")]
Name = Annotated[str, typer.Argument(metavar="SESSION", help="Name of the session, as `waystation sessions` lists it.")]
User = Annotated[str, typer.Option(help="Whose session it is.")]
App = Annotated[str, typer.Option(help="In which app.")]

session_commands = typer.Typer(
    name="session",
    help="Look at a session, close it, or delete it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def chat(
    ctx: typer.Context,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of a root agent.")],
    session: Annotated[str | None, typer.Option(help="Name of the session; a new one if left out.")] = None,
    user: User = DEFAULT_USER,
    app: App = DEFAULT_APP,
    json: AsJson = False,
) -> None:
    """Converse with an agent. /help says what else can be typed. Lines can be piped in.

    Ctrl-D and Ctrl-C leave; the conversation goes on, and --session takes it up again.
    """

    async def action(client: "AgentClient", out: "Output", target: "Target") -> int:
        from waystation.cli.talk import talk

        return await talk(client, out, target, agent=agent, session_id=session, user_id=user, app=app)

    _run_session_command(ctx, action, json=json, session=session)


def sessions(
    ctx: typer.Context,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    user: Annotated[str | None, typer.Option(help="Only those of this user.")] = None,
    app: Annotated[str | None, typer.Option(help="Only those of this app.")] = None,
    json: AsJson = False,
) -> None:
    """List sessions, those that began last first. No worker has to run."""

    async def action(client: "AgentClient", out: "Output", target: "Target") -> int:
        from waystation.cli.session_actions import listing

        return await listing(client, out, target, agent=agent, user_id=user, app=app)

    _run_session_command(ctx, action, json=json)


@session_commands.command()
def show(
    ctx: typer.Context, name: Name, user: User = DEFAULT_USER, app: App = DEFAULT_APP, json: AsJson = False
) -> None:
    """Print what was said in a session, its state, and what waits. No worker has to run."""

    async def action(client: "AgentClient", out: "Output", target: "Target") -> int:
        from waystation.cli.session_actions import show

        return await show(client, out, target, session_id=name, user_id=user, app=app)

    _run_session_command(ctx, action, json=json, session=name)


@session_commands.command()
def close(
    ctx: typer.Context, name: Name, user: User = DEFAULT_USER, app: App = DEFAULT_APP, json: AsJson = False
) -> None:
    """Let a session take no further message; it ends when its invocations have."""

    async def action(client: "AgentClient", out: "Output", _target: "Target") -> int:
        from waystation.cli.session_actions import close

        return await close(client, out, session_id=name, user_id=user, app=app)

    _run_session_command(ctx, action, json=json, session=name)


@session_commands.command()
def delete(
    ctx: typer.Context,
    name: Name,
    user: User = DEFAULT_USER,
    app: App = DEFAULT_APP,
    artifacts: Annotated[
        str, typer.Option(metavar="URL", help="Where workers keep artifacts: a folder or object store.")
    ] = str(ARTIFACTS),
    memory: Annotated[Path, typer.Option(metavar="FILE", help="Where workers keep memories.")] = MEMORY,
    json: AsJson = False,
) -> None:
    """Delete a session: its workflows, its artifacts, and what was remembered of it. Cannot be undone.

    What goes on in it is stopped. May be repeated, also when it was interrupted. No worker has to run.
    """

    async def action(client: "AgentClient", out: "Output", _target: "Target") -> int:
        from waystation.cli.session_actions import delete

        where = {"session_id": name, "user_id": user, "app": app}
        return await delete(client, out, artifacts=artifacts, memory=memory, **where)

    _run_session_command(ctx, action, json=json, session=name)


def _run_session_command(ctx: typer.Context, action: Any, *, json: bool, session: str | None = None) -> None:
    async def checked(client: "AgentClient", out: "Output", target: "Target") -> int:
        from waystation.cli.exits import Exit, Problem

        try:
            return int(await action(client, out, target))
        except ValueError as error:  # of names that make no workflow id
            if type(error) is not ValueError:
                raise
            raise Problem(Exit.USAGE, str(error)) from None

    run_command(ctx, checked, json=json, invocation=session)
