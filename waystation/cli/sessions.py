"""`waystation sessions` and `session`: list sessions, show one, close it, delete it."""

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Column, Table
from rich.text import Text
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from waystation.cli.command_context import (
    AgentName,
    App,
    AsJson,
    AsyncCommand,
    CommandContext,
    Exit,
    Problem,
    Target,
    User,
    command_group,
    parse_json_object,
    write_waits,
)
from waystation.cli.invocations import Watch, is_polled, report_failure, with_pauses
from waystation.cli.output import Output
from waystation.cli.terminal_input import Lines
from waystation.client import AgentClient, DeletedSession, Session, StartedInvocations, count_events, stream_session
from waystation.configuration import login_name
from waystation.core import (
    DEFAULT_APP,
    DEFAULT_USER,
    MEMO_SESSION,
    Action,
    Event,
    JsonObject,
    PendingCall,
    Stores,
    errors,
)
from waystation.history import describe_workflow
from waystation.presentation import terminal

STORES = Stores()
"""Where workers keep things by default."""
ANY_AGENT = "-"
"""For sessions whose agent is not known; nothing that is read depends on it."""

SessionName = Annotated[
    str, typer.Argument(metavar="SESSION", help="Name of the session, as `waystation sessions` lists it.")
]

session = command_group("Show a session, close it, or delete it.")


@contextmanager
def _name_problems() -> Iterator[None]:
    """Turn the error of names from which no workflow id can be made into a usage error."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise Problem(Exit.USAGE, str(error)) from None


async def open_session(ctx: CommandContext, name: str, user: str, app: str, agent: str = ANY_AGENT) -> Session:
    """Return a session of the server.

    Raises:
        Problem: No session can have these names.
    """
    client = await ctx.connect()
    with _name_problems():
        return client.session(agent=agent, session_id=name, user_id=user, app=app)


async def sessions(
    ctx: CommandContext,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    user: Annotated[str | None, typer.Option(help="Only those of this user.")] = None,
    app: Annotated[str | None, typer.Option(help="Only those of this app.")] = None,
    json: AsJson = False,
) -> Exit:
    """List sessions, those that began last first. No worker has to run."""
    client = await ctx.connect()
    dates = Column("status", no_wrap=True), Column("since", no_wrap=True)
    table = Table("session", "user", "app", "agent", *dates, box=box.SIMPLE_HEAD, pad_edge=False)
    async for entry in client.sessions.list(agent=agent, user_id=user, app=app):
        if json:
            ctx.out.record(entry.to_json())
        names = (entry.session_id, entry.user_id, entry.app, entry.agent or "not taken up")
        style = {"open": "green", "waiting": "bold yellow"}.get(entry.status, "dim")
        since = terminal.clock(entry.started_at.timestamp())
        table.add_row(*(Text(terminal.safe(name)) for name in names), Text(entry.status, style), since)
    if json:
        return Exit.OK
    if table.row_count:
        ctx.out.table(table)
    else:
        ctx.out.line(f"No such session in {ctx.target.describe()}. `waystation chat AGENT` begins one.")
    return Exit.OK


@session.command(cls=AsyncCommand)
async def show(
    ctx: CommandContext, name: SessionName, user: User = DEFAULT_USER, app: App = DEFAULT_APP, json: AsJson = False
) -> Exit:
    """Print what was said in a session, its state, and what waits. No worker has to run."""
    out, session = ctx.out, await open_session(ctx, name, user, app)
    events, state, waiting = await session.events(), await session.state(), await session.pending()
    if json:
        for event in events:
            out.record({"event": event.to_json()})
        out.record({"state": state})
        out.record({"pending": [call.model_dump(mode="json") for call in waiting]})
        return Exit.OK
    for event in events:
        out.event(event)
    if state:
        out.line()
        out.line("state", style="bold")
        out.line(terminal.state(state))
    write_waits(out, ctx.target, waiting)
    return Exit.OK


@session.command(cls=AsyncCommand)
async def close(
    ctx: CommandContext, name: SessionName, user: User = DEFAULT_USER, app: App = DEFAULT_APP, json: AsJson = False
) -> Exit:
    """Let a session take no further message; it ends when its invocations have."""
    receipt = await (await open_session(ctx, name, user, app)).close()
    left = int(receipt.get("open") or 0)
    rest = f"; {left} still open in it, with which it ends" if left else ""
    ctx.out.result(receipt, Text.assemble(("closed", "bold"), f" {terminal.safe(name)}{rest}"))
    return Exit.OK


@session.command(cls=AsyncCommand)
async def delete(
    ctx: CommandContext,
    name: SessionName,
    user: User = DEFAULT_USER,
    app: App = DEFAULT_APP,
    artifacts: Annotated[
        str, typer.Option(metavar="URL", help="Where workers keep artifacts: a folder or object store.")
    ] = str(STORES.artifacts),
    memory: Annotated[Path, typer.Option(metavar="FILE", help="Where workers keep memories.")] = STORES.memory,
    json: AsJson = False,
) -> Exit:
    """Delete a session: its workflows, its artifacts, and what was remembered of it. Cannot be undone.

    Its open invocations are stopped. May be repeated, also when it was interrupted. No worker has to run.
    """
    # Here, because object stores take long to load.
    from waystation.artifacts import ObjectStoreArtifactService
    from waystation.memory import SqliteMemoryService

    client, out = await ctx.connect(), ctx.out
    try:
        with _name_problems():
            deleted = await client.sessions.delete(
                name,
                user_id=user,
                app=app,
                artifacts=ObjectStoreArtifactService(artifacts),
                memory=SqliteMemoryService(memory),
            )
    except errors.StoreFailed as error:
        remedy = "Say with --artifacts and --memory where workers keep them, and repeat it."
        raise Problem(Exit.FAILED, f"{error}. {remedy}") from None
    if json:
        out.record(deleted.to_json())
    else:
        _write_deleted(out, name, deleted)
    if not deleted:
        who = "" if (user, app) == (DEFAULT_USER, DEFAULT_APP) else f" of user {user!r} in app {app!r}"
        raise errors.UnknownSession(
            f"There is nothing of a session {name!r}{who}; `waystation sessions` lists those there are, "
            "with their users and apps."
        )
    return Exit.OK


def _write_deleted(out: Output, name: str, deleted: DeletedSession) -> None:
    if deleted:
        nouns = ("workflow", "workflows"), ("artifact", "artifacts"), ("memory", "memories")
        counts = len(deleted.workflows), len(deleted.artifacts), deleted.memories
        parts = [f"{count} {noun[count != 1]}" for count, noun in zip(counts, nouns, strict=True)]
        out.line(Text.assemble(("deleted", "bold"), f" {terminal.safe(name)}: {', '.join(parts)}"))
        for id in deleted.stopped:
            out.line(f"  stopped  {terminal.safe(id)}", style="dim")
    for left in deleted.left:
        out.line(f"  left     {terminal.safe(left)}", style="yellow")


SHOWN_BEFORE = 6
"""How many events of an earlier conversation are written when it is taken up again."""
HEARD_WITHIN_S = 5.0
"""How long an earlier conversation's open invocations may take to be read before somebody can type."""
HELP = """\
/approve [CALL] [COMMENT]    approve what waits; CALL when several do
/reject [CALL] [COMMENT]     reject it
/respond [CALL] {JSON}       answer a long-running call with this response
/pending                     what waits for a person
/state                       the state of the conversation
/events                      everything that was said
/quit                        leave, as Ctrl-D does; the conversation goes on
// at the beginning of a line sends it with one slash
Alt-Enter                    begin a further line of the same message"""

ANSWERS: dict[str, Action] = {"/approve": "approve", "/reject": "reject", "/respond": "respond"}

REFUSALS = (errors.QueueFull, errors.InvalidInput, Problem)
"""Errors of a message after which the next one may fare better."""
NOTHING_WAITS = "Nothing waits for a person in this conversation."


async def chat(
    ctx: CommandContext,
    agent: AgentName,
    session: Annotated[str | None, typer.Option(help="Name of the session; a new one if left out.")] = None,
    user: User = DEFAULT_USER,
    app: App = DEFAULT_APP,
    json: AsJson = False,
) -> Exit:
    """Converse with an agent. /help says what else can be typed. Lines can be piped in.

    Ctrl-D and Ctrl-C leave; the conversation goes on, and --session takes it up again.
    """
    name = f"chat-{uuid.uuid4().hex[:8]}" if session is None else session
    conversation = Chat(await ctx.connect(), await open_session(ctx, name, user, app, agent), ctx.out, ctx.target)
    try:
        return await conversation.run()
    except (asyncio.CancelledError, KeyboardInterrupt):
        conversation.say_how_to_return("\nNot watched any more; the conversation goes on")
        raise


class Chat:
    """One terminal's part in a session."""

    def __init__(self, client: AgentClient, session: Session, out: Output, target: Target) -> None:
        self._client, self._session, self._out, self._target = client, session, out, target
        self._lines = Lines()
        self._watch = Watch(client, out, session.id, write_waits=self._write_waits)
        self._mine: set[str] = set()
        """Invocations of messages typed here, whose text need not be repeated."""
        self._current: str | None = None
        """The invocation that is waited for before the next line is read."""
        self._changed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._failed = False
        self._over: set[str] = set()
        """Invocations that ended, and whose events were all written."""

    async def run(self) -> Exit:
        """Read lines and send them."""
        await self._greet()
        try:
            async with self._watch.watching():
                while (line := await self._next()) is not None:
                    if line.split(" ")[0] in ("/quit", "/exit"):
                        break
                    await self._do(line)
            if self._lines.typed:
                self.say_how_to_return("The conversation is kept")
            # A person has seen it; a script goes by the exit code.
            return Exit.FAILED if self._failed and not self._lines.typed else Exit.OK
        finally:
            if self._listening:
                self._listening.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await self._listening

    def say_how_to_return(self, what: str) -> None:
        """Say how this conversation is taken up again."""
        names = self._session.given
        command = self._target.chat_command(names.agent, names.session_id, names.user_id, names.app)
        self._out.remark(f"{what}: {command}")

    async def _greet(self) -> None:
        """Check that the session can be continued, and show how far it has come."""
        names, client = self._session.given, self._client
        existing = await describe_workflow(client.temporal, self._session.id)
        if existing is not None and existing.status is not WorkflowExecutionStatus.RUNNING:
            text = f"The session {names.session_id!r} is over; begin another one with another --session."
            raise Problem(Exit.SESSION_CLOSED, text)
        kept = (await existing.memo()).get(MEMO_SESSION) if existing else None
        if kept and kept.get("agent") not in (None, names.agent):
            raise Problem(
                Exit.USAGE,
                f"The session {names.session_id!r} was begun with the agent {kept['agent']!r}, and not "
                f"{names.agent!r}; name that one, or another --session.",
            )
        head = Text.assemble(
            (f"session {terminal.safe(names.session_id)}", "bold"), ("   /help says what can be typed", "dim")
        )
        record = {"session": names.session_id, "id": self._session.id, "existed": existing is not None}
        self._out.result(record, head)
        if existing is None:
            if not await is_polled(client):
                queue = client.task_queue
                self._out.remark(f"No worker polls {queue!r} so far; start one: waystation worker --agents DIR")
            return
        started = StartedInvocations(client.temporal, self._session.id)
        await started.caught_up()
        reported = set(started.reported)
        events = await self._session.events()
        for event in events[-SHOWN_BEFORE:] if not self._out.json else ():
            self._watch.write(event)
        self._listening = asyncio.create_task(self._listen(started, count_events(events), reported))
        await self._until_heard(self._listening, set(started.order) - reported)

    async def _until_heard(self, listening: asyncio.Task[None], ids: set[str]) -> None:
        """Wait until it is known what open invocations wait for, as the first line may be the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARD_WITHIN_S):
                while not ids <= self._watch.logs.keys() and not listening.done():
                    self._changed.clear()
                    await self._changed.wait()
        await self._watch.look_at_called()
        self._watch.report_waits()

    async def _listen(self, started: StartedInvocations, known: dict[str, int], reported: set[str]) -> None:
        stream = stream_session(self._client, started, known=known, passed_over=reported, partial=True)
        try:
            async with aclosing(with_pauses(stream, self._watch.pause)) as updates:
                async for update in updates:
                    if update is None:
                        await self._watch.look_at_called()
                    else:
                        self._watch.take(update.log, filter(self._is_shown, update.events))
                    self._watch.report_waits()
                    if update is not None and (ended := update.log.state.outcome.ended):
                        if ended not in ("completed", "continued"):
                            await self._report_failure(update.invocation.id)
                        self._over.add(update.invocation.id)
                    self._changed.set()
        finally:
            self._changed.set()

    def _is_shown(self, event: Event) -> bool:
        if self._out.json:
            return not event.partial
        if event.partial:  # a line that grows is written only while no other is typed
            return event.invocation_id == self._current
        has_text = any("text" in part for part in (event.content or {}).get("parts") or ())
        return not (self._lines.typed and event.author == "user" and event.invocation_id in self._mine and has_text)

    async def _report_failure(self, id: str) -> None:
        """Say why an invocation ended before it had an answer.

        Raises:
            Problem: No further message would have one, either: the workers do not have the agent.
        """
        self._watch.interrupt()
        try:
            await self._client.invocation(id).result()
        except WorkflowFailureError as error:
            kind, message = report_failure(self._out, error, invocation_id=id)
            self._failed = True
            if kind == errors.UnknownAgent.__name__ and repr(self._session.given.agent) in message:
                text = f"{message} No message here would be answered; begin with an agent that is served."
                raise Problem(Exit.FAILED, text) from None

    async def _next(self) -> str | None:
        """Return the next line; ends with the listening, which tells why."""
        self._current = None
        reading = asyncio.ensure_future(self._lines.next())
        watched = [task for task in (reading, self._listening) if task is not None]
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                self._check_listening()
            return await reading
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError, KeyboardInterrupt, Exception):
                await reading

    def _check_listening(self) -> None:
        if self._listening is None or not self._listening.done():
            return
        if error := self._listening.exception():
            raise error
        raise Problem(Exit.SESSION_CLOSED, f"The session {self._session.given.session_id!r} was closed.")

    async def _do(self, line: str) -> None:
        """Send a message, or do what a line that begins with a slash says."""
        is_command = line.startswith("/") and not line.startswith("//")
        try:
            if is_command:
                settled = await self._command(*line.partition(" ")[::2])
            else:
                settled = await self._say(line.removeprefix("/")) if line.strip() else None
        except errors.WaystationError as error:
            if not self._lines.typed or not (is_command or isinstance(error, REFUSALS)):
                raise
            self._out.remark(str(error))
            return
        if settled is not None:
            await self._until_settled(settled)

    async def _say(self, text: str) -> str:
        """Send a message; return the invocation that answers it."""
        try:
            sent = await self._session.send(text, message_id=f"chat-{uuid.uuid4().hex}", streaming=not self._out.json)
        except errors.MessageUnconfirmed:
            raise Problem(
                Exit.UNCONFIRMED,
                "No worker confirmed the message in time; perhaps it is taken when one comes. Start one: "
                "waystation worker --agents DIR. What was taken is told by `waystation session show`.",
            ) from None
        self._mine.add(sent.id)
        self._watch.notice()
        if self._out.json:
            self._out.record({"sent": {"invocation_id": sent.id, "status": sent.status}})
        elif sent.status == "queued" and any(
            not (log.state.outcome.ended or self._watch.is_waiting(id)) for id, log in self._watch.logs.items()
        ):
            self._out.remark("The session works on another message; this one is next in turn.")
        if self._listening is None:
            started = StartedInvocations(self._client.temporal, self._session.id)
            self._listening = asyncio.create_task(self._listen(started, {}, set()))
        return sent.id

    async def _command(self, name: str, rest: str) -> str | None:
        """Carry out a command; return the invocation that goes on, if any."""
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
                self._out.result({"state": state}, terminal.state(state))
            case "/events":
                for event in await self._session.events():
                    self._out.record({"event": event.to_json()}) if self._out.json else self._out.event(event)
            case "/approve" | "/reject" | "/respond":
                return await self._answer(ANSWERS[name], rest.strip())
            case _:
                raise Problem(Exit.USAGE, f"{name!r} is no command; /help lists them.")
        return None

    async def _answer(self, action: Action, rest: str) -> str | None:
        call, text = self._choose(rest)
        fields: JsonObject = {"comment": text} if text else {}
        if action == "respond":
            fields = {"response": _response(text)}
        invocation = self._client.invocation(call.invocation_id)
        # Answers what was shown, should the call be another by the time the answer arrives.
        receipt = await invocation.answer(action, call.function_call_id, by=login_name(), digest=call.digest, **fields)
        self._watch.mark_answered(call)
        if self._out.json:
            self._out.record({"answered": receipt})
        return call.invocation_id if call.invocation_id in self._watch.logs else None

    async def _until_settled(self, id: str) -> None:
        """Wait until an invocation is over, or waits for a person."""
        self._current = id
        while id not in self._over and not self._watch.is_waiting(id):
            self._check_listening()
            self._changed.clear()
            await self._changed.wait()
        self._watch.interrupt()

    def _label(self, call: PendingCall) -> str:
        """Return the name of a call, unique in the session: `2/fc-1` is the first call of its second invocation."""
        return f"{call.invocation_id.removeprefix(f'{self._session.id}/')}/{call.function_call_id}"

    def _choose(self, text: str) -> tuple[PendingCall, str]:
        """Return the call that a text names, or the only one that waits, and the rest of the text.

        Raises:
            Problem: Nothing waits, or several calls do and none is named.
        """
        name, _, rest = text.partition(" ")
        labels = {self._label(call): call for call in self._watch.calls}
        named = [call for label, call in labels.items() if name in (label, call.function_call_id)]
        if name in labels or len(named) == 1:
            return labels.get(name) or named[0], rest.strip()
        if not labels:
            raise Problem(Exit.UNKNOWN, NOTHING_WAITS)
        if len(labels) > 1:
            raise Problem(Exit.UNKNOWN, f"Say which call is answered; waiting: {', '.join(labels)}.")
        return self._watch.calls[0], text

    def _write_waits(self, calls: Sequence[PendingCall]) -> None:
        """Write calls, and how they are answered in place."""
        out = self._out
        for call in calls:
            name = terminal.safe(self._label(call))
            out.line()
            out.hanging(Text("waits for a person  ", style="bold"), [Text(terminal.asked(call), style="bold yellow")])
            out.facts([("call", f"{name}, asked by {terminal.safe(call.agent)}"), *terminal.facts(call)])
            if call.kind == "credential":
                command = self._target.answer_command("authorize", call.invocation_id, call.function_call_id)
                out.command("authorize", command)
            else:
                out.command("answer", [f"/approve {name}   /reject {name}"])


def _response(text: str) -> JsonObject:
    try:
        return parse_json_object(text)
    except ValueError as error:
        raise Problem(Exit.USAGE, f'{error}; write /respond {{"amount": 50}}.') from None
