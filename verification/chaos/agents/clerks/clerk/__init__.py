"""Laid out as ADK does it."""

from . import agent as agent
