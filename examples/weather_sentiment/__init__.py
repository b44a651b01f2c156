"""Two function tools, called one after the other."""

from . import agent as agent
