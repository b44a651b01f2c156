"""Whether this build can continue everything that is open in a namespace."""

import asyncio
import base64
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from temporalio.api.history.v1 import History
from temporalio.client import WorkflowExecution, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from waystation.client import AgentClient
from waystation.core import SCOPE_WORKFLOW, SESSION_WORKFLOW, WORKFLOW, JsonObject, StoreFailed
from waystation.history import decode_histories
from waystation.storage import offloading, shortened

KINDS = " OR ".join(f"WorkflowType = '{name}'" for name in (WORKFLOW, SESSION_WORKFLOW, SCOPE_WORKFLOW))
OPEN = f"ExecutionStatus = 'Running' AND ({KINDS})"
CLOSED = f"ExecutionStatus != 'Running' AND ({KINDS})"
PAGE = 200
START_LIMIT_S = 120.0
"""How long a process may take to load the agents."""
LIMIT_S = 120.0
"""How long the replay of one history may take: one of 50,000 events takes some seconds."""
PROGRAM = (sys.executable, "-m", "waystation.replay.compatibility_check")
_MAX_ANSWER = 2**26
"""Bytes of one answer of that program: one line of JSON."""
_STDERR_CHARS = 400


Verdict: TypeAlias = Literal["replays", "differs", "misfit", "unchecked", "lacking", "vanished"]
"""`differs`: this build would do otherwise than was recorded. `misfit`: the agents at hand cannot go on with it.
`unchecked`: replaying it hung, or took its process down. `lacking`: large values are not in the store. `vanished`: the
server no longer has it."""
BREAKS: frozenset[Verdict] = frozenset({"differs", "misfit", "unchecked", "lacking"})
"""What speaks against a build. What could not be looked at does, too: nobody knows."""
MAX_FINDINGS = 1_000
"""So many are kept, whatever the number of invocations; all are counted."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is to be known of one workflow that does not simply replay."""

    id: str
    run_id: str
    kind: str
    """The workflow's type."""
    verdict: Verdict
    problem: str = ""
    """A line."""
    divergence: JsonObject | None = None
    """Where this build parts from what was recorded, as `Divergence.to_json` says it."""
    misfits: Sequence[JsonObject] = ()
    """What the agents at hand lack."""

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass(kw_only=True)
class GateReport:
    """What came of a gate."""

    tools_checked: bool
    """Whether it was looked at the agents, too."""
    counts: Counter[Verdict] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    """Those that do not simply replay, at most `MAX_FINDINGS`."""
    problems: Sequence[str] = ()
    """Why agents could not be loaded; nothing was replayed then."""
    sampled: int = 0
    """How many of those were closed."""

    @property
    def checked(self) -> int:
        """How many workflows were looked at."""
        return self.counts.total()

    @property
    def passes(self) -> bool:
        """Whether nothing speaks against deploying this build."""
        return not self.problems and not any(self.counts[verdict] for verdict in BREAKS)

    def add(self, finding: Finding) -> None:
        """Count one workflow; keep the finding unless it simply replays."""
        self.counts[finding.verdict] += 1
        if finding.verdict != "replays" and len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        return {
            "passes": self.passes,
            "checked": self.checked,
            "sampled": self.sampled,
            "counts": dict(self.counts),
            "tools_checked": self.tools_checked,
            "problems": list(self.problems),
            "findings": [finding.to_json() for finding in self.findings],
        }


async def gate(
    client: AgentClient,
    *,
    agents: Sequence[Path] = (),
    sample: int = 0,
    processes: int | None = None,
    limit_s: float = LIMIT_S,
    progress: Callable[[GateReport, int], None] | None = None,
    program: Sequence[str] = PROGRAM,
) -> GateReport:
    """Replay every open invocation, session and scope of a namespace against this build.

    In processes of their own, so that one history that hangs or crashes is reported like any other. No more histories
    are held than are worked on.

    Args:
        client: Of the namespace; with the store of its workers.
        agents: Folders with the agents to be deployed. With them it is looked, too, whether the tools are there that
            open calls need, and take their arguments.
        sample: Of how many of those that were closed last to do the same.
        processes: How many processes replay; by default one for each core.
        limit_s: How long the replay of one may take.
        progress: Called after each, with what was found so far and how many there are in all.
        program: What replays; takes the folders as arguments.

    Raises:
        RPCError: The server does not answer.
        RuntimeError: The replaying processes do not start.
    """
    report = GateReport(tools_checked=bool(agents))
    total = (await client.temporal.count_workflows(OPEN)).count
    count = processes or os.cpu_count() or 1
    replicas = [Replica([*program, *map(str, agents)], limit_s) for _ in range(count)]
    try:
        problems = await asyncio.gather(*(replica.start() for replica in replicas))
        if problems[0]:
            report.problems = problems[0]
            return report
        for query, limit in ((OPEN, None), (CLOSED, sample)):
            if limit == 0:
                continue
            found = client.temporal.list_workflows(query, page_size=PAGE, limit=limit)
            before = report.checked
            await _each(client, found, replicas, report, lambda: progress and progress(report, total))
            report.sampled = report.checked - before if query == CLOSED else 0
    finally:
        for replica in replicas:
            await replica.stop()
    return report


async def _each(
    client: AgentClient,
    executions: AsyncIterator[WorkflowExecution],
    replicas: Sequence["Replica"],
    report: GateReport,
    progress: Callable[[], object],
) -> None:
    """Look at each workflow; while one is replayed by each process, another one is fetched for it."""
    next_one = asyncio.Lock()

    async def work(replica: Replica) -> None:
        while True:
            async with next_one:
                execution = await anext(executions, None)
            if execution is None:
                return
            said = await _judged(client, execution, replica)
            report.add(Finding(id=execution.id, run_id=execution.run_id, kind=execution.workflow_type, **said))
            progress()

    workers = [asyncio.create_task(work(replica)) for replica in (*replicas, *replicas)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _judged(client: AgentClient, execution: WorkflowExecution, replica: "Replica") -> JsonObject:
    handle = client.temporal.get_workflow_handle(execution.id, run_id=execution.run_id)
    converter = offloading(client.blobs, short_forms=True, converter=client.temporal.data_converter)
    try:
        [history] = await decode_histories([await handle.fetch_history()], converter)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return {"verdict": "vanished", "problem": "The server no longer has it."}
    except StoreFailed as error:
        return {"verdict": "lacking", "problem": str(error)}
    if lacking := shortened(converter):
        first = next(iter(lacking.values()))
        return {"verdict": "lacking", "problem": f"{len(lacking)} of its large values cannot be had: {first}"}
    async with replica.idle:
        return await replica.judged(history)


class Replica:
    """A process that replays one history after another; one that hangs or crashes is followed by another."""

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self._command, self._limit_s = command, limit_s
        self._process: asyncio.subprocess.Process | None = None
        self._errors: Any = None
        self.idle = asyncio.Lock()
        """Held while a history is replayed."""

    async def start(self) -> list[str]:
        """Start it; return why it cannot load the agents.

        Raises:
            RuntimeError: It does not start.
        """
        self._errors = self._errors or tempfile.TemporaryFile()  # noqa: SIM115  # closed by `stop`
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            limit=_MAX_ANSWER,
            # The very code that runs here, however it was found.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            said = await asyncio.wait_for(self._exchange(), START_LIMIT_S)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            await self._kill()
            raise RuntimeError(f"The process that replays did not start: {self._last_words()}") from None
        problems: list[str] = said["problems"]
        return problems

    async def judged(self, history: WorkflowHistory) -> JsonObject:
        """Return what is to be said of a history."""
        if self._process is None:
            await self.start()
        events = base64.b64encode(History(events=history.events).SerializeToString()).decode()
        request = json.dumps({"id": history.workflow_id, "history": events}).encode() + b"\n"
        try:
            return await asyncio.wait_for(self._exchange(request), self._limit_s)
        except TimeoutError:
            await self._kill()
            return {"verdict": "unchecked", "problem": f"Its replay hung for {self._limit_s:g} s."}
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._kill()
            return {"verdict": "unchecked", "problem": f"Its replay crashed: {self._last_words()}"}

    async def _exchange(self, request: bytes = b"") -> JsonObject:
        """Send a line, if any, and return the line that the process answers."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request)
        await self._process.stdin.drain()
        answer: JsonObject = json.loads(await self._process.stdout.readuntil())
        return answer

    def _last_words(self) -> str:
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - _STDERR_CHARS, 0))
        said = " ".join(self._errors.read().decode(errors="replace").split())
        return said or "it said nothing."

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def stop(self) -> None:
        """End it."""
        await self._kill()
        if self._errors is not None:
            self._errors.close()
