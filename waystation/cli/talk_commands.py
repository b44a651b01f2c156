"""What can be typed in a conversation besides messages."""

from contextlib import suppress
from dataclasses import dataclass

from waystation.cli.answers import user
from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.cli.target import Target
from waystation.cli.waits import Waits
from waystation.client import AgentClient, Session
from waystation.core.answer import Action, PendingCall
from waystation.core.payload import JsonObject, decode
from waystation.presentation import terminal

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


@dataclass(frozen=True, slots=True)
class Done:
    """What a command has done."""

    quit: bool = False
    answered: str | None = None
    """Id of the invocation that goes on."""


class Commands:
    """Carries them out."""

    def __init__(self, client: AgentClient, session: Session, out: Output, target: Target, waits: Waits) -> None:
        self._client, self._session, self._out, self._target, self._waits = client, session, out, target, waits

    async def do(self, line: str) -> Done:
        """Carry out one line that begins with a slash.

        Raises:
            WaystationError: It was refused, or cannot be understood.
        """
        name, _, rest = line.partition(" ")
        match name:
            case "/quit" | "/exit":
                return Done(quit=True)
            case "/help":
                for text in HELP.splitlines():
                    self._out.line(text)
            case "/pending":
                self._pending()
            case "/state":
                await self._state()
            case "/events":
                await self._events()
            case "/approve" | "/reject":
                return await self._answer("approve" if name == "/approve" else "reject", rest.strip())
            case "/respond":
                return await self._answer("respond", rest.strip())
            case _:
                raise Problem(Exit.USAGE, f"{name!r} is no command; /help lists them.")
        return Done()

    def _pending(self) -> None:
        calls = self._waits.calls
        if self._out.json:
            self._out.record({"pending": [call.model_dump(mode="json") for call in calls]})
        elif calls:
            self._waits.write(self._out, self._target, calls)
        else:
            self._out.line("Nothing waits for a person in this conversation.")

    async def _state(self) -> None:
        state = await self._session.state()
        if self._out.json:
            self._out.record({"state": state})
        else:
            self._out.line(terminal.state(state))

    async def _events(self) -> None:
        for event in await self._session.events():
            self._out.record({"event": event.to_json()}) if self._out.json else self._out.event(event)

    async def _answer(self, action: Action, rest: str) -> Done:
        call, said = self._meant(rest)
        fields: JsonObject = {}
        if action == "respond":
            fields["response"] = _response(said)
        elif said:
            fields["comment"] = said
        invocation = self._client.invocation(call.invocation_id)
        # What was shown is what is answered, should the call be another by the time the answer arrives.
        receipt = await invocation.answer(action, call.function_call_id, by=user(), digest=call.digest, **fields)
        self._waits.answer(call)
        if self._out.json:
            self._out.record({"answered": receipt})
        return Done(answered=call.invocation_id)

    def _meant(self, rest: str) -> tuple[PendingCall, str]:
        """Return which call is answered, and what follows its name."""
        first, _, more = rest.partition(" ")
        if first and (call := self._waits.named(first)):
            return call, more.strip()
        calls = self._waits.calls
        if not calls:
            raise Problem(Exit.UNKNOWN, "Nothing waits for a person in this conversation.")
        if len(calls) > 1:
            names = ", ".join(self._waits.label(call) for call in calls)
            raise Problem(Exit.UNKNOWN, f"Say which call is answered; waiting: {names}.")
        return calls[0], rest


def _response(text: str) -> JsonObject:
    with suppress(ValueError):
        found = decode(text)
        if isinstance(found, dict):
            return found
    raise Problem(Exit.USAGE, f'{text!r} is no JSON object; write /respond {{"amount": 50}}.')
