"""An agent as a tool."""

from . import agent as agent
