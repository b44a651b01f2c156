"""Two function tools, one after the other."""

from . import agent as agent
