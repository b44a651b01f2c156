"""A conversation in a terminal: what is typed goes to a session, what happens in the session is written."""

import asyncio
import uuid
from contextlib import aclosing, suppress

from rich.text import Text
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from waystation.cli.exits import Exit, Problem
from waystation.cli.growing import GrowingText
from waystation.cli.lines import Lines
from waystation.cli.output import Output
from waystation.cli.retrying import Retrying
from waystation.cli.talk_commands import Commands
from waystation.cli.target import Target
from waystation.cli.waits import Waits
from waystation.cli.watch import is_polled, why
from waystation.client import AgentClient, Session, SessionUpdate, StartedInvocations, count_events, stream_session
from waystation.core import errors
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.wire import MEMO_SESSION
from waystation.history import describe_workflow
from waystation.presentation import terminal

SHOWN_BEFORE = 6
"""How many events of an earlier conversation are written when it is taken up again."""
CHILDREN_S = 1.0
"""How often called agents are asked what they wait for; their waits are not in their caller's history."""
HEARD_WITHIN_S = 5.0
"""How long an earlier conversation's open invocations may take to be read before somebody can type."""


async def talk(
    client: AgentClient,
    out: Output,
    target: Target,
    *,
    agent: str,
    session_id: str | None,
    user_id: str,
    app: str,
) -> Exit:
    """Converse until there is no more input."""
    name = f"chat-{uuid.uuid4().hex[:8]}" if session_id is None else session_id
    session = client.session(agent=agent, session_id=name, user_id=user_id, app=app)
    conversing = Talk(client, session, out, target)
    try:
        return await conversing.run()
    except (asyncio.CancelledError, KeyboardInterrupt):
        conversing.say_how_to_return("\nNot watched any more; the conversation goes on")
        raise


class Talk:
    """One terminal's part in a session."""

    def __init__(self, client: AgentClient, session: Session, out: Output, target: Target) -> None:
        self._client, self._session, self._out, self._target = client, session, out, target
        self._lines = Lines()
        self.waits = Waits(session.id)
        self._commands = Commands(client, session, out, target, self.waits)
        self._logs: dict[str, Log] = {}
        self._texts: dict[str, GrowingText] = {}
        self._retrying = Retrying(client, out, session.id, interrupt=self._interrupt)
        self._mine: set[str] = set()
        """Invocations of messages typed here, whose text need not be repeated."""
        self._current: str | None = None
        """The invocation that is waited for before the next line is read."""
        self._changed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._failed = False
        self._over: set[str] = set()
        """Invocations that ended, and of which all was told."""

    async def run(self) -> Exit:
        """Read lines and send them."""
        await self._greet()
        try:
            async with self._retrying.watching():
                await self._converse()
            if self._lines.typed:
                self.say_how_to_return("The conversation is kept")
            # A person has seen it; a script goes by the exit code.
            return Exit.FAILED if self._failed and not self._lines.typed else Exit.OK
        finally:
            for task in (self._listening, self._looking):
                if task:
                    task.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await task

    async def _converse(self) -> None:
        while (line := await self._next()) is not None:
            if not line.strip():
                continue
            if line.startswith("/") and not line.startswith("//"):
                if not await self._command(line):
                    break
            else:
                await self._say(line.removeprefix("/"))

    def say_how_to_return(self, what: str) -> None:
        """Say how this conversation is taken up again."""
        given = self._session.given
        self._out.remark(
            f"{what}: {self._target.chat_command(given.agent, given.session_id, given.user_id, given.app)}"
        )

    async def _greet(self) -> None:
        given = self._session.given
        found = await describe_workflow(self._client.temporal, self._session.id)
        if found is not None and found.status is not WorkflowExecutionStatus.RUNNING:
            raise Problem(
                Exit.SESSION_CLOSED,
                f"The session {given.session_id!r} is over; begin another one with another --session.",
            )
        kept = (await found.memo()).get(MEMO_SESSION) if found else None
        if kept and kept.get("agent") not in (None, given.agent):
            raise Problem(
                Exit.USAGE,
                f"The session {given.session_id!r} was begun with the agent {kept['agent']!r}, and not "
                f"{given.agent!r}; name that one, or another --session.",
            )
        if self._out.json:
            self._out.record({"session": given.session_id, "id": self._session.id, "existed": found is not None})
        else:
            head = f"session {terminal.safe(given.session_id)}"
            self._out.line(Text.assemble((head, "bold"), ("   /help says what can be typed", "dim")))
        if found is not None:
            await self._take_up()
        elif not await is_polled(self._client):
            self._out.remark(
                f"No worker polls {self._client.task_queue!r} so far; start one: waystation worker --agents DIR"
            )

    async def _take_up(self) -> None:
        """Show how far the conversation has come, and listen to the rest."""
        begun = StartedInvocations(self._client.temporal, self._session.id)
        await begun.caught_up()
        told = set(begun.reported)
        events = await self._session.events()
        for event in events[-SHOWN_BEFORE:] if not self._out.json else ():
            self._write(event)
        self._listen(begun, count_events(events), told)
        await self._until_heard(set(begun.order) - told)

    async def _until_heard(self, ids: set[str]) -> None:
        """Wait until it is known what open invocations wait for, as the first line may be the answer."""
        assert self._listening is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARD_WITHIN_S):
                while not ids <= self._logs.keys() and not self._listening.done():
                    self._changed.clear()
                    await self._changed.wait()
        await self._look_once()

    def _listen(self, begun: StartedInvocations, known: dict[str, int], told: set[str]) -> None:
        self._listening = asyncio.create_task(self._hear(begun, known, told))
        self._looking = asyncio.create_task(self._look())

    async def _hear(self, begun: StartedInvocations, known: dict[str, int], told: set[str]) -> None:
        listening = stream_session(self._client, begun, known=known, passed_over=told, partial=True)
        async with aclosing(listening) as heard:
            async for one in heard:
                self._take(one)
                if one.log.ended and one.log.ended.status not in ("completed", "continued"):
                    await self._fail(one.invocation.id)
                if one.log.ended:
                    self._over.add(one.invocation.id)
                    self._changed.set()
        self._changed.set()

    async def _look(self) -> None:
        """See what called agents wait for, as long as some are at work."""
        while True:
            await asyncio.sleep(CHILDREN_S)
            await self._look_once()

    async def _look_once(self) -> None:
        calling = [id for id, log in self._logs.items() if not log.ended and _calls_agents(log)]
        if calling:
            self.waits.of_called(await self._client.approvals.pending(below=self._session.id), calling)
            self._tell()

    def _take(self, one: SessionUpdate) -> None:
        id = one.invocation.id
        self._logs[id] = one.log
        self._retrying.came(one.log)
        for event in one.events:
            # A line that grows is written only while no other is typed.
            if not event.partial or (id == self._current and not self._out.json):
                self._write(event)
        self.waits.of_log(one.log)
        self._tell()

    def _write(self, event: Event) -> None:
        id = event.invocation_id
        if self._out.json:
            self._out.record({"event": event.to_json()})
            return
        if self._lines.typed and event.author == "user" and id in self._mine and _is_said(event):
            return
        for other, text in self._texts.items():
            if other != id:
                text.interrupt()
        self._texts.setdefault(id, GrowingText(self._out)).write(event)

    def _tell(self) -> None:
        self._changed.set()
        if new := self.waits.news():
            self._interrupt()
            if self._out.json:
                self._out.record({"pending": [call.model_dump(mode="json") for call in new]})
            else:
                self.waits.write(self._out, self._target, new)
                self._out.line()

    def _interrupt(self) -> None:
        for text in self._texts.values():
            text.interrupt()

    async def _fail(self, id: str) -> None:
        """Say why an invocation ended before it had an answer.

        Raises:
            Problem: No further message would have one, either: the workers do not have the agent.
        """
        self._interrupt()
        try:
            await self._client.invocation(id).result()
        except WorkflowFailureError as error:
            kind, message = why(error)
            self._failed = True
            if self._out.json:
                self._out.record({"error": {"invocation_id": id, "type": kind, "message": message}})
            else:
                self._out.line(f"failed: {kind}", style="bold red")
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

    async def _say(self, line: str) -> None:
        try:
            sent = await self._session.send(line, message_id=f"chat-{uuid.uuid4().hex}", streaming=not self._out.json)
        except (errors.QueueFull, errors.InvalidInput) as error:  # the next line may fare better
            if not self._lines.typed:
                raise
            self._out.remark(str(error))
            return
        except errors.MessageUnconfirmed:
            problem = Problem(
                Exit.UNCONFIRMED,
                "No worker confirmed the message in time; perhaps it is taken when one comes. Start one: "
                "waystation worker --agents DIR. What was taken is told by `waystation session show`.",
            )
            if not self._lines.typed:
                raise problem from None
            self._out.remark(str(problem))
            return
        self._mine.add(sent.id)
        self._retrying.came()
        if self._out.json:
            self._out.record({"sent": {"invocation_id": sent.id, "status": sent.status}})
        elif sent.status == "queued" and any(not (log.ended or self.waits.below(id)) for id, log in self._logs.items()):
            self._out.remark("The session works on another message; this one is next in turn.")
        if self._listening is None:
            begun = StartedInvocations(self._client.temporal, self._session.id)
            self._listen(begun, {}, set())
        await self._until_settled(sent.id)

    async def _command(self, line: str) -> bool:
        """Do what a line says; return whether to go on."""
        try:
            done = await self._commands.do(line)
        except errors.WaystationError as error:
            if not self._lines.typed:
                raise
            self._out.remark(str(error))
            return True
        if done.answered is not None and done.answered.count("/") == self._session.id.count("/") + 1:
            await self._until_settled(done.answered)
        return not done.quit

    async def _until_settled(self, id: str) -> None:
        """Wait until an invocation is over, or waits for a person."""
        self._current = id
        while True:
            self._changed.clear()
            if id in self._over or self.waits.below(id):
                break
            assert self._listening is not None
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait((changed, self._listening), return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            self._check_listening()
        if (text := self._texts.get(id)) is not None:
            text.interrupt()


def _is_said(event: Event) -> bool:
    return any("text" in part for part in (event.content or {}).get("parts") or ())


def _calls_agents(log: Log) -> bool:
    return any(call.call.kind == "agent" for call in log.performing())
