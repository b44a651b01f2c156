"""What was asked of people, what they answered and what was done, derived from history alone, and sealed by hashes."""

from waystation.audit.account import account
from waystation.audit.keys import KeyRefused, signer, verify_signature
from waystation.audit.sheet import Fault, Sheet, read, sheet_of, written

__all__ = ["Fault", "KeyRefused", "Sheet", "account", "read", "sheet_of", "signer", "verify_signature", "written"]
