"""Where ADK has `google.adk.auth.credential_service`."""

from activities.credentials import InMemoryCredentialService

__all__ = ["InMemoryCredentialService"]
