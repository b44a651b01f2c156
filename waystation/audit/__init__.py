"""The audit of invocations: requests, answers and calls that ran, from histories alone, protected by hashes."""

from waystation.audit.account import Gathered, account, check_subject, compare, of_files, of_invocation
from waystation.audit.sheet import Fault, Sheet, read, sheet_of, signer, verify_signature, written

__all__ = [
    "Fault",
    "Gathered",
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
