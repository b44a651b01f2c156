"""A toolset."""

from . import agent as agent
