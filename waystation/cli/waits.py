"""What waits for a person in a conversation, and by which short names it is answered in place."""

from collections.abc import Callable, Iterable

from rich.text import Text

from waystation.cli.output import Output
from waystation.cli.target import Target
from waystation.core.answer import PendingCall
from waystation.core.log import Log
from waystation.presentation import terminal

Key = tuple[str, str]
"""Id of an invocation, and of a call in it."""


def key_of(call: PendingCall) -> Key:
    """Return what tells a call from all others."""
    return call.invocation_id, call.function_call_id


class Waits:
    """The calls that wait in a session, and those that were answered here."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._calls: dict[Key, PendingCall] = {}
        self._told: set[Key] = set()
        self._answered: set[Key] = set()

    @property
    def calls(self) -> list[PendingCall]:
        """Those that wait, oldest first."""
        return sorted(self._calls.values(), key=lambda call: (call.requested_at, call.function_call_id))

    def label(self, call: PendingCall) -> str:
        """Return the name of a call, unique in the session: `2/fc-1` is the first call of its second invocation."""
        return f"{call.invocation_id.removeprefix(f'{self._session}/')}/{call.function_call_id}"

    def named(self, name: str) -> PendingCall | None:
        """Return the call of such a name; without the invocation, if only one is meant."""
        fitting = [call for call in self.calls if name in (self.label(call), call.function_call_id)]
        exact = [call for call in fitting if self.label(call) == name]
        return next(iter(exact or (fitting if len(fitting) == 1 else ())), None)

    def answer(self, call: PendingCall) -> None:
        """Note that a call was answered, which its invocation's history does not say yet."""
        self._answered.add(key_of(call))
        self._calls.pop(key_of(call), None)

    def of_log(self, log: Log) -> None:
        """Take what an invocation itself waits for."""
        self._replace(lambda key: key[0] == log.invocation_id, [] if log.busy or log.ended else log.pending())

    def of_called(self, calls: Iterable[PendingCall], callers: Iterable[str]) -> None:
        """Take what agents wait for that these invocations called."""
        prefixes = tuple(f"{caller}/" for caller in callers)
        below = [call for call in calls if call.invocation_id.startswith(prefixes)] if prefixes else []
        self._replace(lambda key: key[0].count("/") > self._session.count("/") + 1, below)

    def below(self, invocation_id: str) -> bool:
        """Whether an invocation, or an agent that it called, waits."""
        return any(key[0] == invocation_id or key[0].startswith(f"{invocation_id}/") for key in self._calls)

    def news(self) -> list[PendingCall]:
        """Return what waits and was not told before."""
        new = [call for call in self.calls if key_of(call) not in self._told]
        self._told.update(key_of(call) for call in new)
        return new

    def write(self, out: Output, target: Target, calls: Iterable[PendingCall]) -> None:
        """Write calls, and how they are answered in place."""
        for call in calls:
            name = terminal.safe(self.label(call))
            out.line()
            out.hanging(Text("waits for a person  ", style="bold"), [Text(terminal.asked(call), style="bold yellow")])
            for label, text in (("call", f"{name}, asked by {terminal.safe(call.agent)}"), *terminal.facts(call)):
                out.hanging(Text(f"  {label:8} ", style="dim"), [Text(text)])
            if call.kind == "credential":
                out.command("authorize", target.answer_command("authorize", call.invocation_id, call.function_call_id))
            else:
                out.command("answer", [f"/approve {name}   /reject {name}"])

    def _replace(self, meant: Callable[[Key], bool], calls: Iterable[PendingCall]) -> None:
        self._calls = {key: call for key, call in self._calls.items() if not meant(key)}
        self._calls.update({key_of(call): call for call in calls if key_of(call) not in self._answered})
