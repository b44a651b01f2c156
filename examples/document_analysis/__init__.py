"""Artifacts and memory."""

from . import agent as agent
