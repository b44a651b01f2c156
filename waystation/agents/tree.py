"""Agent trees: the kind of each agent, its transfer targets, and the structure recorded for workflows."""

from collections.abc import Sequence

from waystation.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent, lineage
from waystation.agents.custom_agent import CustomAgent
from waystation.core.contract import AgentKind, AgentSpec
from waystation.plugins import BasePlugin, overrides_callback

_KINDS: tuple[tuple[type[BaseAgent], AgentKind], ...] = (
    (LlmAgent, "llm"),
    (SequentialAgent, "sequential"),
    (ParallelAgent, "parallel"),
    (LoopAgent, "loop"),
    (CustomAgent, "custom"),
)


def kind_of(agent: BaseAgent) -> AgentKind | None:
    """Return the kind of an agent, or None if the agent cannot run."""
    return next((kind for known, kind in _KINDS if isinstance(agent, known)), None)


def transfer_targets(agent: LlmAgent) -> list[BaseAgent]:
    """Return the agents that an agent may transfer to.

    These are its sub-agents and, if its parent is an LlmAgent, that parent and its peers, unless the agent disallows
    them.
    """
    targets = list(agent.sub_agents)
    parent = agent.parent_agent
    if isinstance(parent, LlmAgent):
        if not agent.disallow_transfer_to_parent:
            targets.append(parent)
        if not agent.disallow_transfer_to_peers:
            targets.extend(peer for peer in parent.sub_agents if peer.name != agent.name)
    return targets


def transfer_target(agent: LlmAgent, name: str) -> BaseAgent:
    """Return the transfer target with the given name, which may be `agent` itself.

    Raises:
        ValueError: The target does not exist, or `agent` is not allowed to transfer to it. The message is the same as
            in ADK.
    """
    target = next((target for target in (agent, *transfer_targets(agent)) if target.name == name), None)
    if target is not None:
        return target
    if agent.root_agent.find_agent(name) is None:
        raise ValueError(f"Transfer target agent '{name}' not found.")
    raise ValueError(f"Agent {agent.name} is not allowed to transfer to agent {name}.")


def keeps_turn(agent: BaseAgent) -> bool:
    """Return whether the user's next message may go to this agent if it was the last to reply."""
    return all(isinstance(above, LlmAgent) and not above.disallow_transfer_to_parent for above in lineage(agent))


def create_agent_spec(agent: BaseAgent, plugins: Sequence[BasePlugin], *, first: bool = False) -> AgentSpec:
    """Return an agent's structure as recorded for workflows. For a composite agent, it includes the sub-agents.

    Pass `first=True` for the invocation's first agent. The plugins' `after_run_callback` runs after that agent.
    """
    kind = kind_of(agent) or "llm"
    after = bool(agent.after_agent_callback) or _any(plugins, "after_agent_callback")
    children = () if kind == "llm" else tuple(create_agent_spec(child, plugins) for child in agent.sub_agents)
    return AgentSpec(
        name=agent.name,
        kind=kind,
        children=children,
        max_iterations=agent.max_iterations if isinstance(agent, LoopAgent) else None,
        before=kind != "llm" and (bool(agent.before_agent_callback) or _any(plugins, "before_agent_callback")),
        after=after or (first and _any(plugins, "after_run_callback")),
        keeps_turn=keeps_turn(agent),
        repeats=kind == "loop" and any(map(_takes_activity, children)),
    )


def _takes_activity(spec: AgentSpec) -> bool:
    """Return whether an agent, or one below it, is not an LLM agent and takes an activity each time it runs."""
    return (
        spec.kind == "custom"
        or (spec.kind != "llm" and (spec.before or spec.after))
        or any(map(_takes_activity, spec.children))
    )


def _any(plugins: Sequence[BasePlugin], hook: str) -> bool:
    return any(overrides_callback(plugin, hook) for plugin in plugins)
