"""The cards of agents."""

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from waystation.client import AgentDetails
from waystation.interfaces.a2a_server.push_configs import read_hosts
from waystation.version import waystation_version

PREFIX = "/a2a"
CARD = "/.well-known/agent-card.json"
MODES = ("text/plain", "application/json")
NOT_LOGGED_IN = "An agent on Waystation. Log in to read its extended card."
INTERFACES = (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"))


def make_card(agent: str, base: str) -> AgentCard:
    """Return the public card, which everybody may read. It is the same for agents that do not exist.

    Args:
        agent: The name of the agent.
        base: The address of this server, without the final slash.
    """
    url = f"{base}{PREFIX}/{agent}"
    return AgentCard(
        name=agent,
        description=NOT_LOGGED_IN,
        version=waystation_version(),
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
            for binding, version in INTERFACES
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=bool(read_hosts()), extended_agent_card=True),
        security_schemes={"bearer": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))},
        security_requirements=[SecurityRequirement(schemes={"bearer": StringList()})],
        default_input_modes=MODES,
        default_output_modes=MODES,
        skills=[AgentSkill(id=agent, name=agent, description=NOT_LOGGED_IN, tags=["agent"])],
    )


def extend_card(card: AgentCard, agents: dict[str, AgentDetails]) -> AgentCard:
    """Return the card for people who are logged in, with the agent and those below it as skills."""
    card.description = agents[card.name].description or f"The agent {card.name}."
    del card.skills[:]
    for name, details in agents.items():
        description = details.description or f"The agent {name}."
        card.skills.append(AgentSkill(id=name, name=name, description=description, tags=[details.kind or "agent"]))
    return card
