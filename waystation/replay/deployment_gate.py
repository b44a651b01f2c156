"""Check whether this build can continue all open workflows of a namespace."""

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
from waystation.storage import list_shortened, offloading

KINDS = " OR ".join(f"WorkflowType = '{name}'" for name in (WORKFLOW, SESSION_WORKFLOW, SCOPE_WORKFLOW))
OPEN = f"ExecutionStatus = 'Running' AND ({KINDS})"
CLOSED = f"ExecutionStatus != 'Running' AND ({KINDS})"
PAGE = 200
START_LIMIT_S = 120.0
"""Maximum time for a process to load the agents."""
LIMIT_S = 120.0
"""Maximum time to replay one history. One of 50,000 events takes some seconds."""
PROGRAM = (sys.executable, "-m", "waystation.replay.compatibility_check")
_MAX_ANSWER = 2**26
"""Maximum length of an answer of that program, one line of JSON, in bytes."""
_STDERR_CHARS = 400


Verdict: TypeAlias = Literal["replays", "differs", "misfit", "unchecked", "lacking", "vanished"]
"""`differs`: this build would diverge from the recording. `misfit`: the present agents cannot continue it. `unchecked`:
its replay hung or crashed. `lacking`: large values are missing from the store. `vanished`: the server deleted it."""
BREAKS: frozenset[Verdict] = frozenset({"differs", "misfit", "unchecked", "lacking"})
"""Verdicts that fail the gate. A workflow that could not be checked counts, too."""
MAX_FINDINGS = 1_000
"""Maximum number of findings that are stored. All workflows are counted."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A workflow that does not simply replay."""

    id: str
    run_id: str
    kind: str
    """The workflow type."""
    verdict: Verdict
    problem: str = ""
    """One line."""
    divergence: JsonObject | None = None
    """The divergence, as `Divergence.to_json` returns it."""
    misfits: Sequence[JsonObject] = ()
    """Reasons why the present agents cannot continue it."""

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass(kw_only=True)
class GateReport:
    """The result of a gate."""

    tools_checked: bool
    """Whether agents were checked, too."""
    counts: Counter[Verdict] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    """Workflows that do not simply replay, at most `MAX_FINDINGS`."""
    problems: Sequence[str] = ()
    """Why agents could not be loaded. In that case nothing was replayed."""
    sampled: int = 0
    """How many of the checked workflows were closed."""

    @property
    def checked(self) -> int:
        """Number of checked workflows."""
        return self.counts.total()

    @property
    def passes(self) -> bool:
        """Whether this build can be deployed."""
        return not self.problems and not any(self.counts[verdict] for verdict in BREAKS)

    def add(self, finding: Finding) -> None:
        """Count a workflow, and store the finding unless it simply replays."""
        self.counts[finding.verdict] += 1
        if finding.verdict != "replays" and len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
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

    Histories are replayed in separate processes, so that a replay that hangs or crashes is reported like any other
    finding.

    Args:
        client: A client of the namespace, with the store of its workers.
        agents: Folders of the agents to deploy. If set, the tools of open calls are checked, too: that they exist and
            accept the recorded arguments.
        sample: How many of the most recently closed workflows to check, too.
        processes: Number of processes; by default one for each core.
        limit_s: Maximum time to replay one history.
        progress: Called after each workflow with the report so far and the number of open workflows.
        program: The command that replays histories; the folders of the agents are appended.

    Raises:
        RPCError: The server does not answer.
        RuntimeError: A process does not start.
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
            executions = client.temporal.list_workflows(query, page_size=PAGE, limit=limit)
            before = report.checked
            await _check_all(client, executions, replicas, report, lambda: progress and progress(report, total))
            report.sampled = report.checked - before if query == CLOSED else 0
    finally:
        for replica in replicas:
            await replica.stop()
    return report


async def _check_all(
    client: AgentClient,
    executions: AsyncIterator[WorkflowExecution],
    replicas: Sequence["Replica"],
    report: GateReport,
    progress: Callable[[], object],
) -> None:
    """Check each workflow. While a process replays one, the next one is fetched for it."""
    next_one = asyncio.Lock()

    async def work(replica: Replica) -> None:
        while True:
            async with next_one:
                execution = await anext(executions, None)
            if execution is None:
                return
            verdict = await _judge(client, execution, replica)
            report.add(Finding(id=execution.id, run_id=execution.run_id, kind=execution.workflow_type, **verdict))
            progress()

    workers = [asyncio.create_task(work(replica)) for replica in (*replicas, *replicas)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _judge(client: AgentClient, execution: WorkflowExecution, replica: "Replica") -> JsonObject:
    handle = client.temporal.get_workflow_handle(execution.id, run_id=execution.run_id)
    converter = offloading(client.blobs, short_forms=True, converter=client.temporal.data_converter)
    try:
        [history] = await decode_histories([await handle.fetch_history()], converter)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return {"verdict": "vanished", "problem": "The server has deleted it."}
    except StoreFailed as error:
        return {"verdict": "lacking", "problem": str(error)}
    if lacking := list_shortened(converter):
        first = next(iter(lacking.values()))
        return {"verdict": "lacking", "problem": f"{len(lacking)} large values are missing from the store: {first}"}
    async with replica.idle:
        return await replica.judge(history)


class Replica:
    """A process that replays one history after another. It is replaced when a replay hangs or crashes."""

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self._command, self._limit_s = command, limit_s
        self._process: asyncio.subprocess.Process | None = None
        self._errors: Any = None
        self.idle = asyncio.Lock()
        """Locked during a replay."""

    async def start(self) -> list[str]:
        """Start the process; return why it cannot load the agents.

        Raises:
            RuntimeError: The process does not start.
        """
        self._errors = self._errors or tempfile.TemporaryFile()  # noqa: SIM115  # closed by `stop`
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            limit=_MAX_ANSWER,
            # The process must load the same code as this one.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            answer = await asyncio.wait_for(self._exchange(), START_LIMIT_S)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            await self._kill()
            raise RuntimeError(f"The replay process did not start: {self._read_errors()}") from None
        problems: list[str] = answer["problems"]
        return problems

    async def judge(self, history: WorkflowHistory) -> JsonObject:
        """Return the verdict on a history."""
        if self._process is None:
            await self.start()
        events = base64.b64encode(History(events=history.events).SerializeToString()).decode()
        request = json.dumps({"id": history.workflow_id, "history": events}).encode() + b"\n"
        try:
            return await asyncio.wait_for(self._exchange(request), self._limit_s)
        except TimeoutError:
            await self._kill()
            return {"verdict": "unchecked", "problem": f"The replay hung for {self._limit_s:g} s."}
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._kill()
            return {"verdict": "unchecked", "problem": f"The replay crashed: {self._read_errors()}"}

    async def _exchange(self, request: bytes = b"") -> JsonObject:
        """Send a line, if any, and return the answer of the process."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request)
        await self._process.stdin.drain()
        answer: JsonObject = json.loads(await self._process.stdout.readuntil())
        return answer

    def _read_errors(self) -> str:
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - _STDERR_CHARS, 0))
        text = " ".join(self._errors.read().decode(errors="replace").split())
        return text or "no output on standard error."

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def stop(self) -> None:
        """Stop the process."""
        await self._kill()
        if self._errors is not None:
            self._errors.close()
