"""The login example of ADK's documentation: a tool that reads the user's calendar after a login."""

import json
import os
import urllib.request
from typing import Any

from waystation.agents import Agent
from waystation.auth import (
    AuthConfig,
    AuthCredential,
    AuthCredentialTypes,
    OAuth2,
    OAuth2Auth,
    OAuthFlowAuthorizationCode,
    OAuthFlows,
)
from waystation.tools.authenticated_function_tool import AuthenticatedFunctionTool

from .demo import demo_model as demo_model

URL = os.environ.get("CALENDAR_URL", "http://127.0.0.1:8199")
"""Address of the calendar and its login; by default `provider.py` of this folder."""
CLIENT_ID = "waystation-example"
CLIENT_SECRET = os.environ.get("CALENDAR_CLIENT_SECRET", "known-to-everyone")
"""A real one comes from the environment. Neither it nor the user's token enters a history."""


def login_at(url: str) -> AuthConfig:
    """Return the login that the tool needs: at `url`, with permission to read the calendar."""
    flow = OAuthFlowAuthorizationCode(
        authorizationUrl=f"{url}/authorize", tokenUrl=f"{url}/token", scopes={"calendar.read": "Read the calendar"}
    )
    client = OAuth2Auth(client_id=CLIENT_ID, client_secret=CLIENT_SECRET, redirect_uri=f"{url}/done")
    return AuthConfig(
        auth_scheme=OAuth2(flows=OAuthFlows(authorizationCode=flow)),
        raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.OAUTH2, oauth2=client),
        credential_key="calendar",
    )


def list_events(credential: AuthCredential) -> dict[str, Any]:
    """List the events in the user's calendar.

    Args:
        credential: Contains the user's token. The model does not see it.
    """
    assert credential.oauth2 is not None
    authorization = f"Bearer {credential.oauth2.access_token}"
    request = urllib.request.Request(f"{URL}/calendar", headers={"Authorization": authorization})
    with urllib.request.urlopen(request, timeout=10) as response:
        events: dict[str, Any] = json.load(response)
    return events


root_agent = Agent(
    name="calendar_agent",
    model="gemini-3.5-flash",
    description="Knows the user's calendar.",
    instruction="Answer questions about the user's calendar with list_events. If it fails, say so.",
    tools=[AuthenticatedFunctionTool(list_events, auth_config=login_at(URL))],
)
