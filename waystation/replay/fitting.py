"""Whether the agents at hand can go on with what is open: the calls that have to run, and who made them.

Loads what a worker loads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from temporalio.client import WorkflowHistory

from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Registry
from waystation.core import ids
from waystation.core.call import CallState
from waystation.core.errors import UnknownAgent
from waystation.core.log import Log
from waystation.core.naming import a
from waystation.core.payload import JsonObject, decode
from waystation.core.shape import AgentShape
from waystation.core.wire import SESSION_WORKFLOW, WORKFLOW
from waystation.core.work import Work
from waystation.history import carried_log, log_of, read_content
from waystation.tools.approval import parameters_digest
from waystation.tools.base_tool import declare
from waystation.tools.json_schema import mistakes
from waystation.tools.toolbox import tools_of, toolsets_of

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
        found = {
            "reason": self.reason,
            "problem": self.problem,
            "agent": self.agent,
            "tool": self.tool,
            "function_call_id": self.function_call_id,
        }
        return {name: value for name, value in found.items() if value is not None}


def misfits(history: WorkflowHistory, registry: Registry) -> list[Misfit]:
    """Return what the agents of `registry` lack for an open workflow to go on; its payloads are opened."""
    started = history.events[0].workflow_execution_started_event_attributes
    match started.workflow_type.name:
        case name if name == WORKFLOW:
            return list(_of_invocation(log_of([history], carried_log([history])), registry))
        case name if name == SESSION_WORKFLOW:
            try:
                given = decode(read_content(started.input.payloads))
            except ValueError:
                return []
            agent = given.get("agent") if isinstance(given, dict) else None
            return [_gone(agent, registry)] if isinstance(agent, str) and agent not in registry.roots else []
        case _:
            return []


def _gone(agent: str, registry: Registry) -> Misfit:
    return Misfit("agent_gone", str(UnknownAgent(agent, registry.roots)), agent)


def _of_invocation(log: Log, registry: Registry) -> Iterator[Misfit]:
    if log.input is None or log.ended:
        return
    if log.root not in registry.roots:
        yield _gone(log.root, registry)
        return
    begun = [name for work in log.active for name in (work.agent, *_to_begin(work))]
    needed = dict.fromkeys([*begun, *(call.agent for call in _to_run(log))])
    for agent in needed:
        try:
            registry.find(log.root, agent)
        except UnknownAgent as error:
            yield Misfit("agent_gone", str(error), agent)
    tree = registry.roots[log.root].tree
    for name in dict.fromkeys(work.agent for work in log.active if _asks_again(work)):
        if name in tree and not isinstance(tree[name], LlmAgent):
            problem = f"Agent {name!r} is {a(tree[name])} now; it has no model that could go on."
            yield Misfit("other_kind", problem, name)
    for call in _to_run(log):
        if call.agent in tree and (found := _of_call(call, log.root, registry)):
            yield found


def _to_begin(work: Work) -> Iterator[str]:
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


def _asks_again(work: Work) -> bool:
    """Whether its model is asked once more: something of its own waits, or is under way."""
    if work.shape.kind != "llm" or not work.entered or work.phase_in_flight == "leave":
        return False
    return work.unread or work.busy or any(call.waiting for call in work.open.values())


def _to_run(log: Log) -> list[CallState]:
    """Return the calls that run, or will once a person agrees; not those that have run and wait for an answer."""
    asked = [call for call in log.waiting() if call.gate == "waiting" and not ids.is_budget(call.id)]
    return [*asked, *log.performing()]


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
    asked = call.asked == "confirmation" and call.declared is not None
    if asked and parameters_digest(tool) != call.declared:
        return misfit("parameters_changed", "has other parameters than when a person was asked, and will not run")
    return None
