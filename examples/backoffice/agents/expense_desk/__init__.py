"""Expense claims."""
