"""`waystation pending`: what waits for people."""

import re
from dataclasses import dataclass
from datetime import timedelta

from rich import box
from rich.table import Table
from rich.text import Text

from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.cli.retrying import Retrying
from waystation.cli.target import Target, quoted
from waystation.client import AgentClient
from waystation.core.answer import PendingCall
from waystation.presentation import policy_terms, terminal

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
MIN_CALL = 24
"""Columns for what is called; where there are fewer beside the ids, each call is told in lines of its own."""
MAX_LISTED = 50
"""Calls of which a person is shown so many, to choose from or to agree to."""
WIDE = 110
"""From so many columns on there is room for who asks."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which calls are meant; None leaves it open."""

    agent: str | None = None
    tool: str | None = None
    person: str | None = None
    older_than: str | None = None
    below: str | None = None

    async def calls(self, client: AgentClient) -> list[PendingCall]:
        """Return those that wait, oldest first.

        Raises:
            Problem: An age cannot be read.
        """
        people = self.person.split(",") if self.person else None
        age = duration(self.older_than) if self.older_than else None
        found = client.approvals.each(agent=self.agent, tool=self.tool, person=people, older_than=age, below=self.below)
        return sorted([call async for call in found], key=lambda call: call.requested_at)

    def __bool__(self) -> bool:
        return any((self.agent, self.tool, self.person, self.older_than, self.below))


def duration(text: str) -> timedelta:
    """Return a length of time, given as such as `90s`, `30m`, `2h` or `1d`.

    Raises:
        Problem: It is none.
    """
    found = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if not found:
        raise Problem(Exit.USAGE, f"{text!r} is no length of time; write such as 90s, 30m, 2h or 1d.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


async def pending(client: AgentClient, out: Output, target: Target, *, id: str | None, wanted: Wanted) -> Exit:
    """Write what waits: in one invocation and the agents it called, or in the whole namespace."""
    if id is None:
        waiting = await wanted.calls(client)
    elif wanted:
        raise Problem(Exit.USAGE, "Name an invocation, or say which calls are meant by options; not both.")
    else:
        waiting = [*await client.invocation(id).pending(), *await client.approvals.pending(below=id)]
    if out.json:
        for call in waiting:
            out.record(call.model_dump(mode="json"))
    elif id is not None and waiting:
        out.waits(waiting, target)
    elif waiting:
        listing(out, target, waiting)
    else:
        where = terminal.safe(id) if id else target.where()
        out.line(f"Nothing{' like that' if wanted else ''} waits for a person in {where}.")
    if id is not None and not waiting:
        await Retrying(client, out, id).look()
    return Exit.OK


def listing(out: Output, target: Target, calls: list[PendingCall], *, numbered: bool = False) -> None:
    """Write many calls briefly, in a table where that fits."""
    ids = [quoted(call.approval_id) for call in calls]
    width = out.console.width
    columns = 24 if width < WIDE else 44
    if width - max(map(len, ids)) - columns < MIN_CALL:
        for number, call in enumerate(calls, 1):
            _brief(out, call, f"{number}  " if numbered else "")
    else:
        out.table(_table(calls, ids, wide=width >= WIDE, numbered=numbered))
    if not numbered:
        first = {terminal.answers(call)[0]: call for call in reversed(calls)}
        for action, call in first.items():
            out.command(action, target.approval_command(action, call.approval_id))


def _table(calls: list[PendingCall], ids: list[str], *, wide: bool, numbered: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=False)
    if numbered:
        table.add_column("#", justify="right", no_wrap=True)
    table.add_column("id", no_wrap=True)
    table.add_column("call", ratio=1, overflow="fold", style="bold yellow")
    if wide:
        table.add_column("asked by", overflow="fold", max_width=18)
    table.add_column("waits", no_wrap=True, justify="right")
    table.add_column("left", no_wrap=True, justify="right")
    table.add_column("who", overflow="fold", max_width=24 if wide else 14)
    for number, (call, id) in enumerate(zip(calls, ids, strict=True), 1):
        row = [Text(id), Text(terminal.asked(call)), Text(policy_terms.waited(call)), Text(policy_terms.left(call))]
        row.append(Text(policy_terms.who(call), style="dim"))
        if wide:
            row.insert(2, Text(f"{terminal.safe(call.agent)}, for {terminal.safe(call.requester or call.user_id)}"))
        table.add_row(*([Text(str(number))] if numbered else []), *row)
    return table


def _brief(out: Output, call: PendingCall, number: str) -> None:
    out.line(Text(f"{number}{terminal.asked(call)}", style="bold yellow"))
    out.line(Text(f"  {terminal.safe(call.approval_id)}"))
    about = f"waits {policy_terms.waited(call)}, {policy_terms.left(call)} left; asked by {terminal.safe(call.agent)}"
    out.hanging(Text("  "), [Text(f"{about}; {policy_terms.who(call)}", style="dim")])
