"""A tool with typed parameters."""

from . import agent as agent
