"""Where ADK has `google.adk.auth.credential_manager`."""

from tools.auth import CredentialManager

__all__ = ["CredentialManager"]
