"""Credentials, as tools reach them; they never enter history, state, logs or traces."""

from tools.readonly_context import ReadonlyContext


class CredentialAccess(ReadonlyContext):
    """Asking for credentials, and reading those that were given."""
