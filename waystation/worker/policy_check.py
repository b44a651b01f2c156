"""What the policies of agents need of their worker and it does not have.

Nobody would notice before a person waits who cannot answer, or another one who is never told.
"""

from collections.abc import Iterator

from waystation.activities.channels import Channels
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Registry
from waystation.core.policy import ApprovalPolicy
from waystation.tools.toolbox import tools_of


def lacking(registry: Registry, channels: Channels | None, *, verifies: bool) -> Iterator[str]:
    """Yield a sentence for each policy that cannot be kept here; `verifies` is whether identities can be proven."""
    for where, policy in _policies(registry):
        if policy.must_verify and not verifies:
            yield (
                f"{where} takes only answers with a verified identity, and nobody can prove theirs here; name a file "
                "with --identity (`waystation identity init` writes one)."
            )
        named = {*policy.notify, *(name for level in policy.escalation for name in level.notify)}
        if unknown := sorted(name for name in named if channels is None or channels.get(name) is None):
            yield (
                f"{where} has channels told that are not configured here: {', '.join(unknown)}; add them to the file "
                "that --channels names."
            )


def _policies(registry: Registry) -> Iterator[tuple[str, ApprovalPolicy]]:
    for root in registry.roots.values():
        for agent in root.tree.values():
            if isinstance(agent, LlmAgent):
                for tool in tools_of(agent).values():
                    if tool.approval is not None:
                        yield f"The policy of tool {tool.name!r} of agent {agent.name!r}", tool.approval
                for number, rule in enumerate(agent.approval_rules, 1):
                    yield f"Approval rule {number} of agent {agent.name!r}", rule.policy
        for number, rule in enumerate(root.approval_rules, 1):
            yield f"Approval rule {number} of the app of {root.agent.name!r}", rule.policy
