"""Research: the handbook over MCP, from a program that the worker starts, and suppliers over OpenAPI."""

import os
import sys
from pathlib import Path

from company.models import MODEL

from waystation import Agent
from waystation.auth import AuthCredential, AuthCredentialTypes
from waystation.tools.mcp_tool import McpToolset, StdioConnectionParams, StdioServerParameters
from waystation.tools.openapi_tool import OpenAPIToolset

from .demo import demo_model as demo_model

SERVICES = Path(__file__).parents[2] / "services"

handbook = McpToolset(
    connection_params=StdioConnectionParams(
        server_params=StdioServerParameters(command=sys.executable, args=[str(SERVICES / "handbook.py")]), timeout=30
    )
)
suppliers = OpenAPIToolset(
    spec_str=(SERVICES / "suppliers.yaml").read_text(),
    spec_str_type="yaml",
    server_url=os.environ.get("SUPPLIERS_URL", "http://127.0.0.1:8301"),
    allow_private_network_access=True,
    auth_credential=AuthCredential(
        auth_type=AuthCredentialTypes.API_KEY, api_key=os.environ.get("SUPPLIERS_KEY", "known-to-everyone")
    ),
)

root_agent = Agent(
    name="research_desk",
    model=MODEL,
    description="Answers questions about rules and suppliers.",
    instruction="Answer from the handbook and the list of suppliers. Say which of them you used.",
    tools=[handbook, suppliers],
)
