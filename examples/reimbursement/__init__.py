"""The reimbursement agent of ADK's documentation."""

from . import agent as agent
