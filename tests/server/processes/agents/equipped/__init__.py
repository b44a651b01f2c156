"""An agent with a toolset."""

from . import agent as agent
