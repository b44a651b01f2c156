"""The commands `waystation chat`, `sessions` and `session`: chat in a session, and list or manage sessions."""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column
from rich.text import Text
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from waystation.cli.command_context import (
    AgentName,
    App,
    AsJson,
    CommandContext,
    CommandProblem,
    Exit,
    ServerTarget,
    Tenant,
    TokenFile,
    User,
    name_sender,
    parse_json_object,
    read_token,
    write_waits,
)
from waystation.cli.command_execution import AsyncCommand, create_command_group
from waystation.cli.invocations import Watch, find_worker_problem, report_failure, with_pauses
from waystation.cli.output import Output
from waystation.cli.terminal_input import Lines
from waystation.client import AgentClient, DeletedSession, Session, StartedInvocations, count_events, stream_session
from waystation.core import errors
from waystation.core.actions import ACTIONS, Action
from waystation.core.approval import PendingCall
from waystation.core.contract import DEFAULT_APP, DEFAULT_USER, MEMO_SESSION, Event, Stores
from waystation.core.payload import JsonObject
from waystation.history import describe_workflow, read_memo
from waystation.presentation import terminal
from waystation.presentation.tables import make_table

STORES = Stores()
"""The stores that workers use by default."""
ANY_AGENT = "-"
"""Placeholder agent name for commands that send no messages to the session, where the name does not matter."""

SessionName = Annotated[
    str, typer.Argument(metavar="SESSION", help="Session name, as listed by `waystation sessions`.")
]

session = create_command_group("Show, close or delete a session.")

EARLIER_EVENTS = 6
"""Number of earlier events to show when a conversation is resumed."""
CATCH_UP_LIMIT_S = 5.0
"""Maximum time to spend on reading a resumed conversation's open invocations before the first prompt."""
HELP = """\
/approve [CALL] [COMMENT]    approve a call; CALL is required if several are pending
/reject [CALL] [COMMENT]     reject a call
/respond [CALL] {JSON}       send the response to a long-running call
/pending                     list the calls that are waiting for a person
/state                       print the state of the conversation
/events                      print the whole conversation
/quit                        leave (like Ctrl-D); the conversation continues
//TEXT                       send a message that starts with a slash
Alt-Enter                    start a new line in the same message"""
ANSWERS: dict[str, Action] = {"/approve": "approve", "/reject": "reject", "/respond": "respond"}
REFUSALS = (errors.QueueFull, errors.InvalidInput, CommandProblem)
"""Errors that concern a single message. In a terminal, the chat continues, because the next message may succeed."""
NOTHING_WAITS = "No calls are waiting for a person in this conversation."


async def open_session(
    ctx: CommandContext, name: str, user: str, app: str, tenant: str | None, agent: str = ANY_AGENT
) -> Session:
    """Return a handle to a session on the server.

    Raises:
        Problem: The names cannot be combined into a workflow ID.
    """
    client = await ctx.connect()
    try:
        return client.session(agent=agent, session_id=name, user_id=user, app=app, tenant=tenant)
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise CommandProblem(Exit.USAGE, str(error)) from None


async def sessions(
    ctx: CommandContext,
    agent: Annotated[str | None, typer.Option(help="Only sessions of this agent.")] = None,
    user: Annotated[str | None, typer.Option(help="Only sessions of this user.")] = None,
    app: Annotated[str | None, typer.Option(help="Only sessions of this app.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only sessions of this tenant.")] = None,
    json: AsJson = False,
) -> Exit:
    """List sessions, newest first. This does not require a running worker."""
    client, rows = await ctx.connect(), list[tuple[str | Text, ...]]()
    async for entry in client.sessions.list(agent=agent, user_id=user, app=app, tenant=tenant):
        if json:
            ctx.out.record(entry.to_json())
        place = f"{entry.app}, tenant {entry.tenant}" if entry.tenant else entry.app
        status = Text(entry.status, {"open": "green", "waiting": "bold yellow"}.get(entry.status, "dim"))
        since = terminal.format_time(entry.started_at.timestamp())
        rows.append((entry.session_id, entry.user_id, place, entry.agent or "not started", status, since))
    if json:
        return Exit.OK
    if rows:
        dates = Column("status", no_wrap=True), Column("since", no_wrap=True)
        ctx.out.table(make_table(("session", "user", "app", "agent", *dates), rows))
    else:
        ctx.out.line(f"No sessions at {ctx.target.describe()}. Start one with `waystation chat AGENT`.")
    return Exit.OK


@session.command(cls=AsyncCommand)
async def show(
    ctx: CommandContext,
    name: SessionName,
    user: User = DEFAULT_USER,
    app: App = DEFAULT_APP,
    tenant: Tenant = None,
    json: AsJson = False,
) -> Exit:
    """Print the conversation of a session, its state and its pending calls. This does not require a running worker."""
    out, session = ctx.out, await open_session(ctx, name, user, app, tenant)
    events, state, calls = await session.events(), await session.state(), await session.pending()
    if json:
        for event in events:
            out.record({"event": event.to_json()})
        out.record({"state": state})
        out.record({"pending": [call.model_dump(mode="json") for call in calls]})
        return Exit.OK
    for event in events:
        out.event(event)
    if state:
        out.line()
        out.line("state", style="bold")
        out.line(terminal.format_state(state))
    write_waits(out, ctx.target, calls)
    return Exit.OK


@session.command(cls=AsyncCommand)
async def close(
    ctx: CommandContext,
    name: SessionName,
    user: User = DEFAULT_USER,
    app: App = DEFAULT_APP,
    tenant: Tenant = None,
    json: AsJson = False,
) -> Exit:
    """Close a session. It accepts no more messages, and ends when its open invocations have ended."""
    receipt = await (await open_session(ctx, name, user, app, tenant)).close()
    count = int(receipt.get("open") or 0)
    rest = f"; it will end after {count} open {'invocation' if count == 1 else 'invocations'}" if count else ""
    ctx.out.result(receipt, Text.assemble(("closed", "bold"), f" {terminal.escape(name)}{rest}"))
    return Exit.OK


@session.command(cls=AsyncCommand)
async def delete(
    ctx: CommandContext,
    name: SessionName,
    user: User = DEFAULT_USER,
    app: App = DEFAULT_APP,
    tenant: Tenant = None,
    artifacts: Annotated[
        str, typer.Option(metavar="URL", help="Folder or object store where workers store artifacts.")
    ] = str(STORES.artifacts),
    memory: Annotated[str, typer.Option(metavar="STORE", help="Where workers store memories.")] = str(STORES.memory),
    json: AsJson = False,
) -> Exit:
    """Delete a session, including its workflows, artifacts and memories. This cannot be undone.

    Open invocations are terminated. The command does not require a running worker. If it is interrupted, run it again.
    """
    # Imported here because object stores are slow to import.
    from waystation.artifacts import ObjectStoreArtifactService
    from waystation.memory import open_memory

    await open_session(ctx, name, user, app, tenant)  # called only to check the names
    client, out = await ctx.connect(), ctx.out
    try:
        stores: Any = {"artifacts": ObjectStoreArtifactService(artifacts), "memory": open_memory(memory)}
        await ctx.compare_stores(**stores)
        deleted = await client.sessions.delete(name, user_id=user, app=app, tenant=tenant, **stores)
    except errors.StoreFailed as error:
        raise CommandProblem(
            Exit.FAILED, f"{error}. Name the workers' stores with --artifacts and --memory, and try again."
        ) from None
    out.record(deleted.to_json()) if json else _write_deleted(out, name, deleted)
    if not deleted:
        owner = "" if (user, app) == (DEFAULT_USER, DEFAULT_APP) else f" of user {user!r} in app {app!r}"
        owner += f" of tenant {tenant!r}" if tenant else ""
        raise errors.UnknownSession(
            f"Session {name!r}{owner} not found. `waystation sessions` lists all sessions with their users and apps."
        )
    return Exit.OK


def _write_deleted(out: Output, name: str, deleted: DeletedSession) -> None:
    if deleted:
        counts = {
            ("workflow", "workflows"): len(deleted.workflows),
            ("artifact", "artifacts"): len(deleted.artifacts),
            ("memory", "memories"): deleted.memories,
        }
        parts = ", ".join(f"{count} {noun[count != 1]}" for noun, count in counts.items())
        out.line(Text.assemble(("deleted", "bold"), f" {terminal.escape(name)}: {parts}"))
        for id in deleted.stopped:
            out.line(f"  stopped  {terminal.escape(id)}", style="dim")
    for remainder in deleted.left:
        out.line(f"  left     {terminal.escape(remainder)}", style="yellow")


async def chat(
    ctx: CommandContext,
    agent: AgentName,
    session: Annotated[str | None, typer.Option(help="Name of the session. Default: a new session.")] = None,
    user: User = DEFAULT_USER,
    app: App = DEFAULT_APP,
    token_file: TokenFile = None,
    tenant: Tenant = None,
    json: AsJson = False,
) -> Exit:
    """Chat with an agent. Type /help to list the commands. You can also pipe messages in, one per line.

    Ctrl-D and Ctrl-C leave the conversation, which continues on the workers. Use --session to resume it.
    """
    name = f"chat-{uuid.uuid4().hex[:8]}" if session is None else session
    client, opened = await ctx.connect(), await open_session(ctx, name, user, app, tenant, agent)
    conversation = Chat(client, opened, ctx.out, ctx.target, token_file)
    try:
        return await conversation.run()
    except (asyncio.CancelledError, KeyboardInterrupt):
        conversation.write_resume_command("\nYou left, but the conversation continues. Resume it with")
        raise


class Chat:
    """A chat in the terminal, with the agent of one session."""

    def __init__(
        self, client: AgentClient, session: Session, out: Output, target: ServerTarget, token_file: Path | None = None
    ) -> None:
        self._client, self._session, self._out, self._target = client, session, out, target
        self._token_file = token_file
        self._lines = Lines()
        self._watch = Watch(client, out, session.id, on_waits=self._write_waits)
        self._sent: set[str] = set()
        """Invocations that handle messages sent in this chat. The text of these messages is already on the screen."""
        self._current: str | None = None
        """The invocation that must end or wait for a person before the next line is read."""
        self._changed = asyncio.Event()
        self._stream: asyncio.Task[None] | None = None
        self._failed = False
        self._ended: set[str] = set()
        """Invocations that have ended and whose events have all been written."""

    async def run(self) -> Exit:
        """Read lines and handle each one, until the user quits or the input ends.

        Return `Exit.FAILED` if an invocation failed and the lines are not typed in a terminal.
        """
        await self._greet()
        try:
            async with self._watch.watching():
                while (line := await self._next()) is not None:
                    if line.split(" ")[0] in ("/quit", "/exit"):
                        break
                    await self._handle(line)
            if self._lines.typed:
                self.write_resume_command("You can resume the conversation with")
            # A user at the terminal has seen the failure on the screen, but a script needs the exit code.
            return Exit.FAILED if self._failed and not self._lines.typed else Exit.OK
        finally:
            if self._stream:
                self._stream.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await self._stream

    def write_resume_command(self, text: str) -> None:
        """Write some text, followed by the command that resumes this conversation."""
        names = self._session.given
        self._out.remark(
            f"{text}: "
            f"{self._target.chat_command(names.agent, names.session_id, names.user_id, names.app, names.tenant)}"
        )

    async def _greet(self) -> None:
        """Check that the session is new or can be resumed. If it is resumed, show its last events and pending calls."""
        names, client = self._session.given, self._client
        existing = await describe_workflow(client.temporal, self._session.id)
        if existing is not None and existing.status is not WorkflowExecutionStatus.RUNNING:
            raise CommandProblem(
                Exit.SESSION_CLOSED,
                f"The session {names.session_id!r} is closed. Use a different --session to start another one.",
            )
        memo = (await read_memo(existing)).get(MEMO_SESSION) if existing else None
        if memo and memo.get("agent") not in (None, names.agent):
            raise CommandProblem(
                Exit.USAGE,
                f"The session {names.session_id!r} belongs to the agent {memo['agent']!r}, not to {names.agent!r}. "
                f"Chat with {memo['agent']!r}, or use a different --session.",
            )
        self._out.result(
            {"session": names.session_id, "id": self._session.id, "existed": existing is not None},
            Text.assemble((f"session {terminal.escape(names.session_id)}", "bold"), ("   /help lists commands", "dim")),
        )
        if existing is None:
            if problem := await find_worker_problem(client):
                self._out.remark(f"Nothing answers yet: {problem}")
            return
        started = StartedInvocations(client.temporal, self._session.id)
        await started.caught_up()
        reported = set(started.reported)
        events = await self._session.events()
        for event in events[-EARLIER_EVENTS:] if not self._out.json else ():
            self._watch.write(event)
        self._stream = asyncio.create_task(self._follow(started, count_events(events), reported))
        # The user's first line may answer a call in an open invocation, so read the open invocations first.
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_LIMIT_S):
                while not set(started.order) - reported <= self._watch.logs.keys() and not self._stream.done():
                    self._changed.clear()
                    await self._changed.wait()
        await self._watch.look_at_called()
        self._watch.report_waits()

    async def _follow(self, started: StartedInvocations, known: dict[str, int], reported: set[str]) -> None:
        stream = stream_session(self._client, started, known=known, passed_over=reported, partial=True)
        try:
            async with aclosing(with_pauses(stream, self._watch.pause)) as updates:
                async for update in updates:
                    if update is None:
                        await self._watch.look_at_called()
                    else:
                        self._watch.take(update.log, filter(self._is_visible, update.events))
                    self._watch.report_waits()
                    if update is not None and (ended := update.log.state.outcome.ended):
                        if ended not in ("completed", "continued"):
                            await self._report_failure(update.invocation.id)
                        self._ended.add(update.invocation.id)
                    self._changed.set()
        finally:
            self._changed.set()

    def _is_visible(self, event: Event) -> bool:
        if self._out.json:
            return not event.partial
        if event.partial:  # must not interrupt a line that the user is typing
            return event.invocation_id == self._current
        has_text = any("text" in part for part in (event.content or {}).get("parts") or ())
        return not (self._lines.typed and event.author == "user" and event.invocation_id in self._sent and has_text)

    async def _report_failure(self, id: str) -> None:
        """Report why an invocation failed. If the invocation has a result, report nothing."""
        self._watch.interrupt()
        try:
            await self._client.invocation(id).result()
        except WorkflowFailureError as error:
            report_failure(self._out, error, invocation_id=id)
            self._failed = True

    async def _next(self) -> str | None:
        """Return the next line. If the session's event stream ends first, raise the error that explains why."""
        self._current = None
        reading = asyncio.ensure_future(self._lines.next())
        try:
            await asyncio.wait(
                [task for task in (reading, self._stream) if task is not None], return_when=asyncio.FIRST_COMPLETED
            )
            if not reading.done():
                self._check_stream()
            return await reading
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError, KeyboardInterrupt, Exception):
                await reading

    def _check_stream(self) -> None:
        if self._stream is None or not self._stream.done():
            return
        if error := self._stream.exception():
            raise error
        raise CommandProblem(Exit.SESSION_CLOSED, f"The session {self._session.given.session_id!r} was closed.")

    async def _handle(self, line: str) -> None:
        """Handle a line of input: run the command if it starts with a slash, otherwise send it as a message."""
        is_command = line.startswith("/") and not line.startswith("//")
        try:
            if is_command:
                invocation_id = await self._run_command(*line.partition(" ")[::2])
            else:
                invocation_id = await self._send(line.removeprefix("/")) if line.strip() else None
        except errors.WaystationError as error:
            if not self._lines.typed or not (is_command or isinstance(error, REFUSALS)):
                raise
            self._out.remark(str(error))
            return
        if invocation_id is not None:
            await self._until_settled(invocation_id)

    async def _send(self, text: str) -> str:
        """Send a message, and return the ID of the invocation that handles it."""
        try:
            token, message_id = read_token(self._token_file), f"chat-{uuid.uuid4().hex}"
            streaming = not self._out.json
            sent = await self._session.send(text, message_id=message_id, token=token, streaming=streaming)
        except errors.MessageUnconfirmed:
            raise CommandProblem(
                Exit.UNCONFIRMED,
                "No worker confirmed the message in time, but a worker may still accept it later. Start a worker with: "
                "waystation worker --agents DIR. `waystation session show` prints the accepted messages.",
            ) from None
        self._sent.add(sent.id)
        self._watch.notice()
        if self._out.json:
            self._out.record({"sent": {"invocation_id": sent.id, "status": sent.status}})
        elif sent.status == "queued" and any(
            not (log.state.outcome.ended or self._watch.is_waiting(id)) for id, log in self._watch.logs.items()
        ):
            self._out.remark("The session is working on another message. Yours is queued.")
        if self._stream is None:
            started = StartedInvocations(self._client.temporal, self._session.id)
            self._stream = asyncio.create_task(self._follow(started, {}, set()))
        return sent.id

    async def _run_command(self, name: str, arguments: str) -> str | None:
        """Run a command, and return the ID of the invocation that continues because of it, if any."""
        match name:
            case "/help":
                self._out.line(HELP)
            case "/pending" if self._out.json:
                self._out.record({"pending": [call.model_dump(mode="json") for call in self._watch.calls]})
            case "/pending" if self._watch.calls:
                self._write_waits(self._watch.calls)
            case "/pending":
                self._out.line(NOTHING_WAITS)
            case "/state":
                state = await self._session.state()
                self._out.result({"state": state}, terminal.format_state(state))
            case "/events":
                for event in await self._session.events():
                    self._out.record({"event": event.to_json()}) if self._out.json else self._out.event(event)
            case "/approve" | "/reject" | "/respond":
                return await self._answer(ANSWERS[name], arguments.strip())
            case _:
                raise CommandProblem(Exit.USAGE, f"Unknown command {name!r}. Type /help to list the commands.")
        return None

    async def _answer(self, action: Action, arguments: str) -> str | None:
        call, text = self._choose(arguments)
        fields: JsonObject = {"comment": text} if text else {}
        if action == "respond":
            try:
                fields = {"response": parse_json_object(text)}
            except ValueError as error:
                raise CommandProblem(
                    Exit.USAGE, f'{error}. Write the response like this: /respond {{"amount": 50}}'
                ) from None
        if ACTIONS[action].accepts:
            await self._client.approvals.get(call.approval_id)
        token = read_token(self._token_file)
        # The digest ties the answer to the call that the user saw: by now, its ID may belong to a different call.
        receipt = await self._client.invocation(call.invocation_id).answer(
            action,
            call.function_call_id,
            by=name_sender(token),
            token=token,
            **call.as_seen,
            **fields,
        )
        self._watch.mark_answered(call)
        if self._out.json:
            self._out.record({"answered": receipt})
        return call.invocation_id if call.invocation_id in self._watch.logs else None

    async def _until_settled(self, id: str) -> None:
        """Wait until an invocation has ended or is waiting for a person."""
        self._current = id
        while id not in self._ended and not self._watch.is_waiting(id):
            self._check_stream()
            self._changed.clear()
            await self._changed.wait()
        self._watch.interrupt()

    def _label(self, call: PendingCall) -> str:
        """Return a name for a call that is unique in the session, such as `2/fc-1` for one in the second invocation."""
        return f"{call.invocation_id.removeprefix(f'{self._session.id}/')}/{call.function_call_id}"

    def _choose(self, text: str) -> tuple[PendingCall, str]:
        """Return the pending call whose name the text starts with, and the rest of the text.

        A call's name is its label, or its call ID if no other pending call has the same ID.
        If the text starts with no such name, return the only pending call and the whole text.

        Raises:
            Problem: No call is pending, or several are and the text does not start with the name of one.
        """
        name, _, rest = text.partition(" ")
        labels = {self._label(call): call for call in self._watch.calls}
        matches = [call for label, call in labels.items() if name in (label, call.function_call_id)]
        if name in labels or len(matches) == 1:
            return labels.get(name) or matches[0], rest.strip()
        if not labels:
            raise CommandProblem(Exit.UNKNOWN, NOTHING_WAITS)
        if len(labels) > 1:
            raise CommandProblem(Exit.UNKNOWN, f"Several calls are pending. Name one of them: {', '.join(labels)}.")
        return self._watch.calls[0], text

    def _write_waits(self, calls: Sequence[PendingCall]) -> None:
        """Write pending calls, each with the command that answers it in this chat or, for a credential, in a shell."""
        for call in calls:
            name = terminal.escape(self._label(call))
            self._out.wait(
                call, [("call", f"{name}, asked by {terminal.escape(call.agent)}"), *terminal.list_facts(call)]
            )
            if call.kind == "credential":
                self._out.command(
                    "authorize", self._target.answer_command("authorize", call.invocation_id, call.function_call_id)
                )
            else:
                self._out.command("answer", [f"/approve {name}   /reject {name}"])
