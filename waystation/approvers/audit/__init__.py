"""Audit invocations: export requests, answers and calls from histories to files that are protected by hashes."""

from waystation.approvers.audit.account import (
    Accounts,
    check_subject,
    compare,
    create_account,
    gather_files,
    gather_invocation,
)
from waystation.approvers.audit.review_habits import ReviewHabit, ReviewHabits
from waystation.approvers.audit.sheet import (
    Fault,
    Sheet,
    create_sheet,
    format_sheet,
    load_signer,
    read_sheet,
    verify_signature,
)

__all__ = [
    "Accounts",
    "Fault",
    "ReviewHabit",
    "ReviewHabits",
    "Sheet",
    "check_subject",
    "compare",
    "create_account",
    "create_sheet",
    "format_sheet",
    "gather_files",
    "gather_invocation",
    "load_signer",
    "read_sheet",
    "verify_signature",
]
