"""Mirrors ADK's `google.adk.integrations` package."""
