"""What was asked of people, what they answered and what was done, derived from history alone, and sealed by hashes."""

from waystation.audit.account import Gathered, account, check_subject, compare, of_files, of_invocation
from waystation.audit.sheet import Fault, KeyRefused, Sheet, read, sheet_of, signer, verify_signature, written

__all__ = [
    "Fault",
    "Gathered",
    "KeyRefused",
    "Sheet",
    "account",
    "check_subject",
    "compare",
    "of_files",
    "of_invocation",
    "read",
    "sheet_of",
    "signer",
    "verify_signature",
    "written",
]
