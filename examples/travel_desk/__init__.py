"""A conversation that goes on while a person decides."""

from . import agent as agent
