"""Kinds, transfer targets and recorded shapes of the agents in a tree."""

from collections.abc import Sequence

from waystation.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent, lineage
from waystation.core import AgentKind, AgentSpec
from waystation.plugins import BasePlugin, overrides_callback

_KINDS: tuple[tuple[type[BaseAgent], AgentKind], ...] = (
    (LlmAgent, "llm"),
    (SequentialAgent, "sequential"),
    (ParallelAgent, "parallel"),
    (LoopAgent, "loop"),
)


def kind_of(agent: BaseAgent) -> AgentKind | None:
    """Return the kind of an agent, None for one that cannot run."""
    return next((kind for known, kind in _KINDS if isinstance(agent, known)), None)


def transfer_targets(agent: LlmAgent) -> list[BaseAgent]:
    """Return an agent's transfer targets: its sub-agents, its parent, its peers. Source: adk-semantics 9.1."""
    targets = list(agent.sub_agents)
    parent = agent.parent_agent
    if isinstance(parent, LlmAgent):
        if not agent.disallow_transfer_to_parent:
            targets.append(parent)
        if not agent.disallow_transfer_to_peers:
            targets.extend(peer for peer in parent.sub_agents if peer.name != agent.name)
    return targets


def transfer_target(agent: LlmAgent, name: str) -> BaseAgent:
    """Return the transfer target with a name.

    Raises:
        ValueError: It does not exist, or `agent` must not transfer to it; the text is ADK's.
    """
    target = next((target for target in (agent, *transfer_targets(agent)) if target.name == name), None)
    if target is not None:
        return target
    if agent.root_agent.find_agent(name) is None:
        raise ValueError(f"Transfer target agent '{name}' not found.")
    raise ValueError(f"Agent {agent.name} is not allowed to transfer to agent {name}.")


def keeps_turn(agent: BaseAgent) -> bool:
    """Whether the user's next message may go to the agent that replied last. Source: adk-semantics 9.1."""
    return all(isinstance(above, LlmAgent) and not above.disallow_transfer_to_parent for above in lineage(agent))


def create_shape(agent: BaseAgent, plugins: Sequence[BasePlugin], *, first: bool = False) -> AgentSpec:
    """Return the recorded structure of an agent and its sub-agents, for workflows.

    `first` marks the invocation's first agent, after which the plugins' `after_run_callback` runs.
    """
    kind = kind_of(agent) or "llm"
    after = bool(agent.after_agent_callback) or _any(plugins, "after_agent_callback")
    return AgentSpec(
        name=agent.name,
        kind=kind,
        children=() if kind == "llm" else tuple(create_shape(child, plugins) for child in agent.sub_agents),
        max_iterations=agent.max_iterations if isinstance(agent, LoopAgent) else None,
        before=kind != "llm" and (bool(agent.before_agent_callback) or _any(plugins, "before_agent_callback")),
        after=after or (first and _any(plugins, "after_run_callback")),
        keeps_turn=keeps_turn(agent),
    )


def _any(plugins: Sequence[BasePlugin], hook: str) -> bool:
    return any(overrides_callback(plugin, hook) for plugin in plugins)
