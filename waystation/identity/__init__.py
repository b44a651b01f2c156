"""Verify the identity of approvers.

Clients encrypt an approver's token for the workers (`Sealer`); workers decrypt and verify it (`WorkerIdentity`).
`waystation web` signs tokens for approvers who have logged in (`Gateway`, `OidcLogin`) and links to calls (`Links`).
Needs the extra `identity`.
"""

from waystation.identity.identity_file import Configuration, write_examples
from waystation.identity.oidc import LoggedIn, OidcLogin
from waystation.identity.tokens import Gateway, Link, Links, Sealer, answer_digest
from waystation.identity.verification import WorkerIdentity

__all__ = [
    "Configuration",
    "Gateway",
    "Link",
    "Links",
    "LoggedIn",
    "OidcLogin",
    "Sealer",
    "WorkerIdentity",
    "answer_digest",
    "write_examples",
]
