"""Check whether this build and the current agents can continue recorded histories.

python -m waystation.replay.compatibility_check [DIR …]    DIR: folders of the agents to check, if any

`gate` runs this module in separate processes, so that a replay that hangs or crashes does not affect others. The module
reads histories from standard input and writes verdicts to standard output, each on one line of JSON. It does not
require a server.
"""

import asyncio
import base64
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from temporalio.api.history.v1 import History
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from waystation.agents.llm_agent import LlmAgent
from waystation.agents.toolbox import DECLARED, entries_of, list_origins, tools_of
from waystation.apps.registry import Registry, Root, discover
from waystation.core import ids
from waystation.core.contract import SESSION_WORKFLOW, WORKFLOW, AgentSpec
from waystation.core.errors import ForeignHistory, UnknownAgent
from waystation.core.log import AgentRun, CallState, Log, is_busy, origin_of
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject, decode
from waystation.core.session_log import SessionInput
from waystation.history import build_log, read_json_content
from waystation.replay.replayer import Replays, find_divergence, open_replayer
from waystation.tools.approval import parameters_digest
from waystation.tools.base_tool import declare
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.json_schema import find_mistakes

_ELSEWHERE = "ResultElsewhere"
"""Name of the workflow error for a result that is missing from the store; see `waystation.workflows.ports`."""
Reason: TypeAlias = Literal[
    "agent_gone", "tool_gone", "other_kind", "arguments_refused", "origin_changed", "parameters_changed"
]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A reason why the current agents cannot continue an open invocation or session."""

    reason: Reason
    problem: str
    """The reason in one sentence."""
    agent: str
    tool: str | None = None
    function_call_id: str | None = None

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def find_misfits(history: WorkflowHistory, registry: Registry) -> list[Misfit]:
    """Return the reasons why the agents in `registry` cannot continue an open workflow.

    The history's payloads must be decoded.
    """
    started = history.events[0].workflow_execution_started_event_attributes
    if started.workflow_type.name == WORKFLOW:
        return list(_check_invocation(build_log([history]), registry))
    if started.workflow_type.name == SESSION_WORKFLOW:
        with contextlib.suppress(ValueError):
            agent = SessionInput.model_validate(decode(read_json_content(started.input.payloads))).agent
            return [] if registry.find_root(agent) else [_missing_agent(agent, registry)]
    return []


def _missing_agent(agent: str, registry: Registry) -> Misfit:
    return Misfit("agent_gone", str(UnknownAgent(agent, registry.roots)), agent)


def _check_invocation(log: Log, registry: Registry) -> Iterator[Misfit]:
    if log.state.input is None or log.state.outcome.ended:
        return
    root = registry.find_root(log.state.root)
    if root is None:
        yield _missing_agent(log.state.root, registry)
        return
    started = [name for work in log.state.runs.at_work() for name in (work.agent, *_agents_to_start(work))]
    needed = dict.fromkeys([*started, *(call.agent for call in _calls_to_run(log))])
    for agent in needed:
        try:
            registry.find(log.state.root, agent)
        except UnknownAgent as error:
            yield Misfit("agent_gone", str(error), agent)
    for name in dict.fromkeys(work.agent for work in log.state.runs.at_work() if _will_call_model(log, work)):
        if (found := root.find(name)) and not isinstance(found, LlmAgent):
            problem = f"Agent {name!r} is {with_article(found)} now; it has no model to continue with."
            yield Misfit("other_kind", problem, name)
    for call in _calls_to_run(log):
        if misfit := _check_call(call, root):
            yield misfit


def _agents_to_start(work: AgentRun) -> Iterator[str]:
    """Yield the names of the agents that a workflow agent can still start, according to its recorded spec."""
    if not work.finished:
        repeats = work.shape.kind == "loop"
        for spec in work.shape.children[0 if repeats else work.started :]:
            yield from _names_in(spec)


def _names_in(spec: AgentSpec) -> Iterator[str]:
    yield spec.name
    if not spec.before:  # otherwise, its current definition applies when it starts
        for child in spec.children:
            yield from _names_in(child)


def _will_call_model(log: Log, work: AgentRun) -> bool:
    """Return whether an agent will call its model again: it has unread results, unfinished work or pending calls."""
    if work.shape.kind != "llm" or not work.entered or work.phase_in_flight == "leave":
        return False
    return (
        work.unread
        or is_busy(log.state, work)
        or any(log.state.calls[function_call_id].waiting for function_call_id in work.open)
    )


def _calls_to_run(log: Log) -> list[CallState]:
    """Return the calls that will run, either now or after an approval.

    Calls that have already run and are waiting for a response are left out.
    """
    pending = [call for call in log.state.waiting() if call.gate == "waiting" and not ids.is_budget(call.id)]
    return [*pending, *log.state.performing()]


def _check_call(call: CallState, root: Root) -> Misfit | None:
    if (agent := root.find(call.agent)) is None:
        return None  # its agent is reported

    def misfit(reason: Reason, problem: str) -> Misfit:
        return Misfit(reason, f"Tool {call.name!r} of agent {call.agent!r} {problem}.", call.agent, call.name, call.id)

    if call.call.kind == "agent" and not call.run:
        # A called agent that is already running is a separate invocation.
        called = call.call.agent or call.name
        if call.gate == "waiting" and called not in root.tree:
            return Misfit("agent_gone", str(UnknownAgent(called, root.tree)), called)
        return None
    if not isinstance(agent, LlmAgent):
        return misfit("tool_gone", "is gone: the agent is now of a kind that has no tools")
    tool = tools_of(agent).get(call.name)
    if tool is None:
        # Assume that a matching toolset still has the tool: listing its tools may require network access.
        origins = dict(zip(list_origins(agent), entries_of(agent), strict=True))
        matches = {o for o, entry in origins.items() if isinstance(entry, BaseToolset) and entry.can_list(call.name)}
        if origin_of(call) in matches or (origin_of(call) is None and matches):
            return None
        return misfit("tool_gone", "is gone")
    if origin_of(call) not in (None, DECLARED):
        return misfit("origin_changed", "is declared by the agent now, so a call to the tool of a toolset cannot run")
    if tool.is_long_running != (call.call.kind == "long_running") and call.call.kind != "agent":
        now = "is long-running now but was not before" if tool.is_long_running else "is no longer long-running"
        return misfit("other_kind", now)
    schema = (declare(tool) or {}).get("parametersJsonSchema")
    try:
        wrong = find_mistakes(schema, call.args) if isinstance(schema, dict) else []
    except ValueError:
        wrong = []
    if wrong:
        return misfit("arguments_refused", f"no longer accepts the recorded arguments: {'; '.join(wrong)}")
    if call.asked == "confirmation" and call.declared is not None and parameters_digest(tool) != call.declared:
        return misfit("parameters_changed", "has changed parameters since the approval request, so the call cannot run")
    return None


async def serve(requests: BinaryIO, answers: BinaryIO, agents: Sequence[Path]) -> None:
    """Write the reasons why agents could not be loaded, then answer requests until the input ends."""
    registry, problems = discover(agents) if agents else (None, [])
    _write_answer(answers, {"problems": [str(problem) for problem in problems]})
    async with open_replayer(converter=DataConverter.default) as replays:
        while request := await asyncio.to_thread(_read_request, requests):
            _write_answer(answers, await judge(request, replays, registry))


async def judge(history: WorkflowHistory, replays: Replays, registry: Registry | None) -> JsonObject:
    """Return the verdict on a history, whose payloads must be decoded. Without a registry, agents are not checked."""
    try:
        divergence = await find_divergence(history, replays)
        if divergence and divergence.failure == _ELSEWHERE:
            return {"verdict": "lacking", "problem": "A large value is missing from the store."}
        if divergence:
            return {"verdict": "differs", "problem": str(divergence), "divergence": divergence.to_json()}
        if registry is not None and (problems := find_misfits(history, registry)):
            text = " ".join(misfit.problem for misfit in problems)
            return {"verdict": "misfit", "problem": text, "misfits": [misfit.to_json() for misfit in problems]}
    except ForeignHistory as error:
        return {"verdict": "differs", "problem": str(error)}
    return {"verdict": "replays"}


def _read_request(requests: BinaryIO) -> WorkflowHistory | None:
    line = requests.readline()
    if not line:
        return None
    request = json.loads(line)
    return WorkflowHistory(request["id"], History.FromString(base64.b64decode(request["history"])).events)


def _write_answer(answers: BinaryIO, answer: JsonObject) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def main() -> None:
    """Serve requests on standard input and output. Anything else that is printed to standard output is discarded."""
    with open(os.dup(1), "wb") as answers, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        only_errors = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
        with contextlib.suppress(RuntimeError):
            Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=only_errors)))
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(sys.stdin.buffer, answers, [Path(folder) for folder in sys.argv[1:]]))
    os._exit(0)  # During a normal exit, threads of Temporal's core may abort the process.


if __name__ == "__main__":
    main()
