"""The login of ADK's documentation: a tool that reads the user's calendar, and for that needs the user to log in."""

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
"""Where the calendar and its login are: by default `provider.py` of this folder."""
CLIENT_ID = "waystation-example"
CLIENT_SECRET = os.environ.get("CALENDAR_CLIENT_SECRET", "known-to-everyone")
"""A real one comes from the environment. It never enters a history, nor does anything that the user gives."""


def login_at(url: str) -> AuthConfig:
    """Return what the tool asks for: that the user logs in at `url` and lets it read the calendar."""
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
    """List what is in the user's calendar.

    Args:
        credential: With the user's token, which is there whenever the function runs. The model does not see it.
    """
    assert credential.oauth2 is not None
    authorization = f"Bearer {credential.oauth2.access_token}"
    request = urllib.request.Request(f"{URL}/calendar", headers={"Authorization": authorization})
    with urllib.request.urlopen(request, timeout=10) as response:
        events: dict[str, Any] = json.load(response)
    return events


root_agent = Agent(
    name="calendar_agent",
    model="gemini-2.5-flash",
    description="Knows the user's calendar.",
    instruction="Answer questions about the user's calendar with list_events. If it fails, say that you cannot look.",
    tools=[AuthenticatedFunctionTool(list_events, auth_config=login_at(URL))],
)
