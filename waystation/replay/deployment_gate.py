"""Check whether this build can continue all open workflows in a namespace."""

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
from waystation.core.contract import SESSION_WORKFLOW, WORKFLOW
from waystation.core.errors import StoreFailed
from waystation.core.payload import JsonObject
from waystation.core.scope_state import AGENT_DIRECTORY, SCOPE_WORKFLOW
from waystation.embedded import bind_to_this_process
from waystation.history import decode_histories
from waystation.storage import list_shortened, offloading

KINDS = " OR ".join(f"WorkflowType = '{name}'" for name in (WORKFLOW, SESSION_WORKFLOW, SCOPE_WORKFLOW))
OPEN = f"ExecutionStatus = 'Running' AND WorkflowId != '{AGENT_DIRECTORY}' AND ({KINDS})"
CLOSED = f"ExecutionStatus != 'Running' AND WorkflowId != '{AGENT_DIRECTORY}' AND ({KINDS})"
PAGE = 200
START_LIMIT_S = 120.0
"""Time limit for a process to load the agents. If it takes longer, the gate fails with an error."""
LIMIT_S = 120.0
"""Default time limit for the replay of one history. If it takes longer, the verdict is `unchecked`. Replaying a history
of 50,000 events takes several seconds."""
PROGRAM = (sys.executable, "-m", "waystation.replay.compatibility_check")
_MAX_ANSWER = 2**26
"""Maximum length in bytes of an answer from `PROGRAM`, which is one line of JSON. The gate fails if one is longer."""
_STDERR_CHARS = 400


Verdict: TypeAlias = Literal["replays", "differs", "misfit", "unchecked", "lacking", "vanished"]
"""`replays`: no problem was found. `differs`: this build would diverge from the recorded workflow, or cannot read it.
`misfit`: the current agents cannot continue the workflow. `unchecked`: the replay hung or crashed. `lacking`: large
values are missing from the store. `vanished`: the server has deleted the workflow."""
BREAKS: frozenset[Verdict] = frozenset({"differs", "misfit", "unchecked", "lacking"})
"""Verdicts that fail the gate, including those for workflows that could not be checked."""
MAX_FINDINGS = 1_000
"""Maximum number of findings to store. Workflows beyond that limit are still counted."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The verdict on one workflow."""

    id: str
    run_id: str
    kind: str
    """The workflow type."""
    verdict: Verdict
    problem: str = ""
    """Description of the problem on one line. Empty if there is no problem."""
    divergence: JsonObject | None = None
    """The divergence, as `Divergence.to_json` returns it, or None if there is none."""
    misfits: Sequence[JsonObject] = ()
    """The reasons why the current agents cannot continue the workflow."""

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass(kw_only=True)
class GateReport:
    """The result of `gate`."""

    tools_checked: bool
    """Whether the agents and their tools were checked, too."""
    counts: Counter[Verdict] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    """Findings with a verdict other than `replays`, at most `MAX_FINDINGS`."""
    problems: Sequence[str] = ()
    """The reasons why agents could not be loaded. If there are any, nothing was replayed."""
    sampled: int = 0
    """Number of checked workflows that were closed."""

    @property
    def checked(self) -> int:
        """Number of checked workflows."""
        return self.counts.total()

    @property
    def passes(self) -> bool:
        """Whether this build is safe to deploy: no agent failed to load, and no verdict is in `BREAKS`."""
        return not self.problems and not any(self.counts[verdict] for verdict in BREAKS)

    def add(self, finding: Finding) -> None:
        """Count a workflow, and store its finding unless the verdict is `replays`."""
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
    """Replay every open invocation, session and scope in a namespace, and a sample of closed ones, against this build.

    Histories are replayed in separate processes, so that a replay that hangs or crashes is reported like any other
    finding.

    Args:
        client: A client connected to the namespace, with the workers' store.
        agents: Folders of the agents to deploy. If set, also check that the agents that open workflows need exist, and
            that the tools of open calls exist and accept the recorded arguments.
        sample: Number of the most recently closed workflows to check in addition.
        processes: Number of processes. Defaults to one per CPU core.
        limit_s: Maximum time in seconds for replaying one history.
        progress: Called after each workflow with the report so far and the number of open workflows.
        program: The command that replays histories. The folders of the agents are appended to it.

    Raises:
        RPCError: The server does not respond.
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
    """Check all workflows. While a process replays one history, the next history for it is fetched."""
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
        return {"verdict": "vanished", "problem": "The server has deleted the workflow."}
    except StoreFailed as error:
        return {"verdict": "lacking", "problem": str(error)}
    if lacking := list_shortened(converter):
        first = next(iter(lacking.values()))
        return {"verdict": "lacking", "problem": f"{len(lacking)} large values are missing from the store: {first}"}
    async with replica.idle:
        return await replica.judge(history)


class Replica:
    """A process that replays one history after another. It is restarted after a replay hangs or crashes."""

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self._command, self._limit_s = command, limit_s
        self._process: asyncio.subprocess.Process | None = None
        self._errors: Any = None
        self.idle = asyncio.Lock()
        """A lock that is held while the process replays a history."""

    async def start(self) -> list[str]:
        """Start the process, and return the reasons why it cannot load agents, if any.

        Raises:
            RuntimeError: The process does not start.
        """
        self._errors = self._errors or tempfile.TemporaryFile()  # noqa: SIM115  # closed by `stop`
        self._process = await asyncio.create_subprocess_exec(
            *bind_to_this_process([*self._command]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            limit=_MAX_ANSWER,
            # Make sure that the process loads the same code as this process.
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
        """Replay a history, and return the verdict on it, which is `unchecked` if the replay hangs or crashes."""
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
        """Send a request, unless it is empty, and return the process's next answer."""
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
        """Stop the process and discard its error output."""
        await self._kill()
        if self._errors is not None:
            self._errors.close()
