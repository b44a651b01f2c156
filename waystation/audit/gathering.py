"""Accounts of an invocation and of the agents that it called, live or from exported histories; and how they compare."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from temporalio.client import WorkflowExecutionStatus, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from waystation.audit.account import account, resets
from waystation.audit.sheet import Fault, Sheet, Signer, sheet_of
from waystation.core.continued import Fetch
from waystation.core.errors import ForeignHistory
from waystation.core.ids import session_invocation
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.wire import SESSION_WORKFLOW
from waystation.history import (
    check_readable,
    decode_histories,
    describe_workflow,
    find_session_runs,
    log_from_runs,
    read_history_file,
)

if TYPE_CHECKING:
    from waystation.client import AgentClient


@dataclass(slots=True)
class Gathered:
    """Accounts of invocations, by their ids."""

    arguments: bool = True
    accounts: dict[str, list[JsonObject]] = field(default_factory=dict)
    closed: bool = True
    """Whether all are over."""
    lacking: list[str] = field(default_factory=list)
    """Agents that were called, and whose histories are not there."""

    def add(self, log: Log, histories: Iterable[WorkflowHistory]) -> list[str]:
        """Take the account of a log, which these histories make; return the invocations that it started."""
        each = account(log, arguments=self.arguments), resets(histories)
        told = self.accounts[log.invocation_id] = list(heapq.merge(*each, key=lambda entry: entry["time"]))
        self.closed = self.closed and log.ended is not None
        return [entry["called"] for entry in told if entry["kind"] == "started" and "called" in entry]

    def sheet(self, signer: Signer | None = None) -> list[JsonObject]:
        """Return the lines of a file of all accounts."""
        return sheet_of(
            self.accounts, closed=self.closed, lacking=self.lacking, arguments=self.arguments, signer=signer
        )


async def of_invocation(client: "AgentClient", id: str, *, arguments: bool = True) -> Gathered:
    """Gather the accounts of an invocation, or all of a session, and of all agents below. No worker has to run.

    Raises:
        ForeignHistory: It is no invocation of Waystation, or a session that has none.
        RPCError: The server does not know it.
        StoreFailed: Part of a history was archived, and is not in the client's store.
    """
    gathered = Gathered(arguments)
    ids = await _in_session(client, id, gathered) or [id]
    for each in ids:
        try:
            histories = await decode_histories(
                await client.invocation(each).histories(), client.temporal.data_converter
            )
            ids += gathered.add(await log_from_runs(histories, client.blobs.get), histories)
        except RPCError as error:
            if each == id or error.status is not RPCStatusCode.NOT_FOUND:
                raise
            gathered.lacking.append(each)
    return gathered


async def _in_session(client: "AgentClient", id: str, gathered: Gathered) -> list[str]:
    """Return the invocations of a session, in their order; none for what is no session."""
    found = await describe_workflow(client.temporal, id)
    if found is None or found.workflow_type != SESSION_WORKFLOW:
        return []
    gathered.closed = found.status is not WorkflowExecutionStatus.RUNNING
    runs = {run.workflow_id.removeprefix(f"{id}/") for run in await find_session_runs(client.temporal, id)}
    numbers = sorted(int(name) for name in runs if name.isdecimal())
    if not numbers:
        raise ForeignHistory(f"The session {id!r} has no invocation.")
    return [session_invocation(id, number) for number in numbers]


async def of_files(
    paths: Iterable[Path], converter: DataConverter, fetch: Fetch, *, arguments: bool = True
) -> Gathered:
    """Gather the accounts of histories in files, as `waystation history` writes them.

    Args:
        paths: One file for each invocation.
        converter: Reads their payloads.
        fetch: Reads parts of them that were archived.
        arguments: Whether to tell arguments.

    Raises:
        ForeignHistory: One is no invocation of Waystation, or damaged.
        StoreFailed: Part of one was archived, and is not to be had.
        OSError: One cannot be read.
    """
    gathered = Gathered(arguments)
    called: list[str] = []
    for path in paths:
        histories = await decode_histories(read_history_file(path).histories, converter)
        check_readable(histories, repr(str(path)))
        called += gathered.add(await log_from_runs(histories, fetch), histories)
    gathered.lacking = [id for id in called if id not in gathered.accounts]
    return gathered


def compare(sheet: Sheet, live: Gathered) -> int:
    """Look whether a file tells what histories say; return how many entries they have that are newer than the file.

    Raises:
        Fault: It tells something else.
    """
    newer = 0
    for invocation in sheet.invocations:
        told, recorded = sheet.of(invocation), live.accounts.get(invocation)
        if recorded is None:
            raise Fault(1, f"nothing is known any more of the invocation {invocation!r} that it names")
        for number, entry in enumerate(told):
            if number >= len(recorded) or entry != recorded[number]:
                raise Fault(_line(sheet, entry), f"the history of {invocation!r} says something else")
        if sheet.end.get("closed") and len(recorded) > len(told):
            raise Fault(int(sheet.end["n"]) + 1, f"the history of {invocation!r} goes on after what the file tells")
        newer += len(recorded) - len(told)
    if strangers := [e for e in sheet.entries if e.get("invocation") not in sheet.invocations]:
        raise Fault(_line(sheet, strangers[0]), "it is of an invocation that the first line does not name")
    return newer


def same_start(sheet: Sheet, id: str) -> None:
    """Look whether a file is about an invocation.

    Raises:
        ForeignHistory: It is about another.
    """
    if id not in sheet.invocations:
        raise ForeignHistory(
            f"The file is about {', '.join(map(repr, sheet.invocations)) or 'nothing'}, not about {id!r}."
        )


def _line(sheet: Sheet, entry: JsonObject) -> int:
    return next(n for n, each in enumerate(sheet.entries, 2) if each is entry)
