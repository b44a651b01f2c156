"""Whether this build, and the present agents, can continue what a history recorded.

python -m waystation.replay.compatibility_check [DIR …]    the folders are those of the agents to check, if any

`gate` runs it as a process of its own, so that a replay that hangs or crashes takes no other along. Histories come in
by standard input and verdicts leave by standard output, each as a line of JSON. It has no connection to any server.
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
from waystation.agents.registry import Registry, discover
from waystation.core import (
    SESSION_WORKFLOW,
    WORKFLOW,
    AgentRun,
    AgentShape,
    CallState,
    ForeignHistory,
    JsonObject,
    Log,
    SessionInput,
    UnknownAgent,
    a,
    decode,
    ids,
    is_busy,
)
from waystation.history import log_of, read_content
from waystation.replay.replayer import Replays, find_divergence, replaying
from waystation.tools.approval import parameters_digest
from waystation.tools.base_tool import declare
from waystation.tools.json_schema import mistakes
from waystation.tools.toolbox import tools_of, toolsets_of

_ELSEWHERE = "ResultElsewhere"
"""The error of workflow code that does not find a result in the store; see `workflows.ports`."""
Reason: TypeAlias = Literal["agent_gone", "tool_gone", "other_kind", "arguments_refused", "parameters_changed"]


@dataclass(frozen=True, slots=True)
class Misfit:
    """Something that an open invocation or session needs, and the agents at hand do not give."""

    reason: Reason
    problem: str
    """A sentence."""
    agent: str
    tool: str | None = None
    function_call_id: str | None = None

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def misfits(history: WorkflowHistory, registry: Registry) -> list[Misfit]:
    """Return what the agents of `registry` lack for an open workflow to go on; its payloads are opened."""
    started = history.events[0].workflow_execution_started_event_attributes
    if started.workflow_type.name == WORKFLOW:
        return list(_of_invocation(log_of([history]), registry))
    if started.workflow_type.name == SESSION_WORKFLOW:
        with contextlib.suppress(ValueError):
            agent = SessionInput.model_validate(decode(read_content(started.input.payloads))).agent
            return [] if agent in registry.roots else [_gone(agent, registry)]
    return []


def _gone(agent: str, registry: Registry) -> Misfit:
    return Misfit("agent_gone", str(UnknownAgent(agent, registry.roots)), agent)


def _of_invocation(log: Log, registry: Registry) -> Iterator[Misfit]:
    if log.state.input is None or log.state.outcome.ended:
        return
    if log.state.root not in registry.roots:
        yield _gone(log.state.root, registry)
        return
    begun = [name for work in log.state.runs.at_work() for name in (work.agent, *_to_begin(work))]
    needed = dict.fromkeys([*begun, *(call.agent for call in _to_run(log))])
    for agent in needed:
        try:
            registry.find(log.state.root, agent)
        except UnknownAgent as error:
            yield Misfit("agent_gone", str(error), agent)
    tree = registry.roots[log.state.root].tree
    for name in dict.fromkeys(work.agent for work in log.state.runs.at_work() if _asks_again(log, work)):
        if name in tree and not isinstance(tree[name], LlmAgent):
            problem = f"Agent {name!r} is {a(tree[name])} now; it has no model that could go on."
            yield Misfit("other_kind", problem, name)
    for call in _to_run(log):
        if call.agent in tree and (found := _of_call(call, log.state.root, registry)):
            yield found


def _to_begin(work: AgentRun) -> Iterator[str]:
    """Yield the agents that a workflow agent has yet to begin: they were recorded with it."""
    if not work.finished:
        again = work.shape.kind == "loop"
        for shape in work.shape.children[0 if again else work.started :]:
            yield from _named(shape)


def _named(shape: AgentShape) -> Iterator[str]:
    yield shape.name
    if not shape.before:  # else it is entered as what it is by then
        for child in shape.children:
            yield from _named(child)


def _asks_again(log: Log, work: AgentRun) -> bool:
    """Whether its model is asked once more: something of its own waits, or is under way."""
    if work.shape.kind != "llm" or not work.entered or work.phase_in_flight == "leave":
        return False
    return work.unread or is_busy(log.state, work) or any(log.state.calls[call_id].waiting for call_id in work.open)


def _to_run(log: Log) -> list[CallState]:
    """Return the calls that run, or will once a person agrees; not those that have run and wait for an answer."""
    asked = [call for call in log.state.waiting() if call.gate == "waiting" and not ids.is_budget(call.id)]
    return [*asked, *log.state.performing()]


def _of_call(call: CallState, root: str, registry: Registry) -> Misfit | None:
    _, agent = registry.find(root, call.agent)

    def misfit(reason: Reason, problem: str) -> Misfit:
        return Misfit(reason, f"{call.name!r} of agent {call.agent!r} {problem}.", call.agent, call.name, call.id)

    if call.call.kind == "agent" and not call.run:
        # One that runs already is an invocation of its own.
        called = call.call.agent or call.name
        if call.gate == "waiting" and called not in registry.roots[root].tree:
            return Misfit("agent_gone", str(UnknownAgent(called, registry.roots[root].tree)), called)
        return None
    if not isinstance(agent, LlmAgent):
        return misfit("tool_gone", "is gone: the agent has become one without tools")
    tool = tools_of(agent).get(call.name)
    if tool is None:
        # Which tools a toolset has may take a network to find out.
        prefixes = [toolset.tool_name_prefix for toolset in toolsets_of(agent)]
        if any(call.name.startswith(f"{prefix}_" if prefix else "") for prefix in prefixes):
            return None
        return misfit("tool_gone", "is gone")
    if tool.is_long_running != (call.call.kind == "long_running") and call.call.kind != "agent":
        now = "is long-running now, and was not" if tool.is_long_running else "was long-running, and is not any more"
        return misfit("other_kind", now)
    schema = (declare(tool) or {}).get("parametersJsonSchema")
    try:
        wrong = mistakes(schema, call.args) if isinstance(schema, dict) else []
    except ValueError:
        wrong = []
    if wrong:
        return misfit("arguments_refused", f"does not take the recorded arguments any more: {'; '.join(wrong)}")
    if call.asked == "confirmation" and call.declared is not None and parameters_digest(tool) != call.declared:
        return misfit("parameters_changed", "has other parameters than when a person was asked, and will not run")
    return None


async def serve(requests: BinaryIO, answers: BinaryIO, agents: Sequence[Path]) -> None:
    """Replay what comes in until there is no more."""
    registry, problems = discover(agents) if agents else (None, [])
    _answer(answers, {"problems": [str(problem) for problem in problems]})
    async with replaying(converter=DataConverter.default) as replays:
        while request := await asyncio.to_thread(_next, requests):
            _answer(answers, await judge(request, replays, registry))


async def judge(history: WorkflowHistory, replays: Replays, registry: Registry | None) -> JsonObject:
    """Return what is to be said of one history whose payloads are opened."""
    try:
        found = await find_divergence(history, replays)
        if found and found.failure == _ELSEWHERE:
            return {"verdict": "lacking", "problem": "A large value that it needs is not in the store."}
        if found:
            return {"verdict": "differs", "problem": str(found), "divergence": found.to_json()}
        if registry is not None and (lacks := misfits(history, registry)):
            problem = " ".join(each.problem for each in lacks)
            return {"verdict": "misfit", "problem": problem, "misfits": [each.to_json() for each in lacks]}
    except ForeignHistory as error:
        return {"verdict": "differs", "problem": str(error)}
    return {"verdict": "replays"}


def _next(requests: BinaryIO) -> WorkflowHistory | None:
    line = requests.readline()
    if not line:
        return None
    request = json.loads(line)
    return WorkflowHistory(request["id"], History.FromString(base64.b64decode(request["history"])).events)


def _answer(answers: BinaryIO, answer: JsonObject) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def main() -> None:
    """Serve standard input and output; whatever else is printed goes nowhere."""
    with open(os.dup(1), "wb") as answers, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        only_errors = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
        with contextlib.suppress(RuntimeError):
            Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=only_errors)))
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(sys.stdin.buffer, answers, [Path(each) for each in sys.argv[1:]]))
    os._exit(0)  # threads of Temporal's core may abort the process otherwise


if __name__ == "__main__":
    main()
