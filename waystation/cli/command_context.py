"""Code shared by all commands: exit codes, common options, the server connection and the command context."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer
from temporalio.service import RPCError, RPCStatusCode

from waystation.cli.output import Output
from waystation.cli.shell_completion import complete_agent, complete_id
from waystation.client import (
    AgentClient,
    are_credentials_refused,
    connect,
    connection_problem,
    connection_settings,
    find_store_differences,
)
from waystation.client.connection import describe_rpc, is_unreachable
from waystation.configuration import login_name
from waystation.core import errors
from waystation.core.approval import PendingCall
from waystation.core.contract import ANSWER_SIGNAL, DEFAULT_APP, DEFAULT_USER, TASK_QUEUE
from waystation.core.errors import InvalidConfiguration, WaystationError
from waystation.core.payload import JsonObject, decode
from waystation.core.summary import clip
from waystation.presentation import terminal, words
from waystation.project_file import HERE, current_project
from waystation.storage import Blobs, StoreIds

CONNECT_LIMIT_S = 10.0
TOKEN = "WAYSTATION_TOKEN"  # the name of an environment variable, not a secret
MAX_TOKEN_BYTES = 100_000

AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON, one object per line.")]
ServeUi = Annotated[bool, typer.Option("--ui", help="Also serve Temporal's Web UI.")]
InvocationId = Annotated[str, typer.Argument(metavar="ID", help="Invocation ID.", autocompletion=complete_id)]
Source = Annotated[
    str,
    typer.Argument(
        metavar="ID|FILE",
        help="Invocation ID, or a file with the invocation's history as JSON.",
        autocompletion=complete_id,
    ),
]
AgentName = Annotated[
    str, typer.Argument(metavar="AGENT", help="Name of the root agent.", autocompletion=complete_agent)
]
Called = Annotated[
    str | None,
    typer.Option(
        "--called", metavar="CALL", help="Use the agent called by this function call, such as fc-1 or fc-1/fc-2."
    ),
]
At = Annotated[
    int | None,
    typer.Option(
        "--at", metavar="N", min=0, help="Show the moment right after event N; 0 means before the first event."
    ),
]
Between = Annotated[
    tuple[int, int] | None, typer.Option("--diff", metavar="N M", help="Show what changed from event N to event M.")
]
Agents = Annotated[
    list[Path] | None,
    typer.Option("--agents", metavar="DIR", help="Folder that contains agent packages, as in `waystation worker`."),
]
Callbacks = Annotated[bool, typer.Option("--callbacks", help="Also run `before_model` callbacks, on this machine.")]
SessionSource = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="ID|FILE",
        help="If the source is a file, the ID or history file of its session, to include the earlier conversation.",
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        help="Your name, to be recorded with the answer (not verified). Default: your login name, if you send no token."
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help=f"File with the token that proves your identity (sent encrypted). Default: ${TOKEN}."
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="Return as soon as a call is waiting for a person.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE instead of standard output.")
]
User = Annotated[str, typer.Option(help="User the session belongs to.")]
App = Annotated[str, typer.Option(help="App the session belongs to.")]
Tenant = Annotated[str | None, typer.Option(help="Tenant the session belongs to.")]


class Exit(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    FAILED = 1
    """An invocation failed, was canceled or stopped early, histories differ, or a command failed for another reason."""
    USAGE = 2
    ALREADY_ANSWERED = 3
    EXPIRED = 4
    NOT_ALLOWED = 5
    UNKNOWN = 6
    """The invocation, session, call or event does not exist."""
    UNCONFIRMED = 7
    """No worker confirmed the answer or message in time."""
    NO_SERVER = 8
    SESSION_CLOSED = 9
    SESSION_BUSY = 10
    """The session is handling another message, or its queue is full."""
    INTERRUPTED = 130
    """The user pressed Ctrl-C. Shells report this case with the same code."""


class CommandProblem(WaystationError):
    """The command ends early, with this exit code and a message with the reason."""

    def __init__(self, exit: Exit, message: str) -> None:
        self.exit = exit
        super().__init__(message)


EXIT_CODES: dict[type[WaystationError], Exit] = {
    errors.AlreadyAnswered: Exit.ALREADY_ANSWERED,
    errors.Expired: Exit.EXPIRED,
    errors.NotAllowed: Exit.NOT_ALLOWED,
    errors.DigestMismatch: Exit.NOT_ALLOWED,
    errors.UnknownCall: Exit.UNKNOWN,
    errors.UnknownInvocation: Exit.UNKNOWN,
    errors.InvalidAnswer: Exit.USAGE,
    errors.UnknownSession: Exit.UNKNOWN,
    errors.SessionClosed: Exit.SESSION_CLOSED,
    errors.SessionBusy: Exit.SESSION_BUSY,
    errors.QueueFull: Exit.SESSION_BUSY,
    errors.InvalidInput: Exit.USAGE,
    errors.NotJson: Exit.USAGE,
    errors.NoAgents: Exit.USAGE,
    InvalidConfiguration: Exit.USAGE,
    errors.AnswerUnconfirmed: Exit.UNCONFIRMED,
    errors.MessageUnconfirmed: Exit.UNCONFIRMED,
    errors.ForeignHistory: Exit.UNKNOWN,
    errors.DeletedHistory: Exit.UNKNOWN,
    errors.NoSuchEvent: Exit.UNKNOWN,
    errors.NotReplayable: Exit.FAILED,
}


def to_problem(error: WaystationError | RPCError, server: str, invocation: str | None) -> CommandProblem:
    """Translate an error into an exit code and a message for the user.

    Args:
        error: The error that was raised.
        server: The server and namespace, as they should appear in the message.
        invocation: The ID that the command was run with, if any.
    """
    if isinstance(error, WaystationError):
        return CommandProblem(EXIT_CODES.get(type(error), Exit.FAILED), str(error))
    match error.status:
        case RPCStatusCode.NOT_FOUND if "namespace" in error.message.lower():
            return CommandProblem(
                Exit.NO_SERVER, f"{error.message} Server: {server}. Choose another namespace with --namespace."
            )
        case RPCStatusCode.NOT_FOUND if invocation is not None and Path(invocation).is_dir():
            return CommandProblem(
                Exit.UNKNOWN, f"{invocation!r} is a folder, not an invocation. Name a history file in this folder."
            )
        case RPCStatusCode.NOT_FOUND:
            return CommandProblem(
                Exit.UNKNOWN,
                f"Invocation {invocation!r} not found at {server}. `waystation list` lists the invocations.",
            )
        case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNAUTHENTICATED:
            return CommandProblem(Exit.NOT_ALLOWED, f"The server refused the request ({server}): {error.message}")
        case _ if is_unreachable(error):
            return CommandProblem(Exit.NO_SERVER, f"The server stopped responding ({server}): {describe_rpc(error)}")
        case RPCStatusCode.INVALID_ARGUMENT | RPCStatusCode.RESOURCE_EXHAUSTED:
            return CommandProblem(Exit.USAGE, f"The server refused the request ({server}): {error.message}")
        case _:
            return CommandProblem(Exit.FAILED, f"The server returned {error.status.name} ({server}): {error.message}")


def missing_extra(extra: str, error: ModuleNotFoundError) -> CommandProblem:
    """Return the problem that the package of a command's extra is not installed. Both have the same name."""
    return CommandProblem(
        Exit.USAGE,
        f"`waystation {extra}` needs the package {error.name!r}. Install it with: pip install 'waystation[{extra}]'",
    )


@contextlib.contextmanager
def translate_file_errors(path: str | Path, action: str = "read", *, option: str = "") -> Iterator[None]:
    """Report a file that cannot be read (or, depending on `action`, `written`) as a usage error."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        text = f"{str(path)!r} cannot be {action}: {cause}."
        raise CommandProblem(Exit.USAGE, f"{option}: {text}" if option else text) from None


def read_token(file: Path | None) -> str | None:
    """Return the user's identity token from `file`, by default from WAYSTATION_TOKEN, or None if neither is set.

    Raises:
        Problem: The file cannot be read, or does not contain a token.
    """
    if file is None:
        return (os.environ.get(TOKEN) or "").strip() or None
    with translate_file_errors(file, option="--token-file"), file.open("rb") as stream:
        data = stream.read(MAX_TOKEN_BYTES).strip()
    if not data or not data.isascii():
        raise CommandProblem(Exit.USAGE, f"--token-file: {file} does not contain a token.")
    return data.decode("ascii")


def name_sender(token: str | None) -> str | None:
    """Return the name to record with an answer: the login name, or none beside a token, which proves who answers."""
    return None if token else login_name()


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """The server, namespace and task queue that a command uses. Settings that are None come from the environment."""

    address: str | None = None
    namespace: str | None = None
    task_queue: str = TASK_QUEUE
    profile: str | None = None
    program: str = "waystation"
    """The shell command that starts this program, used in the commands it prints."""
    temporal: str = "temporal"
    """The shell command that starts the Temporal CLI."""
    store: str | None = None
    """Folder or URL of the object store that holds large payloads."""
    strict: bool = False
    """Whether commands fail if a store differs from the one that open invocations recorded."""
    project_file: str = HERE
    """The project file that was named, or the folder to search from, or `none`."""

    async def connect(self, *, whole: bool = False, encrypted: bool = True) -> AgentClient:
        """Return a connected client.

        Args:
            whole: Whether to fail if a large value is missing from the store. By default, it is shown in short form.
            encrypted: Whether to read the encryption keys, if there are any.

        Raises:
            Problem: The server does not respond, or the configuration cannot be read.
        """
        server = self.describe()
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                temporal = await connect(
                    address=self.address,
                    namespace=self.namespace,
                    profile=self.profile,
                    store=self.store,
                    short_forms=not whole,
                    encrypted=encrypted,
                )
        except (RuntimeError, TimeoutError, ValueError) as error:
            timed_out = isinstance(error, TimeoutError)
            project = current_project()
            server += project.explain(server) if project and not self.address else ""
            cause = f"no answer within {CONNECT_LIMIT_S:g} s" if timed_out else connection_problem(error)
            if are_credentials_refused(error):
                raise CommandProblem(
                    Exit.NOT_ALLOWED,
                    f"The server refused the credentials ({server}): {cause} Set a valid TEMPORAL_API_KEY, or "
                    "TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH.",
                ) from None
            raise CommandProblem(
                Exit.NO_SERVER,
                f"Cannot reach a Temporal server at {server} ({cause}). Start one with `waystation worker --embedded "
                "--agents DIR`, or set the server's address with --address or TEMPORAL_ADDRESS.",
            ) from None
        return AgentClient(temporal, task_queue=self.task_queue, blobs=Blobs(self.store))

    def describe(self) -> str:
        """Return the server's address and namespace, for use in messages.

        Raises:
            Problem: The configuration cannot be read.
        """
        try:
            config = connection_settings(address=self.address, namespace=self.namespace, profile=self.profile)
        except InvalidConfiguration as error:
            raise CommandProblem(Exit.USAGE, str(error)) from None
        return f"{config.get('target_host')}, namespace {config.get('namespace')}"

    def follow_command(self, invocation: str) -> str:
        """Return the shell command that follows an invocation."""
        return f"{self._program()} events {quote(invocation)} --follow"

    def chat_command(self, agent: str, session: str, user: str, app: str, tenant: str | None = None) -> str:
        """Return the shell command that resumes a conversation."""
        parts = [self._program(), "chat", quote(agent), "--session", quote(session)]
        parts += ["--user", quote(user)] if user != DEFAULT_USER else []
        parts += ["--app", quote(app)] if app != DEFAULT_APP else []
        parts += ["--tenant", quote(tenant)] if tenant else []
        return " ".join(parts)

    def answer_command(self, action: str, id: str, call: str = "") -> list[str]:
        """Return the parts of the shell command that answers a pending call.

        Args:
            action: Name of the answering command.
            id: An invocation ID, or an approval ID if `call` is empty.
            call: Call ID, or an empty string if `id` is an approval ID.
        """
        return [self._program(), f"{action} {quote(id)} {call}".rstrip()]

    def signal_command(self, call: PendingCall) -> list[str]:
        """Return the parts of the `temporal` command that approves a call. `WHY` stands for a required comment."""
        answer: JsonObject = {"function_call_id": call.function_call_id, "action": "approve"}
        if call.policy and call.policy.digest:
            answer["digest"] = call.digest
        if call.policy and call.policy.comment:
            answer["comment"] = "WHY"
        return [
            " ".join([f"{self.temporal} workflow signal", *self._options()]),
            f"--workflow-id {quote(call.invocation_id)} --name {ANSWER_SIGNAL}",
            f"--input {quote(json.dumps(answer))}",
        ]

    def _program(self) -> str:
        return " ".join([self.program, *self._options(), *([f"--store {quote(self.store)}"] if self.store else [])])

    def _options(self) -> list[str]:
        options = {"--address": self.address, "--namespace": self.namespace, "--profile": self.profile}
        return [f"{name} {quote(value)}" for name, value in options.items() if value]


def write_waits(out: Output, target: ServerTarget, calls: Sequence[PendingCall]) -> None:
    """Write pending calls, each followed by the commands that can answer it."""
    for call in calls:
        out.wait(
            call,
            [
                ("call", f"{call.function_call_id} of {terminal.escape(call.invocation_id)}"),
                ("asked by", f"{terminal.escape(call.agent)}, for user {terminal.escape(call.user_id)}"),
                *terminal.list_facts(call),
                *words.list_terms(call),
            ],
        )
        for action in terminal.list_answers(call):
            note = " (unless its invocation has ended)" if action == "start-again" else ""
            out.command(action + note, target.answer_command(action, call.invocation_id, call.function_call_id))
        # A signal cannot replace `authorize`, which saves the credential in the store, and it cannot carry the
        # identity token that a verified answer requires.
        if "approve" in terminal.list_answers(call) and not (call.policy and call.policy.must_verify):
            out.command("or", target.signal_command(call))


def quote(word: str) -> str:
    """Quote a word for the shell. Unprintable characters become escapes that bash and zsh understand."""
    if word.isprintable():
        return shlex.quote(word)
    special = {"\\": "\\\\", "'": "\\'"}
    escaped = [special.get(char, char) if char.isprintable() else f"\\U{ord(char):08x}" for char in word]
    return f"$'{''.join(escaped)}'"


def find_program() -> str:
    """Return the shell command that starts this program."""
    if shutil.which("waystation"):
        return "waystation"
    installed = Path(sys.executable).with_name("waystation")
    return format_path(installed) if installed.exists() else f"{format_path(Path(sys.executable))} -m waystation.cli"


def find_temporal_program() -> str:
    """Return the shell command that starts the Temporal CLI."""
    installed = Path(sys.executable).with_name("temporal")
    return format_path(installed) if installed.exists() and not shutil.which("temporal") else "temporal"


def format_path(path: Path) -> str:
    """Quote a path for the shell, relative to the current folder if the path is inside that folder."""
    here = Path.cwd()
    return quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


class CommandContext(typer.Context):
    """The context a command runs in: its output and the server it talks to."""

    obj: ServerTarget
    client: AgentClient | None = None

    @property
    def target(self) -> ServerTarget:
        """The server selected by the global options."""
        return self.obj

    @cached_property
    def out(self) -> Output:
        """The command's output: human-readable text, or JSON lines with `--json`."""
        return Output(json=bool(self.params.get("json")))

    async def connect(self, *, encrypted: bool = True) -> AgentClient:
        """Return the client. The first call connects it, and reads the encryption keys unless `encrypted` is false.

        Raises:
            Problem: The server does not respond, or the configuration cannot be read.
        """
        if self.client is None:
            self.client = await self.target.connect(encrypted=encrypted)
            if self.target.strict:
                await self.compare_stores(payloads=self.client.blobs.files)
        return self.client

    async def compare_stores(self, **stores: object) -> None:
        """Write a remark for each of these stores that differs from the one that open invocations recorded.

        `stores` has the names of `waystation.storage.StoreIds`.

        Raises:
            Problem: A store differs, and `--strict` is set.
        """
        client = await self.connect()
        for problem in await find_store_differences(client.temporal, client.task_queue, StoreIds(**stores)):
            if self.target.strict:
                raise CommandProblem(Exit.USAGE, problem)
            self.out.remark(problem)


def parse_object(option: str, text: str | None) -> JsonObject | None:
    """Parse the value of an option as a JSON object. Return None if the option was not passed.

    Raises:
        BadParameter: The value is not a JSON object.
    """
    try:
        return None if text is None else parse_json_object(text)
    except ValueError as error:
        raise typer.BadParameter(f'{error}; write it like {{"amount": 50}}', param_hint=option) from None


def parse_json_object(text: str) -> JsonObject:
    """Parse text as a JSON object.

    Raises:
        ValueError: The text is not a JSON object.
    """
    try:
        value = decode(text)
    except ValueError as error:
        raise ValueError(f"{clip(text, 200)!r} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{clip(text, 200)!r} is not a JSON object")
    return value
