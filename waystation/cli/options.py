"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from waystation.core.payload import JsonObject, decode
from waystation.core.summary import clip

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line, and nothing else.")]
InvocationId = Annotated[str, typer.Argument(metavar="ID", help="Id of an invocation.")]
Source = Annotated[str, typer.Argument(metavar="ID|FILE", help="An invocation, or its history as JSON.")]
AgentName = Annotated[str, typer.Argument(metavar="AGENT", help="Name of a root agent.")]
Called = Annotated[
    str | None, typer.Option("--called", metavar="CALL", help="The agent that this call began, such as fc-1.")
]
At = Annotated[int | None, typer.Option("--at", metavar="N", min=0, help="As it was right after event N; 0: before 1.")]
Between = Annotated[
    tuple[int, int] | None, typer.Option("--diff", metavar="N M", help="What changed from event N to event M.")
]
Agents = Annotated[
    list[Path] | None, typer.Option("--agents", metavar="DIR", help="Where the agent is found, as for a worker.")
]
Callbacks = Annotated[
    bool, typer.Option("--callbacks", help="Run `before_model` callbacks here; without it they do not run.")
]
SessionSource = Annotated[
    str | None,
    typer.Option("--session", metavar="ID|FILE", help="Of a file: the session's history, for what was said before."),
]
By = Annotated[str | None, typer.Option(help="Who answers; recorded as a claim. Default: your login name.")]
Detach = Annotated[bool, typer.Option("--detach", help="Return as soon as something waits for a person.")]
OutputFile = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there.")]

User = Annotated[str, typer.Option(help="Whose session it is.")]
App = Annotated[str, typer.Option(help="In which app.")]


def parse_object(option: str, text: str | None) -> JsonObject | None:
    """Parse the value of an option as a JSON object.

    Raises:
        BadParameter: It is not one.
    """
    if text is None:
        return None
    try:
        value = decode(text)
    except ValueError as error:
        raise typer.BadParameter(f"{clip(text, 200)!r} is not valid JSON: {error}", param_hint=option) from None
    if not isinstance(value, dict):
        raise typer.BadParameter(
            f'{clip(text, 200)!r} is not a JSON object, such as {{"amount": 50}}', param_hint=option
        )
    return value
