"""A conversation that continues while a person decides."""

from . import agent as agent
