"""Let people answer through any interface: check what they may do, sign their answers, and audit what they did.

An interface identifies a `Person`. Its `Gatekeeper` says why the person may not answer a call, and signs and sends the
answer. The functions say what the person may see. `waystation.approvers.identity` verifies identities,
`waystation.approvers.audit` exports who decided what.
"""

from waystation.approvers.gatekeeper import Gatekeeper
from waystation.approvers.permissions import (
    ROLES,
    Person,
    Role,
    check_role,
    is_requester,
    sees_call,
    sees_everything,
    sees_invocation,
    sees_tenant,
    why_not,
)

__all__ = [
    "ROLES",
    "Gatekeeper",
    "Person",
    "Role",
    "check_role",
    "is_requester",
    "sees_call",
    "sees_everything",
    "sees_invocation",
    "sees_tenant",
    "why_not",
]
