"""Where ADK has `google.adk.auth.credential_service.base_credential_service`."""

from tools.auth import BaseCredentialService

__all__ = ["BaseCredentialService"]
