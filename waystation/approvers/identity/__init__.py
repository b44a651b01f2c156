"""Verify the identity of approvers.

Clients encrypt an approver's token (`Sealer`), and workers decrypt and verify it (`WorkerIdentity`). `waystation web`
logs approvers in (`OidcLogin`), identifies the people and machines behind access tokens (`BearerTokens`), signs tokens
for them (`Gateway`) and signs links to calls (`Links`). This package requires the extra `identity`.
"""

from waystation.approvers.identity.bearer import Bearer, BearerTokens, ScopesMissing
from waystation.approvers.identity.completions import Completions
from waystation.approvers.identity.identity_file import Configuration, write_examples
from waystation.approvers.identity.oidc import LoggedIn, OidcLogin
from waystation.approvers.identity.tokens import Gateway, Link, Links, Sealer, answer_digest
from waystation.approvers.identity.verification import WorkerIdentity

__all__ = [
    "Bearer",
    "BearerTokens",
    "Completions",
    "Configuration",
    "Gateway",
    "Link",
    "Links",
    "LoggedIn",
    "OidcLogin",
    "ScopesMissing",
    "Sealer",
    "WorkerIdentity",
    "answer_digest",
    "write_examples",
]
